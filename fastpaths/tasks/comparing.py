"""Whether two results are the same bits: structure, dtype, shape, strides and every bit pattern, NaNs included.

A result is what its type says and nothing else: a subclass of a tensor or of a tuple can answer as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(found: Any, expected: Any, *, same_strides: bool, name: str = "the result") -> str | None:
    """What differs, in one sentence, or None."""
    if isinstance(expected, tuple | list):
        if type(found) not in (tuple, list) or len(found) != len(expected):
            return f"{name} is a {type(found).__name__}; {len(expected)} results were expected"
        parts = enumerate(zip(found, expected, strict=True))
        said = (difference(*pair, same_strides=same_strides, name=f"{name} {place}") for place, pair in parts)
        return next((one for one in said if one is not None), None)
    if not isinstance(expected, torch.Tensor):
        return (
            None
            if type(found) is type(expected) and found == expected
            else f"{name} is {found!r}, and {expected!r} was expected"
        )
    if type(found) is not torch.Tensor:
        return f"{name} is a {type(found).__name__}, and a plain tensor was expected"
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        seen, wanted = ([*tensor.shape] for tensor in (found, expected))
        return f"{name} is {seen} {found.dtype}, and {wanted} {expected.dtype} was expected"
    if same_strides and _steps(found) != _steps(expected):
        return f"{name} has strides {list(found.stride())}, and {list(expected.stride())} were expected"
    return _other_bits(found, expected, name)


def _other_bits(found: torch.Tensor, expected: torch.Tensor, name: str) -> str | None:
    differs = bits(found) != bits(expected)
    number = int(differs.sum())
    if number == 0:
        return None
    first = [int(index) for index in differs.nonzero()[0]][: found.ndim]
    seen, wanted = (tensor[tuple(first)].item() for tensor in (found, expected))
    share = number / max(differs.numel(), 1)
    return f"{share:.4%} of the values of {name} differ, first at {first}: {seen!r}, and {wanted!r} was expected"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bit patterns as integers, in a tensor of the same shape; a complex value as two."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype == torch.bool:
        return tensor
    return tensor.contiguous().view(WHOLE[tensor.element_size()])


def _steps(tensor: torch.Tensor) -> Sequence[int]:
    """Strides of the dimensions that have any."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
