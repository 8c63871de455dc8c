"""A coder of the Wan VAE in bfloat16, whatever its weights are, in one pass between its convolutions.

``wan_vae_bf16``, quality ``high``: ``wan_vae_one_pass`` with every convolution, product and activation in bfloat16.
Weights are cast once a decode or encode; no autocast looks at each call.

Site: wan_vae_bf16
Formula: that of ``wan_vae_one_pass``.
Shapes: x [B, C, T, H, W] of the coder's first convolution, bf16 or fp32; the result is contiguous, of the dtype that
the exact form's is.
Rounds: everything to bfloat16, once behind each norm with its SiLU, each convolution, bias and sum.
Replaces: a call of ``WanEncoder3d`` or ``WanDecoder3d`` (diffusers 0.42.1) with its feature cache.
Close: precision is lower where weights are fp32, a site of quality ``high``.
Declines: what ``wan_vae_one_pass`` declines.
Bytes: half of the exact form's with fp32 weights and without autocast.
Check first: if the trace shows fp32 or TF32 convolutions in a decode at this quality, read the site's reason in the
report.
Source: diffusers autoencoder_kl_wan.py, 0.42.1.
"""

from __future__ import annotations

from typing import Any

import torch


def computed_in_bf16(x: torch.Tensor, convolution: Any) -> torch.dtype:
    """What a convolution of ``x`` runs in: bfloat16."""
    return torch.bfloat16
