"""Times that were read from what a program printed, read from its logs once more."""

from __future__ import annotations

from collections.abc import Iterator

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.evidence import EvidenceError
from fuseproof.harness.campaign.folder import PERF_FILE, Campaign
from fuseproof.harness.campaign.printed_times import LOGS, printed_time
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.perf.fields import read_json_object
from fuseproof.harness.verification.findings import Finding, Tally


def printed_time_findings(campaign: Campaign, record: SlotRecord, tally: Tally) -> Iterator[Finding]:
    """Where a slot's dump holds another time than the one in its logs. Slots of arms with a ``time_pattern`` only."""
    pattern = campaign.plan.arm(record.arm).time_pattern
    if pattern is None or record.state not in ("done", "superseded") or campaign.origin is not None:
        return
    folder, file = campaign.directory / record.directory, f"{record.directory}/{PERF_FILE}"
    if not all((folder / name).is_file() for name in LOGS):
        yield Finding(file, "rests on a printed time, and the slot's logs are not there")
        return
    try:
        expected, stated = printed_time(folder, pattern).to_dump(), read_json_object(folder / PERF_FILE)
    except EvidenceError as error:
        yield Finding(file, f"rests on a printed time, and {error.reason}")
        return
    except FuseproofError:
        return  # said by whoever reads the dump
    tally.count("printed times")
    own, wanted = stated.get("total_duration_ms"), expected["total_duration_ms"]
    source = f"{record.directory}/{expected['printed_time']['log']} line {expected['printed_time']['line']}"
    if own != wanted:
        yield Finding(file, None, "total_duration_ms", own, wanted, source)
    elif {key: value for key, value in stated.items() if key != "timestamp"} != expected:
        yield Finding(file, None, "printed_time", stated.get("printed_time"), expected["printed_time"], source)
