"""Whether a result can show that two forms compute the same thing: zeros and NaNs agree whatever was computed."""

from __future__ import annotations

from typing import Any

import torch

from fuseproof.fastpaths.bits import tensors_of

NOT_FINITE = "eager's result is not finite, which shows nothing: left undecided"
CONSTANT = "eager's result is one value throughout, which shows nothing: left undecided"
COMPARED_AS_THEY_ARE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def untelling_because(result: Any) -> str | None:
    """Why equal bits of ``result`` prove nothing, or None. One pass over each tensor; synchronises with the device.

    Every floating-point tensor must be finite, and one of them must hold two values, unless none is larger than one
    value. Integers are not judged.
    """
    varying = []
    for tensor in tensors_of(result):
        if tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        low, high = torch.aminmax(
            values if values.dtype in COMPARED_AS_THEY_ARE else values.float()
        )  # NaN goes through
        if not bool(low.isfinite() & high.isfinite()):
            return NOT_FINITE
        if tensor.numel() > 1:
            varying.append(bool(low != high))
    return CONSTANT if varying and not any(varying) else None
