"""Cells read against each other, where the plan says so: ``reference = "lossless"`` in the cell ``high``.

The candidates of both cells are compared: what the mode or quality itself is worth, beside what the arms are. The two
cells ran one after the other and not in A-B-B-A order, so the runs are unpaired and drift between the cells is in the
number: it describes, and never becomes a verdict. The interval is Welch's on the logarithms of the times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.harness.analysis.caveats import no_quality_evidence_text
from fuseproof.harness.analysis.equal_work import unequal_between
from fuseproof.harness.analysis.metrics import TITLES, seconds_of
from fuseproof.harness.analysis.output_check import LEVEL_TITLES, LEVELS
from fuseproof.harness.analysis.output_pairs import ComparedPair, compare_runs
from fuseproof.harness.analysis.runs import CellRuns, Run
from fuseproof.schedules.contracts import parse_contract

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CellAnalysis

TIMERS = ("worker", "denoise", "client")
DESCRIPTIVE = "descriptive: unpaired runs of two cells that ran one after the other"


@dataclass(frozen=True)
class TimerBetween:
    """One timer over two cells, in geometric means; ``no_interval`` says why there is no interval."""

    timer: str
    reference_s: float
    cell_s: float
    reduction: float
    """1 - cell / reference of the geometric means: positive where the cell takes less time."""
    interval: tuple[float, float] | None
    """95 %, Welch's t on log times, as reductions."""
    runs: tuple[int, int]
    no_interval: str | None = None

    @property
    def title(self) -> str:
        return TITLES[self.timer]


@dataclass(frozen=True)
class CellPair:
    """One cell against its reference, candidate against candidate."""

    cell: str
    reference: str
    timers: tuple[TimerBetween, ...]
    no_ratio: str | None
    """Why there is no ratio."""
    same_level: str | None
    """The level at which all outputs of both cells are the same (raw arrays, ...); None where they differ."""
    worst: ComparedPair | None
    no_outputs: str | None
    no_evidence: str | None

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "cell": self.cell,
            "reference": self.reference,
            "note": DESCRIPTIVE,
            "timers": [asdict(timer) for timer in self.timers],
            "no_ratio": self.no_ratio,
            "same_level": self.same_level,
            "worst": None if self.worst is None else self.worst.to_json(),
            "no_outputs": self.no_outputs,
            "no_evidence": self.no_evidence,
        }


def compare_cells(cells: Sequence[CellAnalysis], directory: Path) -> tuple[CellPair, ...]:
    """Every cell that names a reference, against it; ``directory`` is the campaign folder."""
    by_place = {(cell.runs.cell.name, cell.runs.candidate): cell for cell in cells}
    return tuple(
        _pair(by_place[cell.runs.cell.reference, cell.runs.candidate], cell, directory)
        for cell in cells
        if cell.runs.cell.reference is not None
    )


def _pair(reference: CellAnalysis, cell: CellAnalysis, directory: Path) -> CellPair:
    firsts, others = reference.runs.of_arm("B"), cell.runs.of_arm("B")
    no_ratio = _no_ratio(reference, cell, firsts, others)
    timers = () if no_ratio else tuple(found for name in TIMERS if (found := _timer(name, firsts, others)) is not None)
    level, no_outputs = _same_level(firsts, others)
    worst = None
    if no_outputs is None and level is None:
        pairs, _ = compare_runs(firsts, others, directory, parse_contract("exact"))
        worst = pairs[0] if pairs else None
    return CellPair(
        cell=cell.name,
        reference=reference.name,
        timers=timers,
        no_ratio=no_ratio,
        same_level=level,
        worst=worst,
        no_outputs=no_outputs,
        no_evidence=_no_evidence(reference.runs, cell.runs),
    )


def _no_ratio(reference: CellAnalysis, cell: CellAnalysis, firsts: Sequence[Run], others: Sequence[Run]) -> str | None:
    for one in (reference, cell):
        if one.word.value == "INVALID":
            return f"{one.name} is INVALID"
    if not firsts or not others:
        return f"{(cell if firsts else reference).name} has no complete block"
    unequal = unequal_between(firsts[0], others[0])
    return f"unequal work: {'; '.join(unequal[:3])}" if unequal else None


def _timer(name: str, firsts: Sequence[Run], others: Sequence[Run]) -> TimerBetween | None:
    times = [[seconds_of(run, name) for run in runs] for runs in (firsts, others)]
    logs = [[math.log(value) for value in column if value is not None and value > 0] for column in times]
    if any(len(found) != len(column) for found, column in zip(logs, times, strict=True)):
        return None
    means = [math.fsum(column) / len(column) for column in logs]
    interval = _welch_interval(logs[0], logs[1])
    return TimerBetween(
        timer=name,
        reference_s=math.exp(means[0]),
        cell_s=math.exp(means[1]),
        reduction=-math.expm1(means[1] - means[0]),
        interval=interval,
        runs=(len(logs[0]), len(logs[1])),
        no_interval=None if interval is not None else _no_interval(logs[0], logs[1]) or "no interval: it has no end",
    )


def _welch_interval(firsts: Sequence[float], others: Sequence[float]) -> tuple[float, float] | None:
    """The reduction's 95 % interval; None where a cell has one run, or no run differs from another."""
    if _no_interval(firsts, others) is not None:
        return None
    from scipy.stats import ttest_ind

    bounds = ttest_ind(others, firsts, equal_var=False).confidence_interval(0.95)
    low, high = float(bounds.low), float(bounds.high)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    return -math.expm1(min(high, 700.0)), -math.expm1(low)


def _no_interval(firsts: Sequence[float], others: Sequence[float]) -> str | None:
    """Why two samples have no Welch interval; None where they have one."""
    if min(len(firsts), len(others)) < 2:
        return "no interval: a cell has one run"
    if len(set(firsts)) == 1 and len(set(others)) == 1:
        return "no interval: within each cell all runs took the same time"
    return None


def _same_level(firsts: Sequence[Run], others: Sequence[Run]) -> tuple[str | None, str | None]:
    """The deepest level at which all outputs agree, and why nothing was compared."""
    runs = (*firsts, *others)
    counts = {len(run.record.outputs) for run in runs}
    if not firsts or not others or counts in (set(), {0}):
        return None, "no outputs in both cells"
    if len(counts) > 1:
        return None, "the cells wrote different numbers of outputs"
    wanted = firsts[0].record.outputs
    for level, read in reversed(LEVELS):
        hashes = [[read(output) for output in run.record.outputs] for run in runs]
        if any(hash_ is None for row in hashes for hash_ in row):
            continue
        if all(row == [read(output) for output in wanted] for row in hashes):
            return LEVEL_TITLES[level], None
        if level == "pixels":
            break
    return None, None


def _no_evidence(reference: CellRuns, cell: CellRuns) -> str | None:
    return no_quality_evidence_text(cell) or no_quality_evidence_text(reference)
