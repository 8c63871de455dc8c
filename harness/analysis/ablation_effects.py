"""The numbers of an ablation: effects in seconds saved, what they add up to, and what ran to make them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from fuseproof.harness.analysis.ablation_calls import UnitCalls
from fuseproof.harness.analysis.ablation_prediction import Prediction
from fuseproof.harness.analysis.metrics import TITLES

Finding = Literal["the whole", "not the whole", "unknown"]
LARGEST_MISSED = 0.25
"""Share of the whole that the interval of a difference may reach to before "they add up" would say nothing."""


@dataclass(frozen=True)
class Effect:
    """Time saved, positive where it is saved, with its 95 % interval; ``share`` is of the time without fast paths."""

    seconds: float
    interval_s: tuple[float, float]
    share: float
    interval: tuple[float, float]
    is_resolved: bool

    @property
    def half_width_s(self) -> float:
        return (self.interval_s[1] - self.interval_s[0]) / 2

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "saved_s": self.seconds,
            "interval_s": list(self.interval_s),
            "share": self.share,
            "interval": list(self.interval),
            "is_resolved": self.is_resolved,
        }


@dataclass(frozen=True)
class UnitEffects:
    """One unit: a fast path, or several that were switched together."""

    unit: str
    sites: tuple[str, ...]
    needs: tuple[str, ...]
    """Units that stand in both arms of its alone effect."""
    takes_along: tuple[str, ...]
    """Units that go with it where it is left out, because they need it."""
    alone: Effect | None
    left_out: Effect | None
    alone_of_group: Effect | None
    """The alone effects of the unit and of all that it takes along, summed; the same as ``alone`` without such."""
    interaction: Effect | None
    """Left out minus ``alone_of_group``."""
    calls: UnitCalls
    prediction: Prediction | None = None

    @property
    def measured(self) -> Effect | None:
        """What a prediction for the arm of all fast paths is held against: left out, else alone."""
        return self.left_out or self.alone

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        effects = ("alone", "left_out", "alone_of_group", "interaction")
        return {
            "unit": self.unit,
            "sites": list(self.sites),
            "needs": list(self.needs),
            "takes_along": list(self.takes_along),
            **{name: _effect_json(getattr(self, name)) for name in effects},
            "calls": asdict(self.calls),
            "prediction": None if self.prediction is None else self.prediction.to_json(),
        }


@dataclass(frozen=True)
class Total:
    """A sum of effects, and its difference from the whole with the interval of just that difference."""

    sum: Effect
    difference: Effect
    whole: Effect
    curved_s: float = 0.0
    """Seconds of the difference that curved drift may have made; infinite where no block could show it."""

    @property
    def finding(self) -> Finding:
        """Whether the parts are the whole; unknown where so much could be missing that it says nothing."""
        if self.difference.is_resolved:
            is_beyond = abs(self.difference.seconds) > self.difference.half_width_s + self.curved_s
            return "not the whole" if is_beyond else "unknown"
        could_miss = max(abs(bound) for bound in self.difference.interval_s)
        is_told = self.whole.is_resolved and could_miss <= LARGEST_MISSED * abs(self.whole.seconds)
        return "the whole" if is_told else "unknown"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {"sum": self.sum.to_json(), "difference": self.difference.to_json(), "finding": self.finding}


@dataclass(frozen=True)
class CellAblation:
    """One workload. ``no_numbers`` says why there are none; then ``whole`` and the units' effects are missing."""

    cell: str
    timer: str
    blocks: int
    no_numbers: str | None
    baseline_s: float | None = None
    whole_s: float | None = None
    scatter_s: float | None = None
    degrees_of_freedom: int | None = None
    is_widened: bool = False
    whole: Effect | None = None
    units: tuple[UnitEffects, ...] = ()
    alone: Total | None = None
    left_out: Total | None = None
    outside: tuple[str, ...] = ()
    """Sites that ran fused with all fast paths and belong to no unit."""
    other_outputs: tuple[str, ...] = ()
    """Arms whose outputs break the contract: their time is that of other pictures."""
    caps: tuple[str, ...] = ()
    """Codes of what keeps the verdicts of these runs from any word: a busy machine, a changed clock."""
    has_bench: bool = False
    curvature: str | None = None
    """What curved drift may do to the numbers, in a sentence."""
    bench_notes: tuple[str, ...] = ()
    """Why times of single kernels are not those of these runs."""

    @property
    def title(self) -> str:
        return TITLES[self.timer]

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "cell": self.cell,
            "timer": self.timer,
            "blocks": self.blocks,
            "no_numbers": self.no_numbers,
            "baseline_s": self.baseline_s,
            "whole_s": self.whole_s,
            "scatter_s": self.scatter_s,
            "degrees_of_freedom": self.degrees_of_freedom,
            "is_widened": self.is_widened,
            "whole": _effect_json(self.whole),
            "units": [unit.to_json() for unit in self.units],
            "alone": None if self.alone is None else self.alone.to_json(),
            "left_out": None if self.left_out is None else self.left_out.to_json(),
            "outside": list(self.outside),
            "other_outputs": list(self.other_outputs),
            "caps": list(self.caps),
        }


def _effect_json(effect: Effect | None) -> dict[str, Any] | None:
    return None if effect is None else effect.to_json()
