"""Blocks beyond those the plan asks for: whoever adds blocks until the word pleases finds a false one sooner or later.

Every block counts, but at a stricter error level, and the word that the planned blocks alone give stands beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.harness.number_format import count
from fuseproof.harness.statistics.comparison import Block, Thresholds
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.harness.statistics.verdict import decide

PLANNED_ALPHA = 0.05
ADDED_ALPHA = 0.01
"""Of a look that nobody planned; simulated false directional verdicts of both looks together: 5.1 %."""


def alpha_for(numbers: Sequence[int], planned: int) -> float:
    """The error level for blocks of these numbers (from 1) where ``planned`` were asked for."""
    return ADDED_ALPHA if any(number > planned for number in numbers) else PLANNED_ALPHA


def added_block_warnings(
    numbers: Sequence[int], planned: int, blocks: Sequence[Block], thresholds: Thresholds
) -> tuple[Reason, ...]:
    """``ADDED_BLOCKS`` with the verdict of the planned blocks alone; ``blocks`` are those of ``numbers``, in order."""
    added = [number for number in numbers if number > planned]
    if not added:
        return ()
    first = [block for number, block in zip(numbers, blocks, strict=True) if number <= planned]
    own = Thresholds(thresholds.min_effect, PLANNED_ALPHA, thresholds.tick_s)
    earlier = f"on those alone the word is {decide(first, own).word.value}" if first else "none of those is complete"
    detail = f"{count(len(added), 'block')} beyond the {planned} planned; {earlier}"
    return (Reason("ADDED_BLOCKS", detail, "Plan the number of blocks before measuring: --plan-for."),)
