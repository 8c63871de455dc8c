"""Keys, distances and other people's words, as one short line that a log or a report can carry."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from typing import Any

import torch

from fuseproof.fastpaths.bits import BitDifference
from fuseproof.fastpaths.numerics import Numerics

LONGEST_TEXT = 300
ARGUMENTS_SHOWN = 6
LARGEST_ULP_SHOWN = 2**20
LARGEST_ROUNDING_ULP = 8
"""Beyond it, the value beside which so many ulp were counted is told: beside 0 an ulp is next to nothing."""


def key_text(key: Hashable) -> str:
    """A gate's key in words, shapes and dtypes: ``gelu_tanh, 1x768x256 bfloat16, 1e-06``; the rest is counted.

    The process's own settings, which every key of a rewrite holds, are left out.
    """
    parts = list(_key_parts(key))
    more = f" and {len(parts) - ARGUMENTS_SHOWN} more" if len(parts) > ARGUMENTS_SHOWN else ""
    return plain_text(", ".join(parts[:ARGUMENTS_SHOWN])) + more


def ulp_text(ulp: int) -> str:
    """A distance after "by": beyond a million, what counts is that it is no rounding."""
    return f"at most {ulp} ulp" if ulp <= LARGEST_ULP_SHOWN else "more than a million ulp"


def difference_text(difference: BitDifference, expected: str = "eager") -> str:
    """``25.0000% of the values differ, by at most 1 ulp and 2.4e-07 in value; relative error 6.4e-08``.

    ``expected`` names the side that the other is held against.
    """
    ulp = ulp_text(difference.largest_ulp)
    if difference.largest_ulp > LARGEST_ROUNDING_ULP:
        ulp += f" (where {expected} has {_number_text(difference.eager_at_largest_ulp)})"
    return (
        f"{difference.differing_share:.4%} of the values differ, by {ulp} and "
        f"{_number_text(difference.largest_absolute)} in value; "
        f"relative error {_number_text(difference.relative_error)}"
    )


def _number_text(value: float) -> str:
    return f"{value:.2g}" if math.isfinite(value) else "no finite number"


def plain_text(text: object) -> str:
    """One line of printable characters, shortened; what somebody else wrote may hold anything."""
    line = " ".join(str(text).split())
    shown = "".join(character if character.isprintable() else _escaped(character) for character in line)
    return shown if len(shown) <= LONGEST_TEXT else f"{shown[: LONGEST_TEXT - 3]}..."


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _key_parts(part: Any) -> Iterator[str]:
    if not isinstance(part, tuple) or isinstance(part, torch.Size):
        yield "x".join(map(str, part)) if isinstance(part, torch.Size) else str(part).removeprefix("torch.")
    elif part and isinstance(part[0], torch.Size):  # of one tensor: shape, strides, dtype, ...
        dtypes = [str(value).removeprefix("torch.") for value in part if isinstance(value, torch.dtype)]
        yield " ".join(["x".join(map(str, part[0])) or "scalar", *dtypes])
    elif not isinstance(part, Numerics):
        for inner in part:
            yield from _key_parts(inner)
