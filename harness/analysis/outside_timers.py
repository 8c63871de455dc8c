"""What an arm clearly pays or saves outside the timers: loading and warming up, which no word judges.

Both happen once a process. A kernel that compiles at its first sight, or a file that loads slowly, shows there alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fuseproof.harness.analysis.metrics import MetricResult
from fuseproof.harness.number_format import number, seconds
from fuseproof.harness.statistics.comparison import Comparison
from fuseproof.harness.statistics.reasons import Reason

CODE = "OUTSIDE_TIMERS"
OUTSIDE = ("load", "warmup")
SMALLEST_SHARE = 0.10
"""Of the baseline's time: less is not worth a line beside a verdict about something else."""
WHY_NOT_JUDGED = "outside every timer, once a process, so not judged"


def outside_timers(metrics: Sequence[MetricResult]) -> tuple[Reason, ...]:
    """One reason for each such timer in which the arms lie clearly apart; none where they do not."""
    return tuple(_reasons(metrics))


def _reasons(metrics: Sequence[MetricResult]) -> Iterable[Reason]:
    for metric in metrics:
        comparison = None if metric.verdict is None else metric.verdict.comparison
        if metric.name in OUTSIDE and comparison is not None and _is_clear(comparison):
            yield Reason(CODE, f"{metric.title}: {_change(comparison)}; {WHY_NOT_JUDGED}", _STEP)


_STEP = "Say it where a process serves few requests: loading, first sights, compilation and caches are in it."


def _is_clear(comparison: Comparison) -> bool:
    """Every run of one arm on one side, by more than runs of one arm differ and more than :data:`SMALLEST_SHARE`.

    Four runs of no effect lie apart by chance in a third of all blocks, so being apart alone says little.
    """
    apart = abs(comparison.mean_reduction)
    return comparison.arms_are_separated and apart > max(SMALLEST_SHARE, comparison.noise_floor)


def _change(comparison: Comparison) -> str:
    before, after = comparison.baseline.mean_s, comparison.candidate.mean_s
    side = "above" if after > before else "below"
    share = number(100 * (after / before - 1), 1, signed=True)
    return f"{seconds(before)} → {seconds(after)} s ({share} %), every candidate run {side} every baseline run"
