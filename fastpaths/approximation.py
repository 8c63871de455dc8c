"""The gate of an approximate site: quality permits the difference, so it is measured and reported, not forbidden.

First sight runs the approximate and the exact form, as a :class:`Gate` does, and keeps how far apart they are: share of
differing bits, largest distance in ulp, relative error. Two things are still enforced: the result is finite, and its
relative error stays under the site's limit, beyond which it is not the same computation any more, unless all of it is
less than the resolution of the result's dtype. A key that fails either is rejected with its reason, and the exact form
runs.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from fuseproof.fastpaths.bits import bit_difference, larger, tensors_of
from fuseproof.fastpaths.gates import Gate, GateMode


@dataclass(frozen=True)
class Deviation:
    """How far an approximate result is from the exact one.

    ``relative_error`` is the 2-norm of the difference over that of what was computed: of the change, where the result
    is an update in place (a block adds to its stream, and a large stream would hide any error), else of the result.
    ``error_of_result`` is of the result in either case.
    """

    differing_share: float
    largest_ulp: int
    relative_error: float
    error_of_result: float

    def __str__(self) -> str:
        return (
            f"{self.differing_share:.2%} of the values differ from the exact form's, "
            f"by at most {self.largest_ulp} ulp, relative error {self.relative_error:.2g}"
        )

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values: an error that is no number (only observed results can have one) is None."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}

    def worst(self, other: Deviation | None) -> Deviation:
        """The larger of each number; what is no number is the worst."""
        if other is None:
            return self
        mine, theirs = asdict(self), asdict(other)
        return Deviation(**{name: larger(mine[name], theirs[name]) for name in mine})


class ApproximateGate(Gate):
    """Decides, key by key, whether an approximate form may run; ``deviation`` is the worst one seen.

    No certificate applies to it: a certificate says that bits are equal.
    """

    def __init__(
        self,
        site: str,
        mode: GateMode = GateMode.ENFORCE,
        *,
        quality: str,
        largest_error: float,
        verifies_every_call: bool = False,
    ) -> None:
        super().__init__(site, mode, verifies_every_call=verifies_every_call)
        self.quality = quality
        self.largest_error = largest_error
        self.deviation: Deviation | None = None

    def verified_key_texts(self) -> frozenset[str]:
        """None: nothing here was seen to be exact."""
        return frozenset()

    def _disagree(
        self, key: Hashable, candidate: Any, expected: Any, mismatch: str | None, before: Sequence[torch.Tensor] = ()
    ) -> Any:
        if mismatch is not None:
            return super()._disagree(key, candidate, expected, mismatch, before)
        found = deviation_of(candidate, expected, before)
        reason = self._objection(candidate, found)
        if self.mode is GateMode.ENFORCE:
            if reason is not None:
                self._verified.discard(key)
                return self._reject(key, reason, expected)
            self._verified.add(key)
        self.deviation = found.worst(self.deviation)
        self.calls_fused += 1
        return candidate

    def _objection(self, candidate: Any, found: Deviation) -> str | None:
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors_of(candidate)):
            return "the approximate result is not finite"
        resolution = max(torch.finfo(tensor.dtype).eps for tensor in tensors_of(candidate))
        if not (found.relative_error <= self.largest_error or found.error_of_result <= resolution):
            limit = f"{self.site} is trusted up to {self.largest_error:g}"
            return f"too far from the exact form: relative error {found.relative_error:.3g}, {limit}"
        return None


def deviation_of(candidate: Any, expected: Any, before: Sequence[torch.Tensor] = ()) -> Deviation:
    """How far ``candidate`` is from ``expected``; ``before`` is what both started from, where they update it."""
    difference = bit_difference(candidate, expected)
    computed = list(tensors_of(expected))
    is_update = [tensor.shape for tensor in before] == [tensor.shape for tensor in computed]
    size = _distance(computed, [torch.zeros_like(tensor) for tensor in computed])
    change = _distance(computed, before) if is_update else size
    error = _distance(list(tensors_of(candidate)), computed)
    return Deviation(difference.differing_share, difference.largest_ulp, _share(error, change), _share(error, size))


def _share(error: float, whole: float) -> float:
    if whole == 0:
        return 0.0 if error == 0 else math.inf
    return error / whole


def _distance(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """The 2-norm of the difference, in fp64."""
    pairs = zip(tensors, others, strict=True)
    return float(sum(float((a.double() - b.double()).square().sum()) for a, b in pairs) ** 0.5)
