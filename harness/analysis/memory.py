"""Peak memory of the two arms, in GiB, and one sentence that claims no more than it may.

What is claimed follows the rule of :mod:`fuseproof.harness.perf.memory`; here it is given the means of each arm's runs
and the spread of one arm's own runs. A peak beyond what the machine can hold is shown as not believable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.analysis.judged_cards import JudgedCards, judged_cards
from fuseproof.harness.analysis.runs import ARMS, CellRuns
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.number_format import MIB_PER_GIB, gib
from fuseproof.harness.perf.memory import Agreement, memory_claim

Reader = Callable[[SlotRecord, JudgedCards], float | None]
"""Reads one kind of a slot's memory in MiB; None where the slot does not tell it."""


def _recorded(field: str) -> Reader:
    """Reads a field of the slot's own ``memory``."""
    return lambda record, _: getattr(record.memory, field)


def _device_used_mib(phase: str | None, *, is_sum: bool = False) -> Reader:
    """Reads what NVML saw in use on the cell's judged cards: the largest, or their sum where there are several.

    ``phase`` None is the whole slot; a slot that does not tell its phases has no request of its own.
    """

    def read(record: SlotRecord, cards: JudgedCards) -> float | None:
        peaks = []
        for card in cards.of(record):
            found = [seen.memory_used_peak_mib for name, seen in card.phases.items() if phase in (None, name)]
            known = [value for value in found if value is not None]
            if not known:
                return None
            peaks.append(max(known))
        if is_sum:
            return math.fsum(peaks) if len(peaks) > 1 else None
        return max(peaks, default=None)

    return read


KINDS: tuple[tuple[str, str, Reader], ...] = (
    ("reserved", "Peak reserved", _recorded("peak_reserved_mib")),
    ("allocated", "Peak allocated", _recorded("peak_allocated_mib")),
    ("reserved sum", "Peak reserved, sum over ranks", _recorded("reserved_sum_mib")),
    ("allocated sum", "Peak allocated, sum over ranks", _recorded("allocated_sum_mib")),
    ("device used", "Peak device used (NVML: torch's and all else)", _device_used_mib("request")),
    ("device used sum", "Peak device used, sum over GPUs", _device_used_mib("request", is_sum=True)),
    ("device used, slot", "Peak device used, whole slot (NVML)", _device_used_mib(None)),
    ("host RSS", "Peak RSS (host)", _recorded("peak_rss_mib")),
    ("load", "Load peak", _recorded("load_peak_mib")),
    ("warm-up", "Warm-up peak", _recorded("warmup_peak_mib")),
)
"""Kind, title, and where it stands. Of several ranks or cards the plain rows are the largest. What NVML sees of a
device holds torch's numbers and is never added to them."""
BELIEVABLE_FACTOR = 4
"""Shared pages are counted once a process, so that a sum may exceed the machine, but not by this much."""
LARGEST_MACHINE_MIB = 1024.0**3
CLAIM_KINDS = frozenset({"reserved", "allocated", "host RSS"})


@dataclass(frozen=True)
class MemoryRow:
    """One kind of memory, in MiB: mean and largest over each arm's runs, and the largest spread within one arm."""

    kind: str
    title: str
    baseline_mib: float
    candidate_mib: float
    baseline_largest_mib: float
    candidate_largest_mib: float
    same_arm_spread_mib: float
    is_believable: bool = True
    """Whether the machine can hold the largest of them at all."""

    @property
    def change_mib(self) -> float:
        return self.candidate_mib - self.baseline_mib


@dataclass(frozen=True)
class MemoryCheck:
    """All kinds both arms recorded, and what may be said about them."""

    rows: tuple[MemoryRow, ...]
    agreement: Agreement
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self)


NOT_COMPARED = MemoryCheck((), "unknown", "Memory: not compared, because the cell is INVALID.")


def check_memory(cell: CellRuns, environment: Mapping[str, Any] | None = None) -> MemoryCheck:
    """Compare the peaks of a cell's counting runs; a kind that a run lacks is left out.

    ``environment`` is the campaign's description of its machine: a peak that cannot be on it is shown, and nothing is
    claimed of it.
    """
    limit_mib = believable_limit_mib(environment or {})
    cards = judged_cards(cell)

    def row_of(kind: str, title: str, read: Reader) -> MemoryRow | None:
        return _row(cell, kind, title, lambda record: read(record, cards), limit_mib)

    rows = tuple(row for kind in KINDS if (row := row_of(*kind)) is not None)
    claimable = [row for row in rows if row.kind in CLAIM_KINDS and row.is_believable]
    claim = memory_claim(
        {row.kind: row.baseline_mib / MIB_PER_GIB for row in claimable},
        {row.kind: row.candidate_mib / MIB_PER_GIB for row in claimable},
        {row.kind: row.same_arm_spread_mib / MIB_PER_GIB for row in claimable},
    )
    doubted = [row for row in rows if not row.is_believable]
    if not doubted:
        return MemoryCheck(rows, claim.agreement, claim.sentence)
    names = ", ".join(f"{row.title[0].lower()}{row.title[1:]}" for row in doubted)
    largest = gib(max(max(row.baseline_largest_mib, row.candidate_largest_mib) for row in doubted), 2)
    machine = gib(limit_mib / BELIEVABLE_FACTOR, 2)
    doubt = f"{names} not believable (up to {largest} GiB on a machine with {machine} GiB), nothing is claimed of it"
    if not claimable:
        return MemoryCheck(rows, "unknown", f"Memory: {doubt}.")
    return MemoryCheck(rows, claim.agreement, f"{claim.sentence.rstrip('.')}; {doubt}.")


def believable_limit_mib(environment: Mapping[str, Any]) -> float:
    """Four times all memory that the machine describes, its GPUs included; a pebibyte where it describes none."""
    memory, gpus = environment.get("memory"), environment.get("gpus")
    found = [memory.get("total_mib")] if isinstance(memory, Mapping) else []
    if isinstance(gpus, list | tuple):
        found += [gpu.get("memory_total_mib") for gpu in gpus if isinstance(gpu, Mapping)]
    total_mib = sum(value for value in found if isinstance(value, int | float) and value > 0)
    return BELIEVABLE_FACTOR * total_mib if total_mib else LARGEST_MACHINE_MIB


def _row(
    cell: CellRuns, kind: str, title: str, read: Callable[[SlotRecord], float | None], limit_mib: float
) -> MemoryRow | None:
    arms = []
    for arm in ARMS:
        values = [read(run.record) for run in cell.of_arm(arm)]
        known = [value for value in values if value is not None]
        if not known or len(known) != len(values):
            return None
        arms.append(known)
    baseline, candidate = arms
    return MemoryRow(
        kind=kind,
        title=title,
        baseline_mib=math.fsum(baseline) / len(baseline),
        candidate_mib=math.fsum(candidate) / len(candidate),
        baseline_largest_mib=max(baseline),
        candidate_largest_mib=max(candidate),
        same_arm_spread_mib=max(max(values) - min(values) for values in arms),
        is_believable=max(*baseline, *candidate) <= limit_mib,
    )
