"""The attention of ERNIE-Image's blocks: its mask made the additive one that torch wants, once a forward.

Site: attention_bias
Formula: ``softmax(q k^T / sqrt(d) + bias) v``, bias 0 where the mask is true and -65504 elsewhere.
Shapes: mask [B, 1, 1, S] bool -> bias [B, 1, 1, S] in the dtype of query [B, S, H, d].
Rounds: where eager does; the same attention kernel runs.
Replaces: what torch's ``scaled_dot_product_attention`` does with a boolean mask in every layer: turn it into an
    additive one, in four launches.
Exact: where the gate says so, by shape. torch adds -65504 or -inf, by version and backend; the exponential of either is
    0 beside a picture's rows, which no mask hides.
Declines: attention backends other than ``native``: they read the boolean mask in ways of their own.
Bytes: next to none; what goes are launches. Written out for every query, [B, 1, S, S], the additive mask was read 29 %
    more slowly by the same kernel on an H200 (S 4352): broadcast, it costs nothing.
Check first: if the trace shows ``FillFunctor`` and ``where`` beside each attention, read the site's reason.
Source: aten/src/ATen/native/transformers/attention.cpp and cuda/attention.cu.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.sites.attention import attend, backend_of

BACKEND = "native"
HIDDEN = -65504.0
"""What is added where the mask is false: far enough below any score that its exponential is 0 in every dtype."""


class MaskedAttention:
    """``attend`` with the mask of one forward; ``gate`` is that of ``attention_bias``, None: the mask as it is."""

    def __init__(self, gate: Gate | None) -> None:
        self._gate = gate

    def bias(self, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """The additive form of ``mask``, for all layers of a forward; None where the site is off."""
        if self._gate is None:
            return None
        return torch.where(mask, 0.0, HIDDEN).to(dtype)

    def __call__(
        self,
        attention: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        bias: torch.Tensor | None,
        numerics: Hashable,
    ) -> torch.Tensor:
        """[B, S, H, head_dim] three times -> [B, S, D]. ``bias`` is ``mask``'s; without a mask it is not used."""

        def eager() -> torch.Tensor:
            return attend(attention, query, key, value, mask)

        if self._gate is None or mask is None or bias is None:
            return eager()
        backend = backend_of(attention)
        if backend != BACKEND:
            return self._gate.decline(f"the attention backend is {backend}; the additive mask needs {BACKEND}", eager)
        parts = map(signature, (query, key, value, mask, bias))
        attended: torch.Tensor = self._gate.run(
            ("attention_bias", *parts, numerics), lambda: attend(attention, query, key, value, bias), eager
        )
        return attended
