"""What memory eager would have an activation in, while ours lies channels-last: torch's sums depend on it.

diffusers' decoder changes layouts on its way: planes up to the attention, whose projection returns channels-last, and
planes again behind each doubling of frames, but not in the first chunk. No rule of ours says so. The eager form that
runs at first sight is given its inputs as eager would have them, and the strides of its results are noted for all later
calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_ATTRIBUTE = "_fuseproof_eager_stride"


def eager_stride(x: torch.Tensor) -> tuple[int, ...]:
    """The strides that eager would have this activation in: its own, unless a fused form noted others."""
    noted: tuple[int, ...] = getattr(x, _ATTRIBUTE, x.stride())
    return noted


def note(x: Any, stride: Sequence[int]) -> None:
    """Note what eager would have had; the note goes with this very object."""
    if isinstance(x, torch.Tensor):
        setattr(x, _ATTRIBUTE, tuple(stride))


def as_eager(x: Any) -> Any:
    """``x`` in the memory that eager would have it in; what is no tensor, as it is."""
    if not isinstance(x, torch.Tensor) or eager_stride(x) == x.stride():
        return x
    return torch.empty_strided(x.shape, eager_stride(x), dtype=x.dtype, device=x.device).copy_(x)


def is_last(x: torch.Tensor) -> bool:
    """Whether eager would have ``x`` channels-last, and not, or not only, in planes."""
    order = [stride for stride, size in zip(eager_stride(x), x.shape, strict=True) if size > 1]
    return x.shape[1] > 1 and eager_stride(x)[1] == 1 and min(order) == 1 and x[0, 0].numel() > 1
