"""An imported campaign against its origin: every file it kept is named there, with the slot that its label says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, OUTPUTS_FOLDER, PERF_FILE, Campaign
from fuseproof.harness.campaign.left_out import LOG_NAMES, left_out_lines
from fuseproof.harness.campaign.origin import OriginFile
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.importing.labels import Pattern, fitting_text
from fuseproof.harness.verification.findings import Finding, Tally


def origin_findings(campaign: Campaign, tally: Tally) -> Iterator[Finding]:
    """Files that no import wrote down, and dumps in another slot than their names say; nothing without an origin."""
    if campaign.origin is None:
        return
    yield from _unnamed_files(campaign)
    pattern = None if campaign.origin.labels is None else fitting_text(campaign.origin.labels)
    records = {record.id: record for record in campaign.slots()}
    for index, file in enumerate(campaign.origin.files):
        if file.kind == "perf dump" and file.slot is not None:
            place = f"origin.files[{index}]"
            record = records.get(file.slot)
            if record is None:
                yield Finding(CAMPAIGN_FILE, f"names the slot {file.slot!r} in {place}, and there is none")
            elif pattern is not None:
                tally.count("labels")
                yield from _label_findings(campaign, file, record, pattern, place)


def _label_findings(
    campaign: Campaign, file: OriginFile, record: SlotRecord, pattern: Pattern, place: str
) -> Iterator[Finding]:
    label = pattern.label(Path(file.path))
    if label is None:
        source = f"origin.labels {pattern.text!r}"
        yield Finding(CAMPAIGN_FILE, None, f"{place}.path", file.path, "a name that fits", source)
        return
    source = f"the name {file.path}"
    if label.arm != record.arm:
        yield Finding(CAMPAIGN_FILE, None, f"{place}.slot", file.slot, f"a slot of arm {label.arm}", source)
    if label.position is not None and label.position != record.position:
        yield Finding(CAMPAIGN_FILE, None, f"{place}.slot", file.slot, f"position {label.position}", source)
    blocks = campaign.origin.blocks if campaign.origin is not None else ()
    known = next((b.label for b in blocks if (b.cell, b.block) == (record.cell, record.block)), None)
    if known is not None and known != label.block:
        yield Finding(CAMPAIGN_FILE, None, f"{place}.slot", file.slot, f"block {label.block}", source)


def _unnamed_files(campaign: Campaign) -> Iterator[Finding]:
    """Every dump, log and output of a slot was imported from somewhere."""
    named = {(file.slot, file.kind) for file in (campaign.origin.files if campaign.origin is not None else ())}
    counts = [
        file.slot for file in (campaign.origin.files if campaign.origin is not None else ()) if file.kind == "output"
    ]
    left_out = left_out_lines(campaign.directory)
    for record in campaign.slots():
        folder = campaign.directory / record.directory
        for name, kind in ((PERF_FILE, "perf dump"), *((log, "log") for log in sorted(LOG_NAMES))):
            if (folder / name).is_file() and (record.id, kind) not in named:
                yield Finding(f"{record.directory}/{name}", f"is no file that origin.files in {CAMPAIGN_FILE} names")
        outputs = sum(path.is_file() for path in (folder / OUTPUTS_FOLDER).rglob("*"))
        outputs += sum(name.startswith(f"{record.directory}/{OUTPUTS_FOLDER}/") for name in left_out)
        if outputs != counts.count(record.id):
            problem = f"holds {outputs} files, and origin.files in {CAMPAIGN_FILE} names {counts.count(record.id)}"
            yield Finding(f"{record.directory}/{OUTPUTS_FOLDER}", problem)
