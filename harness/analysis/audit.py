"""One line that accounts for every record in a campaign folder: which runs count, and why each other one does not.

Nothing that was ever started may drop out of sight: invalid and interrupted runs, blocks begun again, blocks beyond
those that were planned, and records of no cell at all are counted with their reasons, and the counts add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.number_format import count

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis
    from fuseproof.harness.analysis.runs import CellRuns

ACCEPTED = "accepted"
WARMUP = "discarded warm-up"
OMITTED = "left out by request"
UNFINISHED = "done but not counted"
STRAY = "of no cell of the plan"
ORDER = (
    ACCEPTED,
    WARMUP,
    "invalid",
    "interrupted",
    "superseded",
    "running",
    "absent",
    OMITTED,
    UNFINISHED,
    STRAY,
)


@dataclass(frozen=True)
class Audit:
    """Every record, by what became of it; ``reasons`` are the reason codes of the invalid ones, most frequent first."""

    records: int
    counts: Mapping[str, int]
    reasons: tuple[tuple[str, int], ...]
    repeated: tuple[str, ...]
    """Blocks begun more than once: ``panda block 2 (3 attempts)``."""
    added: tuple[str, ...]
    """Blocks beyond those the plan asks for: ``panda block 3``."""

    @property
    def line(self) -> str:
        """``56 records: 48 accepted, 8 invalid because TIMEOUT (7), OOM``."""
        parts = [f"{self.counts[what]} {self._named(what)}" for what in ORDER if self.counts.get(what)]
        return f"{count(self.records, 'record')}: {', '.join(parts) or 'none'}"

    @property
    def block_line(self) -> str:
        """Which blocks were begun again or added; empty when there is nothing to tell."""
        again = f"begun again: {', '.join(self.repeated)}" if self.repeated else ""
        added = f"beyond the planned blocks: {', '.join(self.added)}" if self.added else ""
        return "; ".join(text for text in (again, added) if text)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "records": self.records,
            "line": self.line,
            "counts": {what: self.counts[what] for what in ORDER if self.counts.get(what)},
            "reasons": dict(self.reasons),
            "blocks_begun_again": list(self.repeated),
            "blocks_beyond_the_plan": list(self.added),
        }

    def _named(self, what: str) -> str:
        if what != "invalid" or not self.reasons:
            return what
        codes = [code if amount == 1 else f"{code} ({amount})" for code, amount in self.reasons]
        return f"invalid because {', '.join(codes)}"


def audit(analysis: CampaignAnalysis) -> Audit:
    """Account for every record of the folder, once each."""
    found: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    known: set[str] = set()
    for runs in analysis.all_runs:
        counted = {run.record.id for run in runs.runs}
        for slot in runs.slots:
            known.add(slot.id)
            found[_fate(slot, counted, runs.omitted)] += 1
            if slot.state == "invalid":
                codes[slot.reason_code or "no code"] += 1
    found[STRAY] += sum(slot.id not in known for slot in analysis.campaign.slots())
    return Audit(
        records=sum(found.values()),
        counts=dict(found),
        reasons=tuple(sorted(codes.items(), key=lambda item: (-item[1], item[0]))),
        repeated=tuple(text for runs in analysis.all_runs for text in _repeated(runs)),
        added=tuple(text for runs in analysis.all_runs for text in _added(analysis, runs)),
    )


def _fate(slot: SlotRecord, counted: set[str], omitted: Sequence[int]) -> str:
    if slot.state != "done":
        return slot.state
    if slot.kind == "warmup":
        return WARMUP
    if slot.id in counted:
        return ACCEPTED
    return OMITTED if slot.block in omitted else UNFINISHED


def _repeated(runs: CellRuns) -> list[str]:
    attempts: dict[int, int] = {}
    for slot in runs.slots:
        attempts[slot.block] = max(attempts.get(slot.block, 1), slot.attempt)
    return [f"{runs.name} block {block} ({made} attempts)" for block, made in sorted(attempts.items()) if made > 1]


def _added(analysis: CampaignAnalysis, runs: CellRuns) -> list[str]:
    planned = analysis.plan.blocks_of(runs.name)
    return [f"{runs.name} block {block}" for block in sorted({slot.block for slot in runs.slots}) if block > planned]
