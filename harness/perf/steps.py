"""The denoise steps of one run as statistics: the steady ones, and which were left out."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fuseproof.harness.perf.dump import PerfDump

UNSTEADY_STEP_SHARE = 0.30
"""A leading step this far from the steady median was not synchronised (it timed the launch), or was cold."""


@dataclass(frozen=True)
class StepStatistics:
    """The denoise steps of request 0; the statistics leave out ``left_out_steps`` (indices from 0).

    These are the dump's own ``unsteady_steps``, and those of the dumps beside it with as many steps: means over
    different steps are not compared.
    """

    count: int
    unsteady_steps: tuple[int, ...]
    left_out_steps: tuple[int, ...]
    mean_ms: float
    median_ms: float
    minimum_ms: float
    maximum_ms: float


def steps_side_by_side(dumps: Sequence[PerfDump]) -> tuple[StepStatistics | None, ...]:
    """Every dump's step statistics, over the same steps wherever the dumps have equally many."""
    alone = [step_statistics(dump.denoise_steps_ms) for dump in dumps]
    counts = {entry.count for entry in alone if entry is not None}
    shared = max((len(entry.unsteady_steps) for entry in alone if entry is not None), default=0)
    return tuple(step_statistics(dump.denoise_steps_ms, shared if len(counts) == 1 else 0) for dump in dumps)


def step_statistics(steps_ms: Sequence[float], left_out: int = 0) -> StepStatistics | None:
    """Statistics of the steady denoise steps, without the first ``left_out`` ones in any case; None without steps.

    Without device synchronisation the first steps measure how long a launch took (904 and 31 ms before a steady 87),
    so leading steps that are far from the median of the second half are flagged and left out (two steps show nothing).
    The stage's own time is not touched by this.
    """
    if not steps_ms:
        return None
    half = len(steps_ms) // 2 if len(steps_ms) > 2 else 0
    reference_ms = statistics.median_low(steps_ms[half:])
    unsteady = 0
    while unsteady < half and abs(steps_ms[unsteady] - reference_ms) > UNSTEADY_STEP_SHARE * reference_ms:
        unsteady += 1
    first = max(unsteady, left_out)
    steady = steps_ms[first:]
    return StepStatistics(
        count=len(steps_ms),
        unsteady_steps=tuple(range(unsteady)),
        left_out_steps=tuple(range(first)),
        mean_ms=statistics.fmean(steady),
        median_ms=statistics.median(steady),
        minimum_ms=min(steady),
        maximum_ms=max(steady),
    )
