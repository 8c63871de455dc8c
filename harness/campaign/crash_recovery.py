"""What a killed campaign leaves half done, put in order before it goes on.

Between the making of a slot's folder and the first ``result.json`` in it lies a moment in which the tool may be killed.
Such a folder would belong to no slot, and a later attempt could mix with what lies in it; it becomes an interrupted
slot. Files that were being written and had not got their name yet are no evidence, and go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fuseproof.harness.atomic_files import UNFINISHED_FILES
from fuseproof.harness.campaign.folder import RESULT_FILE, Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.schedules.order import PlannedSlot, timed_slots, warmup_slots

CAUSE = "the campaign ended without a word before this slot was recorded"
_FOLDER_NAME = re.compile(r"(?P<block>\d+)(?:\.(?P<attempt>\d+))?-\d+-[A-Z]")


def recover(campaign: Campaign) -> tuple[str, ...]:
    """Record the slots that were begun and never recorded, remove unfinished files; the ids of those slots.

    Call it while the campaign's lock is held. Raises :class:`FuseproofError` when the folder cannot be written.
    """
    for path in campaign.directory.rglob(UNFINISHED_FILES):
        path.unlink(missing_ok=True)
    lost = [
        SlotRecord.planned(slot).with_facts(state="interrupted", reason_code="INTERRUPTED", reason=CAUSE)
        for slot in _unrecorded(campaign)
    ]
    if lost:
        campaign.save_slots(lost)
    return tuple(record.id for record in lost)


def _unrecorded(campaign: Campaign) -> Iterator[PlannedSlot]:
    known = {slot.id for slot in campaign.slots()}
    for cell in campaign.plan.cells:
        for folder in sorted((campaign.directory / "slots" / cell.name).glob("*-*-*")):
            slot = _slot_of(campaign, cell.name, folder)
            if slot is not None and slot.id not in known and not (folder / RESULT_FILE).exists():
                yield slot


def _slot_of(campaign: Campaign, cell: str, folder: Path) -> PlannedSlot | None:
    """The planned slot whose folder this is; None for a folder that no slot of the plan has."""
    named = _FOLDER_NAME.fullmatch(folder.name)
    if named is None or not folder.is_dir() or int(named["block"]) < 1:
        return None
    block, attempt = int(named["block"]), int(named["attempt"] or 1)
    direction = campaign.plan.orientation(block - 1)
    slots = (*warmup_slots(cell, block, attempt, direction, 2), *timed_slots(cell, block, attempt, direction))
    return next((slot for slot in slots if slot.id == f"{cell}/{folder.name}"), None)
