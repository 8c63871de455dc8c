"""Blocks beyond those the plan asks for: whoever adds blocks until the word pleases finds a false one sooner or later.

Every block counts, but each further look at the data has a stricter error level (5 %, then 1 %, then 0.5 %), blocks are
added in whole mirrored pairs only, and the words of all earlier looks stand beside the last one. ``abba --resume DIR
--add-blocks 2`` is how blocks are added: the campaign keeps its plan and notes every addition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fuseproof.harness.number_format import count
from fuseproof.harness.statistics.comparison import Block, Thresholds
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.harness.statistics.verdict import decide

PLANNED_ALPHA = 0.05
ADDED_ALPHA = 0.01
LATER_ALPHA = 0.005
"""Of looks that nobody planned, the second and every later one; simulated false directional verdicts of all looks
together: 5.1 % for two, 5.6 % for four."""


def alpha_of_look(look: int) -> float:
    """The error level of the ``look``-th verdict on a growing campaign, from 1."""
    return {1: PLANNED_ALPHA, 2: ADDED_ALPHA}.get(look, LATER_ALPHA)


def look_ends(numbers: Sequence[int], planned: int, additions: Sequence[int] = (), pair: int = 2) -> list[int]:
    """How many blocks each look at the data had, the last one all of them.

    ``numbers`` are the blocks that count (from 1), ``additions`` how many each noted addition asked for. Blocks beyond
    both were added by nobody knows whom: each ``pair`` of them may have been looked at.
    """
    last, ends = max(numbers, default=0), [planned]
    noted = list(additions)
    while ends[-1] < last:
        ends.append(ends[-1] + (noted.pop(0) if noted else pair))
    return ends


def alpha_for(numbers: Sequence[int], planned: int, additions: Sequence[int] = (), pair: int = 2) -> float:
    """The error level for blocks of these numbers (from 1) where ``planned`` were asked for."""
    return alpha_of_look(len(look_ends(numbers, planned, additions, pair)))


def unpaired_caps(numbers: Sequence[int], planned: int, pair: int = 2) -> tuple[Reason, ...]:
    """``UNPAIRED_BLOCKS`` where a block was added without the others of its mirrored pair: no verdict rests on it."""
    added = [number for number in numbers if number > planned]
    sets = {(number - planned - 1) // pair for number in added}
    if len(added) == pair * len(sets):
        return ()
    what = "mirrored pairs" if pair == 2 else f"sets of {pair}"
    detail = f"blocks {', '.join(map(str, added))} were added to {planned} planned ones, which is not in whole {what}"
    step = f"Complete the {'pair' if pair == 2 else 'set'}: fuseproof abba --resume DIR."
    return (Reason("UNPAIRED_BLOCKS", detail, step),)


def added_block_warnings(
    numbers: Sequence[int],
    planned: int,
    blocks: Sequence[Block],
    thresholds: Thresholds,
    additions: Sequence[int] = (),
    pair: int = 2,
    caps: Mapping[int, Sequence[Reason]] | None = None,
) -> tuple[Reason, ...]:
    """``ADDED_BLOCKS`` with the verdict of every earlier look; ``blocks`` are those of ``numbers``, in order.

    ``caps`` are what forbade a directional word then, by how many blocks the look had: without them the word told here
    would be one that was never given.
    """
    added = [number for number in numbers if number > planned]
    if not added:
        return ()
    told = []
    for look, end in enumerate(look_ends(numbers, planned, additions, pair)[:-1], start=1):
        seen = [block for number, block in zip(numbers, blocks, strict=True) if number <= end]
        own = Thresholds(thresholds.min_effect, alpha_of_look(look), thresholds.tick_s)
        where = "on those alone" if look == 1 else f"on the first {end} (α = {alpha_of_look(look):g})"
        told.append(
            f"{where} the word is {_word(seen, own, (caps or {}).get(end, ()))}"
            if seen
            else "none of those is complete"
        )
    detail = f"{count(len(added), 'block')} beyond the {planned} planned; {', '.join(told)}"
    return (Reason("ADDED_BLOCKS", detail, "Plan the number of blocks before measuring: --plan-for."),)


def _word(blocks: Sequence[Block], thresholds: Thresholds, caps: Sequence[Reason]) -> str:
    """``INCONCLUSIVE (CONTENTION)``: the word of an earlier look, with what forbade another one."""
    word = decide(blocks, thresholds, caps=caps).word.value
    return f"{word} ({', '.join(dict.fromkeys(cap.code for cap in caps))})" if caps else word
