"""Times an arm claims against what this program saw with its own clock.

A dump is the arm's word. What cannot have happened makes a slot invalid; what is merely hard to believe is a warning
of the campaign, which every report can show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fuseproof.harness.campaign.evidence import EvidenceError
from fuseproof.harness.campaign.records import SlotRecord, SlotTimes, arms_of
from fuseproof.schedules.order import ArmLetter, arm_word

WALL_TOLERANCE_S = 0.05
"""How much longer than its process an arm's own time may be: two clocks, read at two moments."""


@dataclass(frozen=True)
class CampaignWarning:
    """Something about an arm of a cell that a reader of its numbers should know. ``arm`` is its letter."""

    code: str
    cell: str
    arm: ArmLetter
    detail: str
    next_step: str


def refuse_impossible_times(times: SlotTimes, wall_s: float) -> None:
    """Raise :class:`EvidenceError` when an arm claims to have worked longer than its whole process ran."""
    for name, claimed_s in (("worker", times.worker_s), ("client", times.client_s)):
        if claimed_s is not None and not claimed_s <= wall_s + WALL_TOLERANCE_S:
            raise EvidenceError(
                "IMPOSSIBLE_TIME",
                f"its dump claims {claimed_s:.3f} s of {name} time, but the whole slot took {wall_s:.3f} s",
            )


def identical_times(cell: str, runs: Sequence[SlotRecord]) -> tuple[CampaignWarning, ...]:
    """One warning an arm whose runs all claim the same times to the digit. ``runs`` are the slots that count."""
    found = []
    for letter in arms_of(runs):
        claims = [(run.times.worker_s, run.times.denoise_s, run.times.client_s) for run in runs if run.arm == letter]
        if len(claims) < 2 or len(set(claims)) > 1 or claims[0][0] is None:
            continue
        arm = arm_word(letter)
        found.append(
            CampaignWarning(
                code="IDENTICAL_TIMES",
                cell=cell,
                arm=letter,
                detail=f"all {len(claims)} {arm} runs of {cell} claim {claims[0][0] * 1e3:.10g} ms, "
                "the same to the digit",
                next_step="Check that the arm measures: clocks never repeat themselves, constants do.",
            )
        )
    return tuple(found)
