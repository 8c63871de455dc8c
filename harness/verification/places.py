"""Do the slots stand where ``campaign.json`` says, and does each ``result.json`` agree with its own place?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fuseproof.harness.analysis.contradictions import copied_dumps
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, MISSING, PERF_FILE, RESULT_FILE, Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.perf.fields import read_json_object
from fuseproof.harness.verification.attempts import attempt_findings
from fuseproof.harness.verification.commands import command_findings, plan_findings
from fuseproof.harness.verification.endings import ending_findings
from fuseproof.harness.verification.findings import SLOTS, Check, Finding, Tally
from fuseproof.harness.verification.origins import origin_findings
from fuseproof.harness.verification.setting import setting_findings, slot_setting_findings
from fuseproof.harness.verification.slot_logs import log_findings
from fuseproof.schedules.order import PlannedSlot, arms_in_order, labels_in_order

WALL_DIGITS = 6
STATE_KEYS = frozenset({"state", "reason_code"})
"""What lags behind in the index while a campaign runs."""


def check_places(campaign: Campaign) -> Check:
    """Compare the index, the folders below ``slots/`` and the records; find copied dumps and impossible places."""
    tally = Tally()
    records = {record.id: record for record in campaign.slots()}
    entries = read_json_object(campaign.directory / CAMPAIGN_FILE)["slots"]
    cells = {cell.name for cell in campaign.plan.cells}
    for record in records.values():
        tally.count("records")
        tally.count(record.state)
        if record.reason_code == MISSING:
            tally.add([Finding(f"{record.directory}/{RESULT_FILE}", f"is missing: {record.reason}")])
            continue
        tally.add(_place_findings(record, cells, campaign.plan.letters))
        tally.add(_wall_findings(record))
        if record.cell not in cells or record.arm not in campaign.plan.letters:
            continue
        tally.add(ending_findings(campaign, record, tally))
        tally.add(command_findings(campaign, record, tally))
        tally.add(slot_setting_findings(campaign, record, tally))
        tally.add(log_findings(campaign, record))
    tally.add(attempt_findings(campaign, list(records.values())))
    tally.add(plan_findings(campaign, tally))
    tally.add(setting_findings(campaign, tally))
    tally.add(origin_findings(campaign, tally))
    tally.add(_index_findings(campaign, entries, records))
    tally.add(_unknown_folders(campaign, records))
    copies = copied_dumps(campaign)
    tally.add(Finding(f"{records[id_].directory}/{PERF_FILE}", f"is a copy: {why}") for id_, why in copies.items())
    recorded = tally.counts.pop("recorded only", 0)
    notes = (f"{recorded} invalid slots have a reason that was seen once and cannot be recomputed",) if recorded else ()
    return Check(SLOTS, tally.counts, tuple(tally.findings), notes)


def _index_findings(
    campaign: Campaign, entries: Sequence[Mapping[str, Any]], records: Mapping[str, SlotRecord]
) -> Iterator[Finding]:
    indexed = [str(entry["id"]) for entry in entries]
    for index, entry in enumerate(entries):
        record = records[str(entry["id"])]
        if record.reason_code == MISSING:
            continue
        for key, stated in entry.items():
            own = getattr(record, key, stated)
            if own != stated and not (campaign.status == "running" and key in STATE_KEYS):
                place = f"slots[{index}].{key}"
                yield Finding(CAMPAIGN_FILE, None, place, stated, own, f"{record.directory}/{RESULT_FILE}")
    if len(set(indexed)) != len(indexed):
        yield Finding(CAMPAIGN_FILE, "names a slot twice")
    for slot_id in records.keys() - set(indexed) if campaign.status != "running" else ():
        yield Finding(f"slots/{slot_id}", f"is a slot that {CAMPAIGN_FILE} does not name")


def _unknown_folders(campaign: Campaign, records: Mapping[str, SlotRecord]) -> Iterator[Finding]:
    root = campaign.directory / "slots"
    for path in sorted(root.glob("*/*")) if campaign.status != "running" else ():
        name = path.relative_to(root).as_posix()
        if path.is_dir() and name not in records:
            yield Finding(f"slots/{name}", f"is a folder that {CAMPAIGN_FILE} does not name")


def _place_findings(record: SlotRecord, cells: set[str], letters: Sequence[str]) -> Iterator[Finding]:
    file = f"{record.directory}/{RESULT_FILE}"
    planned = PlannedSlot(
        record.cell,
        record.block,
        record.attempt,
        record.position,
        record.arm,
        record.label,
        record.orientation,
        record.kind,
    )
    if planned.id != record.id:
        source = "its cell, block, attempt, position and arm"
        yield Finding(file, None, "id", record.id, planned.id, source)
    if record.cell not in cells:
        yield Finding(file, f"is of the cell {record.cell!r}, which the plan in {CAMPAIGN_FILE} does not have")
    if record.arm not in letters:
        yield Finding(file, f"is of the arm {record.arm!r}, which the plan in {CAMPAIGN_FILE} does not have")
    arms, labels = arms_in_order(record.orientation), labels_in_order(record.orientation)
    if (record.kind == "timed") != (1 <= record.position <= len(arms)):
        source = f"kind {record.kind}; timed slots have positions 1 to {len(arms)}, warm-up slots 0"
        yield Finding(file, None, "position", record.position, "another", source)
    elif record.kind == "timed":
        place = f"position {record.position} of {record.orientation}"
        for key, own, expected in (
            ("arm", record.arm, arms[record.position - 1]),
            ("label", record.label, labels[record.position - 1]),
        ):
            if own != expected:
                yield Finding(file, None, key, own, expected, place)


def _wall_findings(record: SlotRecord) -> Iterator[Finding]:
    began, ended, wall = record.started_monotonic_s, record.ended_monotonic_s, record.wall_s
    if began is None or ended is None or wall is None:
        return
    expected = round(ended - began, WALL_DIGITS)
    if round(wall, WALL_DIGITS) != expected:
        file, source = f"{record.directory}/{RESULT_FILE}", "ended_monotonic_s − started_monotonic_s"
        yield Finding(file, None, "wall_s", wall, expected, source)
