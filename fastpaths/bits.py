"""Comparing tensors by their bits: -0 is not +0, and two NaNs are equal only if their payloads are.

``torch.equal`` compares values, so it would pass a changed sign of zero and fail every NaN; neither is a statement
about bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class BitDifference:
    """How far a result is from eager's.

    ``differing_share`` of all elements (0..1); ``largest_ulp``, the largest distance in ulp, and what eager's value is
    there: beside 0, neighbouring numbers lie so close that a small error is many ulp. ``largest_absolute`` difference
    of two values; ``relative_error``, the 2-norm of the difference over that of eager's result. A number that a value
    which is not finite leaves without meaning is NaN or infinite.
    """

    differing_share: float
    largest_ulp: int
    eager_at_largest_ulp: float = 0.0
    largest_absolute: float = 0.0
    relative_error: float = 0.0

    def worst(self, other: BitDifference | None) -> BitDifference:
        """The larger of each number; what is no number is the worst."""
        if other is None:
            return self
        farther = self if self.largest_ulp >= other.largest_ulp else other
        return BitDifference(
            max(self.differing_share, other.differing_share),
            farther.largest_ulp,
            farther.eager_at_largest_ulp,
            larger(self.largest_absolute, other.largest_absolute),
            larger(self.relative_error, other.relative_error),
        )

    def to_json(self) -> dict[str, float | int | None]:
        """Strict JSON values: what is no finite number is None."""
        return {name: value if math.isfinite(value) else None for name, value in dataclasses.asdict(self).items()}


def tensors_of(result: Any) -> Iterator[torch.Tensor]:
    """The tensors in a result, in order: one tensor, or tuples, lists, dictionaries and dataclasses of them.

    None, numbers and texts hold none; anything else is a :class:`TypeError`.
    """
    if isinstance(result, torch.Tensor):
        yield result
        return
    parts = parts_of(result)
    if parts is None and not isinstance(result, PLAIN):
        raise TypeError(f"a fast path returns tensors or tuples of them, not {type(result).__name__}")
    for _, part in parts or ():
        yield from tensors_of(part)


def parts_of(result: Any) -> list[tuple[Any, Any]] | None:
    """What a result is made of, each part with its name or its index; None for a leaf."""
    if isinstance(result, tuple | list):
        return list(enumerate(result))
    if isinstance(result, Mapping):
        return list(result.items())
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return [(one.name, getattr(result, one.name)) for one in dataclasses.fields(result)]
    return None


def structure_mismatch(left: Any, right: Any, place: str = "") -> str | None:
    """Why two results are not built alike, tensors aside: other types, lengths, names or plain values; or None."""
    both = f"{_kind(left)} against {_kind(right)}{place}"
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return None
    if type(left) is not type(right):
        return both
    lefts, rights = parts_of(left), parts_of(right)
    if lefts is None or rights is None:
        if left is right or (isinstance(left, PLAIN) and repr(left) == repr(right)):
            return None
        return (
            f"{both}, which cannot be compared" if not isinstance(left, PLAIN) else f"{left!r} against {right!r}{place}"
        )
    if [name for name, _ in lefts] != [name for name, _ in rights]:
        names = " against ".join(f"{len(parts)} parts" for parts in (lefts, rights))
        return f"{names}{place}" if len(lefts) != len(rights) else f"other names{place}"
    pairs = zip(lefts, rights, strict=True)
    found = (structure_mismatch(a, b, f" in part {name}{place}") for (name, a), (_, b) in pairs)
    return next((mismatch for mismatch in found if mismatch is not None), None)


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


def larger(mine: Any, theirs: Any) -> Any:
    """The larger of two errors; what is no number is the larger one."""
    return mine if math.isnan(mine) or mine >= theirs else theirs


def bit_difference(result: Any, eager: Any) -> BitDifference:
    """How far all tensors of a result are from those of eager's, together."""
    differing = total = largest = 0
    there = absolute = squared_error = squared_size = 0.0
    for a, b in zip(tensors_of(result), tensors_of(eager), strict=True):
        if not a.numel():
            continue
        differs = _as_integers(a) != _as_integers(b)
        total += differs.numel()
        differing += int(differs.sum())
        distance = (_as_ordered(a) - _as_ordered(b)).abs().flatten()
        values, expected = _as_doubles(a), _as_doubles(b)
        error = torch.where(differs, values - expected, 0.0).abs()
        place = int(distance.argmax())
        if int(distance[place]) > largest:
            largest, there = int(distance[place]), float(expected.flatten()[place])
        absolute = larger(float(error.max()), absolute)
        squared_error += float(error.square().sum())
        squared_size += float(expected.square().sum())
    share = differing / total if total else 0.0
    return BitDifference(share, largest, there, absolute, _relative(squared_error, squared_size))


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _relative(squared_error: float, squared_size: float) -> float:
    """The ratio of two 2-norms; no number where eager's own is none."""
    if not math.isfinite(squared_size):
        return math.nan
    if squared_size == 0:
        return 0.0 if squared_error == 0 else math.inf
    return math.sqrt(squared_error / squared_size)


def _as_doubles(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.detach().double()


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
