"""Peak memory of the two arms, in GiB, and one sentence that claims no more than it may.

Device memory counts twice, as allocated and as reserved, and a claim needs both to agree in sign. Without a device the
process's peak resident memory stands alone, and a change within the spread of one arm's own runs is no change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.analysis.runs import ARMS, CellRuns
from fuseproof.harness.campaign.records import SlotMemory
from fuseproof.harness.number_format import MIB_PER_GIB, gib_change
from fuseproof.harness.perf.memory import Agreement, memory_claim

KINDS: tuple[tuple[str, str, Callable[[SlotMemory], float | None]], ...] = (
    ("reserved", "Peak reserved", lambda memory: memory.peak_reserved_mib),
    ("allocated", "Peak allocated", lambda memory: memory.peak_allocated_mib),
    ("host RSS", "Peak RSS (host)", lambda memory: memory.peak_rss_mib),
    ("load", "Load peak", lambda memory: memory.load_peak_mib),
    ("warm-up", "Warm-up peak", lambda memory: memory.warmup_peak_mib),
)
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


def check_memory(cell: CellRuns) -> MemoryCheck:
    """Compare the peaks of a cell's counting runs; a kind that a run lacks is left out."""
    rows = tuple(row for kind, title, read in KINDS if (row := _row(cell, kind, title, read)) is not None)
    claimable = [row for row in rows if row.kind in CLAIM_KINDS]
    claim = memory_claim(
        {row.kind: row.baseline_mib / MIB_PER_GIB for row in claimable},
        {row.kind: row.candidate_mib / MIB_PER_GIB for row in claimable},
    )
    host = next((row for row in claimable if row.kind == "host RSS"), None)
    has_device = any(row.kind != "host RSS" for row in claimable)
    if host and not has_device and 0 < abs(host.change_mib) <= host.same_arm_spread_mib:
        spread = gib_change(host.same_arm_spread_mib).removeprefix("+")
        change = gib_change(host.change_mib)
        sentence = f"Memory: unchanged: peak RSS {change}, within the {spread} by which one arm's own runs differ."
        return MemoryCheck(rows, "unchanged", sentence)
    return MemoryCheck(rows, claim.agreement, claim.sentence)


def _row(cell: CellRuns, kind: str, title: str, read: Callable[[SlotMemory], float | None]) -> MemoryRow | None:
    arms = []
    for arm in ARMS:
        values = [read(run.record.memory) for run in cell.of_arm(arm)]
        known = [value for value in values if value is not None]
        if not known or len(known) != len(values):
            return None
        arms.append(known)
    baseline, candidate = arms
    return MemoryRow(
        kind=kind,
        title=title,
        baseline_mib=sum(baseline) / len(baseline),
        candidate_mib=sum(candidate) / len(candidate),
        baseline_largest_mib=max(baseline),
        candidate_largest_mib=max(candidate),
        same_arm_spread_mib=max(max(values) - min(values) for values in arms),
    )
