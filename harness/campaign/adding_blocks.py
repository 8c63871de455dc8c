"""More blocks for a campaign that was complete: whole mirrored pairs, noted in ``campaign.json`` beside the plan."""

from __future__ import annotations

from fuseproof.errors import UsageError
from fuseproof.harness.campaign.folder import Campaign


def add_blocks(campaign: Campaign, number: int) -> None:
    """Note that every cell gets ``number`` more blocks; the plan stays as it is, so that a report can tell them apart.

    Raises :class:`UsageError` unless every block asked for so far is whole, and ``number`` is whole mirrored pairs.
    """
    pair = campaign.plan.slots_per_block // 2
    if number < 1 or number % pair:
        what = "even, whole mirrored pairs" if pair == 2 else f"a multiple of {pair}, every order of the arms once"
        raise UsageError(
            f"--add-blocks is {number}; it must be {what}.",
            next_step=f"Give --add-blocks {pair * (max(number, 0) // pair + 1)}.",
        )
    for cell in campaign.plan.cells:
        missing = campaign.missing_blocks(cell.name)
        if missing:
            raise UsageError(
                f"Block {missing[0]} of {cell.name} is not complete, so no blocks are added beyond it.",
                next_step=f"Complete the campaign first: fuseproof abba --resume {campaign.directory}",
            )
    campaign.note_added_blocks(number)
