"""Which sizes a family can make, and the nearest one to any other. Pure; torch-free. All lengths are pixels."""

from __future__ import annotations

import math

from fuseproof.errors import UsageError
from fuseproof.pipelines.family import Family


def refuse_size(width: int, height: int, family: Family) -> None:
    """Raise a UsageError for a size that ``family`` cannot make: sides and their product, with the one to take."""
    nearest = nearest_canvas(width, height, family)
    if nearest == (width, height):
        return
    sides = (("width", width, nearest[0]), ("height", height, nearest[1]))
    wrong = [f"{name} {side} ({_nearest_text(side, family)})" for name, side, _ in sides if _is_wrong(side, family)]
    what = " and ".join(wrong) or f"{width}x{height} ({width * height:,} pixels)"
    square = math.isqrt(family.maximum_pixels)
    raise UsageError(
        f"{family.title} cannot make {what}: each side must be a multiple of {family.size_multiple} from "
        f"{family.minimum_side} to {family.maximum_side}, and both together at most {family.maximum_pixels:,} pixels "
        f"({square}x{square}).",
        next_step=f"Use {' '.join(f'--{name} {after}' for name, side, after in sides if side != after)}.",
    )


def nearest_sizes(side: int, family: Family) -> tuple[int, ...]:
    """The valid lengths next to ``side`` (in pixels): one or two, ascending."""
    multiple = family.size_multiple
    below = side // multiple * multiple
    nearest = {min(max(candidate, family.minimum_side), family.maximum_side) for candidate in (below, below + multiple)}
    return tuple(sorted(nearest))


def nearest_canvas(width: int, height: int, family: Family) -> tuple[int, int]:
    """The valid size most like ``width`` x ``height`` (pixels): itself where it is one.

    Each side goes to the nearest length, the smaller of two as near; what is then too many pixels shrinks on both sides
    alike, as far as the shortest side allows.
    """
    sides = [_nearest_side(side, family) for side in (width, height)]
    if sides[0] * sides[1] <= family.maximum_pixels:
        return sides[0], sides[1]
    shrunk = math.sqrt(family.maximum_pixels / (sides[0] * sides[1]))
    shorter = max(_side_below(min(sides) * shrunk, family), family.minimum_side)
    longer = _side_below(min(max(sides) * shrunk, family.maximum_pixels / shorter), family)
    return (longer, shorter) if sides[0] >= sides[1] else (shorter, longer)


def _is_wrong(side: int, family: Family) -> bool:
    return _nearest_side(side, family) != side


def _nearest_text(side: int, family: Family) -> str:
    nearest = nearest_sizes(side, family)
    return f"the nearest {'is' if len(nearest) == 1 else 'are'} {' and '.join(map(str, nearest))}"


def _nearest_side(side: int, family: Family) -> int:
    return min(nearest_sizes(side, family), key=lambda candidate: (abs(candidate - side), candidate))


def _side_below(side: float, family: Family) -> int:
    return int(side) // family.size_multiple * family.size_multiple
