"""Which runs look odd. Nothing here removes a run: every run counts, and the report says which ones to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuseproof.harness.statistics.comparison import BASELINE, Block, Comparison
from fuseproof.harness.statistics.contrasts import Floats

TAIL_SHARE = 0.03
TAIL_SPREADS = 6
FIRST_SLOT_SHARE = 0.01
FIRST_SLOT_SPREADS = 3
GAP_SHARE = 0.02
GAP_DEVIATIONS = 5
GAP_TICKS = 2


@dataclass(frozen=True)
class OddRun:
    """One run that stands out: block and slot from 0, its value and what it is held against, in seconds."""

    block: int
    slot: int
    value_s: float
    usual_s: float

    def place(self, blocks: Sequence[Block]) -> str:
        """Where to look: "block r1 slot 2 (B1)"."""
        return (
            f"block {block_name(blocks, self.block)} slot {self.slot + 1} ({blocks[self.block].slot_labels[self.slot]})"
        )


def block_name(blocks: Sequence[Block], index: int) -> str:
    """The block's own label, or its number from 1."""
    return blocks[index].label or str(index + 1)


def tail_outliers(blocks: Sequence[Block], comparison: Comparison) -> tuple[OddRun, ...]:
    """Runs far above the median of their arm's other runs *and* above their block partner; needs two blocks."""
    if len(blocks) < 2:
        return ()
    limit = 1 + max(TAIL_SHARE, TAIL_SPREADS * comparison.noise_floor_median)
    found = []
    for block, slot, seconds in _runs(blocks):
        others = _others_of_arm(blocks, block, slot)
        # In every order the partner of a slot sits opposite: 1 and 4 are one arm, 2 and 3 the other.
        partner = blocks[block].seconds[-1 - slot]
        usual = float(np.median(others))
        if seconds > limit * usual and seconds > limit * partner:
            found.append(OddRun(block, slot, seconds, usual))
    return tuple(found)


def slow_first_slot(blocks: Sequence[Block], comparison: Comparison) -> OddRun | None:
    """The campaign's very first run, when it is clearly slower than every other run of its arm: a cold start.

    None where it is the run of an arm that is not compared.
    """
    if not _is_compared(blocks[0], 0):
        return None
    limit = 1 + max(FIRST_SLOT_SHARE, FIRST_SLOT_SPREADS * comparison.noise_floor_median)
    slowest_other = max(_others_of_arm(blocks, 0, 0))
    first = blocks[0].seconds[0]
    return OddRun(0, 0, first, slowest_other) if first > limit * slowest_other else None


def gap_outliers(worker: Sequence[Block], client: Sequence[Block], tick_s: float) -> tuple[OddRun, ...]:
    """Runs that spent unusually long between the end of the work and the client's end (saving, cleaning up).

    ``worker`` and ``client`` are the same runs on two timers, ``tick_s`` the coarser timer's step in seconds. A run's
    ``value_s`` is its gap and ``usual_s`` the median gap of the other runs.
    """
    if [block.orientation for block in worker] != [block.orientation for block in client]:
        raise ValueError("worker and client blocks must be the same runs in the same order")
    runs = _runs(client)
    client_seconds = np.array([seconds for _, _, seconds in runs])
    gaps: Floats = client_seconds - np.array([seconds for _, _, seconds in _runs(worker)])
    found = []
    for index, ((block, slot, _), gap) in enumerate(zip(runs, gaps, strict=True)):
        others = np.delete(gaps, index)
        usual = float(np.median(others))
        deviation = float(np.median(np.abs(others - usual)))
        limit = max(GAP_SHARE * float(client_seconds[index]), GAP_DEVIATIONS * deviation, GAP_TICKS * tick_s)
        if gap - usual > limit:
            found.append(OddRun(block, slot, float(gap), usual))
    return tuple(found)


def _runs(blocks: Sequence[Block]) -> list[tuple[int, int, float]]:
    """Block, slot and seconds of every run of the two compared arms, in the order they ran."""
    return [
        (index, slot, seconds)
        for index, block in enumerate(blocks)
        for slot, seconds in enumerate(block.seconds)
        if _is_compared(block, slot)
    ]


def _is_compared(block: Block, slot: int) -> bool:
    return block.orientation[slot] in (BASELINE, block.candidate)


def _others_of_arm(blocks: Sequence[Block], block: int, slot: int) -> list[float]:
    arm = blocks[block].slot_labels[slot][0]
    return [
        seconds
        for index, other_slot, seconds in _runs(blocks)
        if (index, other_slot) != (block, slot) and blocks[index].slot_labels[other_slot][0] == arm
    ]
