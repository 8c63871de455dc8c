"""The slots of every block against the order in which a campaign runs: no gap, no overlap, nothing left out.

Slots of one attempt run one after the other. Blocks may run side by side on several GPUs, so slots of different blocks
are held apart only where they ran on the same one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from fuseproof.harness.campaign.evidence import CLOCK_TOLERANCE_S
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, MISSING, RESULT_FILE, Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.verification.findings import Finding
from fuseproof.harness.verification.moments import moment_s
from fuseproof.schedules.order import arms_in_order

Attempts = Mapping[int, Sequence[SlotRecord]]
"""Attempt number → its slots, warm-up slots first, then by position."""


def attempt_findings(campaign: Campaign, records: Sequence[SlotRecord]) -> Iterator[Finding]:
    """What no undisturbed, interrupted or repeated block can look like; ``records`` are all, missing ones too."""
    blocks: dict[tuple[str, int], dict[int, list[SlotRecord]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        blocks[record.cell, record.block][record.attempt].append(record)
    for found in blocks.values():
        for slots in found.values():
            slots.sort(key=lambda slot: (slot.position, slot.started_monotonic_s or 0.0))
    if campaign.origin is None:
        for (_, block), attempts in blocks.items():
            yield from _orientation_findings(campaign, block, attempts)
            yield from _attempts_of(attempts)
            yield from _warmup_findings(campaign, block, attempts)
        yield from _overlaps(campaign, records)
    if campaign.status == "complete":
        yield from _incomplete(campaign, blocks)


def _orientation_findings(campaign: Campaign, block: int, attempts: Attempts) -> Iterator[Finding]:
    expected = campaign.plan.orientation(block - 1)
    for slot in (slot for slots in attempts.values() for slot in slots):
        if slot.orientation != expected:
            source = f"block {block} of the order {campaign.plan.order} in {CAMPAIGN_FILE}"
            yield Finding(_result(slot), None, "orientation", slot.orientation, expected, source)


def _warmup_findings(campaign: Campaign, block: int, attempts: Attempts) -> Iterator[Finding]:
    """The first block of a cell begins with the plan's warm-up slots, where its blocks ran one after the other."""
    slots = attempts.get(1, ())
    timed = [slot for slot in slots if slot.kind == "timed"]
    if block != 1 or not timed or any(slot.device is not None for slot in slots):
        return
    made, planned = len(slots) - len(timed), campaign.plan.warmup_slots
    if made < planned:
        yield Finding(_result(timed[0]), f"follows {made} of {planned} warm-up slots of the plan")


def _attempts_of(attempts: Attempts) -> Iterator[Finding]:
    last = max(attempts)
    for missing in sorted({*range(1, last + 1)} - {*attempts}):
        some = attempts[last][0]
        yield Finding(_result(some), f"is of attempt {last} at its block, and attempt {missing} is not there")
    for number in sorted(attempts):
        slots = attempts[number]
        if any(slot.reason_code == MISSING for slot in slots):
            continue
        yield from _sequence(slots)
        yield from _states(slots, is_last=number == last)
    for earlier, later in pairwise(sorted(attempts)):
        yield from _after(attempts[earlier], attempts[later])


def _sequence(slots: Sequence[SlotRecord]) -> Iterator[Finding]:
    """Positions without a gap, each slot after the one before it, and none after one that was lost."""
    timed = [slot for slot in slots if slot.kind == "timed"]
    for expected, slot in enumerate(timed, start=1):
        if slot.position != expected:
            yield Finding(_result(slot), None, "position", slot.position, expected, "the slots of its attempt")
            break
    for before, slot in pairwise(slots):
        ended, began = before.ended_monotonic_s, slot.started_monotonic_s
        if ended is not None and began is not None and began < ended:
            source = f"{_result(before)}, whose slot came before it"
            yield Finding(_result(slot), None, "started_monotonic_s", began, f"{ended} or later", source)
        if before.state in ("invalid", "interrupted", "running"):
            yield Finding(_result(slot), f"ran after {before.id}, which is {before.state} and ends its attempt")


def _states(slots: Sequence[SlotRecord], *, is_last: bool) -> Iterator[Finding]:
    for slot in slots:
        if is_last and slot.state == "superseded":
            yield Finding(_result(slot), "is superseded, and its block was not begun again")
        if not is_last and slot.state in ("done", "running"):
            yield Finding(_result(slot), f"is {slot.state}, although its block was begun again")
    usable = [slot for slot in slots if slot.kind == "timed" and slot.state in ("done", "superseded")]
    if not is_last and usable and len(usable) == len(arms_in_order(usable[0].orientation)):
        yield Finding(_result(usable[-1]), "completes its block, and a complete block is not begun again")


def _after(earlier: Sequence[SlotRecord], later: Sequence[SlotRecord]) -> Iterator[Finding]:
    """By the time of day: the monotonic clock begins anew with the machine."""
    ends = [moment for slot in earlier if (moment := moment_s(slot.ended)) is not None]
    for slot in later:
        began = moment_s(slot.started)
        if ends and began is not None and began < max(ends) - CLOCK_TOLERANCE_S:
            yield Finding(_result(slot), f"began at {slot.started}, before the attempt that it repeats had ended")


def _overlaps(campaign: Campaign, records: Sequence[SlotRecord]) -> Iterator[Finding]:
    lanes: dict[tuple[object, ...], list[tuple[float, float, SlotRecord]]] = defaultdict(list)
    for record in records:
        began, ended = record.started_monotonic_s, record.ended_monotonic_s
        shares_its_node = record.device is not None and record.device.card is None
        if began is not None and ended is not None and not shares_its_node:
            device = (record.device.card, record.device.node) if record.device is not None else (None, None)
            lanes[(*device, session_of(campaign, record))].append((began, ended, record))
    for timed in lanes.values():
        timed.sort(key=lambda entry: entry[:2])
        for (_, ended, before), (began, _, record) in pairwise(timed):
            is_one_attempt = (before.cell, before.block, before.attempt) == (record.cell, record.block, record.attempt)
            if began < ended and not is_one_attempt:
                problem = f"ran while {before.id} did: it began at {began}, and that ended at {ended} (monotonic)"
                yield Finding(_result(record), problem)


def session_of(campaign: Campaign, record: SlotRecord) -> int:
    """The index of the session in which a slot began; 0 where the folder does not say."""
    began = moment_s(record.started)
    starts = [moment_s(session.started) for session in campaign.sessions]
    if began is None:
        return 0
    return max((index for index, start in enumerate(starts) if start is not None and start <= began), default=0)


def _incomplete(
    campaign: Campaign, blocks: Mapping[tuple[str, int], Mapping[int, Sequence[SlotRecord]]]
) -> Iterator[Finding]:
    """A complete campaign has every block of its plan."""
    for cell in campaign.plan.cells:
        for number in range(1, campaign.blocks_wanted(cell.name) + 1):
            attempts = blocks.get((cell.name, number), {})
            if not any(_is_whole(slots, is_imported=campaign.origin is not None) for slots in attempts.values()):
                yield Finding(CAMPAIGN_FILE, f"says complete, and block {number} of {cell.name} is not")


def _is_whole(slots: Sequence[SlotRecord], *, is_imported: bool) -> bool:
    """All its slots may be used; of an import, all its places are taken."""
    timed = [slot for slot in slots if slot.kind == "timed" and (slot.state == "done" or is_imported)]
    return bool(timed) and len(timed) == len(arms_in_order(timed[0].orientation))


def _result(record: SlotRecord) -> str:
    return f"{record.directory}/{RESULT_FILE}"
