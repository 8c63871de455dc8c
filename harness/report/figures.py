"""Figures of the HTML report: every run of a cell as a mark, its stages as bars. Tables hold their numbers too."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.campaign import CellAnalysis
from fuseproof.harness.analysis.runs import ARMS
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.number_format import MISSING, count, percent, seconds
from fuseproof.harness.report.document import Bar, Bars, Details, Mark, Paragraph, Part, Strip, Table
from fuseproof.schedules.order import ArmLetter

MOST_STAGES = 10
MOST_CELLS_OPEN = 4
OTHER_STAGES = "other stages"
BEYOND = 0.15
"""How far outside the scale of the counting runs a mark may stand, as a share of its height."""
STAGES_HEAD = ("Stage", "Baseline s", "Candidate s", "Reduction")
STAGES_NOTE = (
    "Means over the counting runs of each arm, the longest stages first; a stage that one arm does not record is n/a "
    "there. Descriptive; no verdict."
)


def slot_strip(cell: CellAnalysis) -> Strip | None:
    """The primary times of all the cell's slots in the order they ran, those that do not count as hollow marks.

    The scale is that of the counting runs: a discarded warm-up slot beyond it stands at the edge.
    """
    primary = cell.primary
    if primary is None or primary.verdict is None:
        return None
    counted = {run.record.id for run in cell.runs.runs}
    timed = [(slot, time) for slot in cell.runs.slots if (time := getattr(slot.times, f"{primary.name}_s")) is not None]
    scale = [time for slot, time in timed if slot.id in counted]
    low, high = min(scale), max(scale)
    span = (high - low) or 1.0
    last = max(1, len(timed) - 1)
    marks = []
    for index, (slot, time) in enumerate(timed):
        height = min(max((time - low) / span, -BEYOND), 1.0 + BEYOND)
        is_counted = slot.id in counted
        note = "" if is_counted else f", does not count: {_why_not(slot)}"
        title = f"{slot.id}: {seconds(time)} s{note}"
        marks.append(Mark(round(index / last, 4), round(height, 4), slot.arm, title, is_counted))
    places = [(slot.block, slot.attempt) for slot, _ in timed]
    ends = [index for index in range(1, len(places)) if places[index] != places[index - 1]]
    separators = tuple(round((end - 0.5) / last, 4) for end in ends)
    untimed = len(cell.runs.slots) - len(timed)
    more = f" ({count(untimed, 'run')} without a time not drawn)" if untimed else ""
    title = f"{cell.name}, {primary.title}{more}"
    return Strip(title, tuple(marks), f"{seconds(low)} s", f"{seconds(high)} s", separators)


def _why_not(slot: SlotRecord) -> str:
    if slot.kind == "warmup":
        return "discarded warm-up"
    return slot.state if slot.reason_code is None else f"{slot.state}, {slot.reason_code}"


def stage_parts(cells: list[CellAnalysis]) -> list[Part]:
    """Bars and a table of the stages of each cell that recorded any, folded away where there are many cells."""
    found: list[Part] = []
    for cell in cells:
        means = {arm: _mean_stages(cell, arm) for arm in ARMS}
        if not any(means.values()):
            continue
        rows = _stage_rows(means)
        table = Table(
            STAGES_HEAD,
            tuple((name, seconds(a), seconds(b), _reduction(a, b)) for name, a, b in rows),
            numeric=range(1, len(STAGES_HEAD)),
        )
        parts = (_bars(f"{cell.name}, stages", rows, ("A", cell.runs.candidate)), table, Paragraph(STAGES_NOTE))
        found.append(Details(f"Stages of {cell.name}", parts, is_open=len(cells) <= MOST_CELLS_OPEN))
    return found


StageRow = tuple[str, float | None, float | None]


def _stage_rows(means: Mapping[ArmLetter, Mapping[str, float]]) -> list[StageRow]:
    baseline, candidate = means["A"], means["B"]
    names = list(dict.fromkeys([*baseline, *candidate]))
    longest = sorted(names, key=lambda name: -max(baseline.get(name, 0.0), candidate.get(name, 0.0)))
    rows: list[StageRow] = [(name, baseline.get(name), candidate.get(name)) for name in longest[:MOST_STAGES]]
    rest = longest[MOST_STAGES:]
    if rest:
        sums = [math.fsum(arm.get(name, 0.0) for name in rest) for arm in (baseline, candidate)]
        rows.append((f"{len(rest)} {OTHER_STAGES}", sums[0], sums[1]))
    return rows


def _mean_stages(cell: CellAnalysis, arm: ArmLetter) -> dict[str, float]:
    """Stage → mean seconds over an arm's counting runs; empty unless every run recorded its stages."""
    sums: dict[str, float] = {}
    runs = cell.runs.of_arm(arm)
    for run in runs:
        try:
            stages = {} if run.dump is None else run.dump.run_stages
        except FuseproofError:  # a damaged request in a dump draws nothing; its totals were read and judged
            stages = {}
        if not stages:
            return {}
        for name, duration_ms in stages.items():
            sums[name] = sums.get(name, 0.0) + duration_ms / 1000.0
    return {name: total / len(runs) for name, total in sums.items()}


def _bars(title: str, rows: list[StageRow], letters: tuple[ArmLetter, ArmLetter]) -> Bars:
    longest = max((value for row in rows for value in row[1:] if value is not None), default=0.0) or 1.0
    bars = tuple(
        Bar(name, arm, round((value or 0.0) / longest, 4), _told(value))
        for name, *times in rows
        for arm, value in zip(letters, times, strict=True)
    )
    return Bars(title, bars)


def _told(value: float | None) -> str:
    return MISSING if value is None else f"{seconds(value)} s"


def _reduction(baseline: float | None, candidate: float | None) -> str:
    if baseline is None or candidate is None or baseline <= 0:
        return MISSING
    return percent(1.0 - candidate / baseline).replace("%", " %")
