"""AutoencoderKLWan (Wan 2.1 and 2.2): norms, causal convolutions and samplers of its coders, channels-last between.

``wan_vae_blocks`` takes whole residual blocks and the first and last convolution of a coder: one kernel builds a
convolution's padded input and the next cache, norm and SiLU included, cuDNN convolves in channels-last memory without
converting anything, and one kernel adds bias and residual. The norms follow the order in which torch sums the layout
that eager has there, on which the bits depend (:mod:`eager_layouts`). ``wan_vae_upsampling`` does the same for the
samplers of the decoder and the duplicating shortcut around them, ``wan_vae_downsampling`` for those of the encoder and
the averaging one. ``wan_vae_norms`` is what remains of that for the attention's norm, and for all norms where the
blocks are off. All is verified against diffusers' own modules; what a gate rejects channels-last is tried in planes,
and with torch's own sums, before it is left to eager. The attention runs as it is, in eager's layout.

``wan_vae_one_pass`` and ``wan_vae_bf16`` are not exact: they run whole coders in another form (:mod:`one_pass`,
:mod:`bf16`) while a quality permits it, compared with the exact one (:mod:`approximate`).

Tiling, slicing and batches call the same modules and need nothing. Weights turned to channels-last are held for one
decode or encode, and dropped after it, also on an exception.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.installation import Installation, taken_off_if_it_fails
from fuseproof.fastpaths.kernels import triton_missing_reason
from fuseproof.fastpaths.replacements import Replacement
from fuseproof.fastpaths.sites.autoencoder_kl_wan import modules
from fuseproof.fastpaths.sites.autoencoder_kl_wan.resetting import ResetAfter

COMPONENT = "vae"
CLASS_NAME = "AutoencoderKLWan"
KERNELS_OF_SITE = {
    "wan_vae_norms": ("wan_norm_silu",),
    "wan_vae_blocks": ("causal_conv_input", "duplicate_upsample_add"),
    "wan_vae_upsampling": ("nearest_upsample", "causal_conv_input", "duplicate_upsample_add"),
    "wan_vae_downsampling": ("bordered_frames", "causal_conv_input", "average_downsample_add"),
}
APPROXIMATE_SITES = {"wan_vae_one_pass": "extra-high", "wan_vae_bf16": "high"}
HELPER_KERNELS = {"wan_vae_one_pass": ("norm_silu_conv_input",)}
"""The kernel that both forms which are not exact add to the others'; it is close to its reference, not equal."""
EXACT_SITES = tuple(KERNELS_OF_SITE)
SITES = (*EXACT_SITES, *APPROXIMATE_SITES)
QUALITY_OF_SITE = {**dict.fromkeys(SITES, "lossless"), **APPROXIMATE_SITES}
REQUIRES = dict.fromkeys(APPROXIMATE_SITES, "wan_vae_blocks")
"""A coder in another form is compared with the exact one, and falls back to it."""
LARGEST_ERROR_OF_SITE = {"wan_vae_one_pass": 0.1, "wan_vae_bf16": 0.2}
"""Relative error of what a coder returns for a chunk of frames, beyond which it is not the same computation. Roundings
in bfloat16 that move cost about a percent; a frame, a layout or a bias in the wrong place costs more than a half."""
TAKEN_OVER_BY = {
    **dict.fromkeys(EXACT_SITES, ("wan_vae_bf16", "wan_vae_one_pass")),
    "wan_vae_one_pass": ("wan_vae_bf16",),
}
"""Where one of the latter is in force, it runs whole coders: one form at a time."""


def reject_reason(vae: Any) -> str | None:
    """Why this VAE cannot carry any of the sites, naming the device first, or the module; None if it can."""
    if type(vae).__name__ != CLASS_NAME:
        return f"vae is {type(vae).__name__}, the sites need {CLASS_NAME}"
    reason = modules.reject_reason(vae) or triton_missing_reason()
    return None if reason is None else _device_reason(vae) or reason


def site_reasons(vae: Any) -> dict[str, str]:
    """Sites that decline on this VAE although the family does not, and why."""
    reason = _device_reason(vae)
    return {} if reason is None else dict.fromkeys(SITES, reason)


def install(vae: Any, gates: Mapping[str, Gate]) -> Installation:
    """Put the chosen sites into ``vae``; the gates of declining sites are not among ``gates``."""
    from fuseproof.fastpaths.sites.autoencoder_kl_wan import approximate, forwards
    from fuseproof.fastpaths.sites.autoencoder_kl_wan.held_weights import TurnedWeights
    from fuseproof.fastpaths.sites.autoencoder_kl_wan.paths import Paths, Seen
    from fuseproof.fastpaths.sites.watched_coder import WatchedCoder

    weights, seen = TurnedWeights(), Seen()
    resetting: list[ResetAfter] = []

    def undo() -> None:
        coder_forms.drop()
        for method in resetting:
            method.take_off()

    coder_forms = approximate.forms()
    installation = Installation(held=[weights], choose=coder_forms.choose, undo=undo)
    with taken_off_if_it_fails(installation):
        for name in modules.CODERS:
            coder = WatchedCoder(name, getattr(vae, name), _libraries())
            paths = Paths(gates, coder, weights, seen)
            for kind, _, module in modules.replaced_modules(name, getattr(vae, name)):
                if kind in forwards.MAKERS and forwards.is_wanted(kind, module, gates):
                    more = {"forms": coder_forms} if kind == "coder" and "wan_vae_blocks" in gates else {}
                    make = functools.partial(forwards.MAKERS[kind], paths, module, **more)
                    installation.replacements.append(Replacement(module, make))
            coder.seal()
        resetting += [ResetAfter(vae, method, weights.clear) for method in modules.METHODS_OF_A_REQUEST]
    return installation


def _libraries() -> tuple[ModuleType, ...]:
    """Where the functions live that diffusers' own forwards call by name, and the replacements do not."""
    import torch.nn.functional as F
    from diffusers.models.autoencoders import autoencoder_kl_wan

    return F, autoencoder_kl_wan


def _device_reason(vae: Any) -> str | None:
    device = next(vae.parameters()).device
    return None if device.type == "cuda" else f"the model is on {device}; Triton kernels need a CUDA device"
