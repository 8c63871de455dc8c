"""What one watched call was given and gave, as digests: made in the arm's process, compared outside of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BEFORE_LOOP = "before the loop"
AFTER_LOOP = "after the loop"
ROW_DIMENSIONS = 3
"""Up to [B, S, D] a digest's row is the last dimension; of pictures and clips it is the last two, [..., H, W]."""


@dataclass(frozen=True)
class TensorFact:
    """One tensor: where it stood, its layout, and its two digests (None: its memory could not be read)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    ordered: str | None
    unordered: str | None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TensorFact:
        return cls(values["name"], tuple(values["shape"]), values["dtype"], values["ordered"], values["unordered"])

    @property
    def layout(self) -> tuple[tuple[int, ...], str]:
        return self.shape, self.dtype

    @property
    def rows(self) -> int:
        count = 1
        for side in self.shape[:-1]:
            count *= side
        return count


@dataclass(frozen=True)
class Call:
    """One call of a module, of a gated operation, of a rewritten block, or of what steps the latents.

    ``label`` names it, ``forward`` is the denoiser's call in this region that it belongs to (from 1, 0: none yet), and
    ``number`` the how-manieth call of that label therein (from 1). ``entered`` and ``left`` count all calls of the
    region as they begin and end; ``parent`` is the ``entered`` of the call around it. ``inputs`` is None where nobody
    can tell them. ``gates`` are the fast paths that this very call went through.
    """

    label: str
    kind: str
    type: str
    region: str
    forward: int
    number: int
    entered: int
    left: int
    parent: int | None
    inputs: tuple[TensorFact, ...] | None
    outputs: tuple[TensorFact, ...]
    gates: tuple[Mapping[str, Any], ...] = field(default=())

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Call:
        inputs = values["inputs"]
        return cls(
            **{
                **values,
                "inputs": None if inputs is None else _facts(inputs),
                "outputs": _facts(values["outputs"]),
                "gates": tuple(values["gates"]),
            }
        )

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Under which the same call of the other arm is found."""
        return self.region, self.label, self.forward, self.number


def in_hexadecimal(number: int) -> str:
    """One of a digest's two numbers, as it is written down."""
    return f"{number & (2**64 - 1):016x}"


def sum_of(unordered: Sequence[str]) -> str:
    """The ``unordered`` digest of several tensors' rows together."""
    return in_hexadecimal(sum(int(text, 16) for text in unordered))


def _facts(values: Sequence[Mapping[str, Any]]) -> tuple[TensorFact, ...]:
    return tuple(TensorFact.from_json(one) for one in values)
