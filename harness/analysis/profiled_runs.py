"""Runs of a campaign that a profiler watched: a cell that has any has no ratio."""

from __future__ import annotations

from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns
from fuseproof.harness.number_format import count
from fuseproof.harness.perf import profiled_runs
from fuseproof.harness.statistics.reasons import Reason


def runs_under_a_profiler(cell: CellRuns) -> tuple[Reason, ...]:
    """One reason for each arm with such runs."""
    found = []
    for arm in ARMS:
        runs = cell.of_arm(arm)
        watched = sum(run.dump is not None and profiled_runs.is_profiled(run.dump) for run in runs)
        if watched:
            who = f"{watched} of {count(len(runs), f'{ARM_WORDS[arm]} run')}"
            found.append(Reason(profiled_runs.CODE, f"{who} {profiled_runs.MANY_TEXT}", profiled_runs.NEXT_STEP))
    return tuple(found)
