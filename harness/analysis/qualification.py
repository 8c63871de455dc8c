"""Does every block of a cell, on its own, reach what the plan asks of it? ``worker>=1.5%`` in each, not on average.

The mean reduction 1 - mean(B) / mean(A) of each block is what pull requests print and what is held against the
smallest value asked for; no run is left out. A cell that lacks a planned block, a timer, or a valid comparison does not
qualify, whatever the rest shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.analysis.metrics import NOT_RECORDED, MetricResult
from fuseproof.harness.analysis.runs import CellRuns
from fuseproof.harness.number_format import number
from fuseproof.schedules.qualification import Requirement

MOST_SHORTFALLS = 3


@dataclass(frozen=True)
class TimerQualification:
    """One requirement: the mean reduction of every block as a share, and in which blocks it is too small."""

    requirement: str
    timer: str
    minimum: float
    blocks: tuple[tuple[int, float], ...]
    """Number of the block (from 1) and its mean reduction; empty where the timer has none."""
    shortfalls: tuple[str, ...]

    @property
    def is_met(self) -> bool:
        return not self.shortfalls


@dataclass(frozen=True)
class Qualification:
    """One cell. ``timers`` is empty when the plan asks for nothing."""

    timers: tuple[TimerQualification, ...] = ()
    not_judged: str | None = None
    """Why the blocks were not held against the requirements: a reader chose some of them."""

    @property
    def is_asked(self) -> bool:
        return bool(self.timers)

    @property
    def is_qualified(self) -> bool:
        """Whether all of it is met; False where nothing is asked or nothing was judged."""
        return self.is_asked and self.not_judged is None and all(timer.is_met for timer in self.timers)

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """Every distinct shortfall, in the order of the requirements."""
        return tuple(dict.fromkeys(text for timer in self.timers for text in timer.shortfalls))

    @property
    def sentence(self) -> str:
        """``qualified: worker>=1.5% in every block``, or ``not qualified, because block 2 client 0.90 % < 1.5 %``."""
        asked = ", ".join(timer.requirement for timer in self.timers)
        if self.not_judged is not None:
            return f"qualification not judged ({asked}): {self.not_judged}"
        if self.is_qualified:
            return f"qualified: {asked} in every block"
        met = [timer.requirement for timer in self.timers if timer.is_met]
        also = f" ({', '.join(met)} {'is' if len(met) == 1 else 'are'} met in every block)" if met else ""
        return f"not qualified, because {self.because}{also}"

    @property
    def because(self) -> str:
        """The first shortfalls, and how many there are beyond them."""
        shown, hidden = self.shortfalls[:MOST_SHORTFALLS], len(self.shortfalls) - MOST_SHORTFALLS
        return "; ".join(shown) + (f"; {hidden} more" if hidden > 0 else "")

    def to_json(self) -> dict[str, Any] | None:
        """Strict JSON values; None when the plan asks for nothing."""
        if not self.is_asked:
            return None
        return {
            "is_qualified": self.is_qualified,
            "not_judged": self.not_judged,
            "timers": [asdict(timer) | {"is_met": timer.is_met} for timer in self.timers],
        }


def qualify(runs: CellRuns, metrics: Sequence[MetricResult], requirements: Sequence[Requirement]) -> Qualification:
    """Hold every block of a cell against the plan's requirements; ``metrics`` is empty for a cell without a ratio."""
    by_name = {metric.name: metric for metric in metrics}
    is_invalid = bool(runs.blocks) and not metrics
    timers = tuple(
        _timer(runs, by_name.get(requirement.timer), requirement, is_invalid=is_invalid) for requirement in requirements
    )
    chosen = "the reader chose some of the blocks" if runs.omitted else None
    return Qualification(timers, chosen if requirements else None)


def _missing(runs: CellRuns, metric: MetricResult | None, timer: str, *, is_invalid: bool) -> str:
    """Why a timer has no blocks to hold against a requirement."""
    if not runs.blocks:
        return f"{timer}: no block is complete"
    if is_invalid:
        return f"{timer}: the cell is INVALID, so no block of it has a ratio"
    return f"{timer} has no ratio: {metric.note if metric is not None and metric.note else NOT_RECORDED}"


def _timer(
    runs: CellRuns, metric: MetricResult | None, requirement: Requirement, *, is_invalid: bool
) -> TimerQualification:
    comparison = None if metric is None or metric.verdict is None else metric.verdict.comparison
    if comparison is None:
        why = _missing(runs, metric, requirement.timer, is_invalid=is_invalid)
        return TimerQualification(str(requirement), requirement.timer, requirement.minimum, (), (why,))
    found = tuple(
        (block.number, numbers.mean_reduction) for block, numbers in zip(runs.blocks, comparison.blocks, strict=True)
    )
    lost = tuple(f"block {block.number} is not complete" for block in runs.lost)
    small = tuple(
        f"block {index} {requirement.timer} {_below(reduction, requirement.minimum)}"
        for index, reduction in found
        if not reduction >= requirement.minimum
    )
    return TimerQualification(str(requirement), requirement.timer, requirement.minimum, found, (*small, *lost))


def _below(reduction: float, minimum: float) -> str:
    """``0.90 % < 1.5 %``, with as many digits as it takes not to read as enough."""
    digits = next((digits for digits in range(2, 12) if round(100 * reduction, digits) < 100 * minimum), 12)
    return f"{number(100 * reduction, digits)} % < {100 * minimum:g} %"
