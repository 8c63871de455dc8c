"""Comparing tensors by their bits: -0 is not +0, and two NaNs are equal only if their payloads are.

``torch.equal`` compares values, so it would pass a changed sign of zero and fail every NaN; neither is a statement
about bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class BitDifference:
    """How far two results are apart: ``differing_share`` of all elements (0..1), largest distance in ulp."""

    differing_share: float
    largest_ulp: int


def tensors_of(result: Any) -> Iterator[torch.Tensor]:
    """The tensors in a result: one tensor, or tuples and lists of them, in order."""
    if isinstance(result, torch.Tensor):
        yield result
        return
    if not isinstance(result, tuple | list):
        raise TypeError(f"a fast path returns tensors or tuples of them, not {type(result).__name__}")
    for part in result:
        yield from tensors_of(part)


def layout_mismatch(left: Any, right: Any) -> str | None:
    """Why two results are not laid out alike (count, shape, dtype, device, strides), or None."""
    mismatch = value_mismatch(left, right)
    if mismatch is not None:
        return mismatch
    for a, b in zip(tensors_of(left), tensors_of(right), strict=True):
        if a.stride() != b.stride():
            return f"strides {a.stride()} against {b.stride()}"
    return None


def value_mismatch(left: Any, right: Any) -> str | None:
    """Why two results cannot have equal bits (count, shape, dtype, device), or None; strides are free."""
    lefts, rights = list(tensors_of(left)), list(tensors_of(right))
    if len(lefts) != len(rights):
        return f"{len(lefts)} tensors against {len(rights)}"
    for a, b in zip(lefts, rights, strict=True):
        for what in ("shape", "dtype", "device"):
            if getattr(a, what) != getattr(b, what):
                return f"{what} {getattr(a, what)} against {getattr(b, what)}"
    return None


def snapshot(result: Any) -> Any:
    """Copies of the tensors in a result, in the same nesting and with the same strides where they are dense."""
    if isinstance(result, torch.Tensor):
        return result.clone()
    return tuple(snapshot(part) for part in result)


def bits_equal(left: Any, right: Any) -> bool:
    """Whether two results of equal layout hold the same integer bit patterns. Synchronises with the device."""
    pairs = zip(tensors_of(left), tensors_of(right), strict=True)
    return all(bool(torch.equal(_as_integers(a), _as_integers(b))) for a, b in pairs)


def bit_difference(left: Any, right: Any) -> BitDifference:
    """Share of elements whose bits differ and the largest ulp distance, over all tensors of two results."""
    differing = total = largest = 0
    for a, b in zip(tensors_of(left), tensors_of(right), strict=True):
        x, y = _as_ordered(a), _as_ordered(b)
        distance = (x - y).abs()
        differing += int((_as_integers(a) != _as_integers(b)).sum())
        total += a.numel()
        largest = max(largest, int(distance.max()) if distance.numel() else 0)
    return BitDifference(differing / total if total else 0.0, largest)


def _as_integers(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.detach().contiguous().view(_INTEGER_OF_SIZE[plain.element_size()])


def _as_ordered(tensor: torch.Tensor) -> torch.Tensor:
    """Map sign-magnitude bit patterns to integers whose difference counts representable values in between."""
    integers = _as_integers(tensor)
    lowest = torch.iinfo(integers.dtype).min
    wide = integers.to(torch.int64)
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return wide
    return torch.where(wide < 0, torch.tensor(lowest, dtype=torch.int64, device=wide.device) - wide, wide)
