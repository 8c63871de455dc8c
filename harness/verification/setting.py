"""What a campaign says of its machine and of its arms' code, against what its dumps, slots and setup logs say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.evidence import CLOCK_TOLERANCE_S
from fuseproof.harness.campaign.folder import CAMPAIGN_FILE, PERF_FILE, RESULT_FILE, Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.machine.redaction import REDACTED
from fuseproof.harness.media.files import file_sha256
from fuseproof.harness.perf.fields import read_json_object
from fuseproof.harness.verification.attempts import session_of
from fuseproof.harness.verification.findings import Finding, Tally
from fuseproof.harness.verification.moments import moment_s

MACHINE_KEYS = ("os", "cpu", "operating_system", "processor", "cuda_driver_version")
SOFTWARE_KEYS = ("libraries", "versions", "torch_build")
"""Of arms that run in fuseproof's own Python: what the dump and the campaign both describe. A checkout that changed
while the campaign ran is no lie: the report says ``COMMITS_DIFFER``."""
CHANGING_KEYS = frozenset({"governors", "reason"})
SETUP_FOLDER = "setup"


def setting_findings(campaign: Campaign, tally: Tally) -> Iterator[Finding]:
    """The first session is the one that began the campaign, and setup logs are those that were hashed."""
    if campaign.sessions:
        first = campaign.sessions[0]
        pairs = (
            ("command", list(campaign.command), list(first.command)),
            ("created", campaign.created, first.started),
            ("fuseproof_version", campaign.fuseproof_version, first.fuseproof_version),
        )
        for key, stated, expected in pairs:
            if stated != expected:
                name = "started" if key == "created" else key
                yield Finding(CAMPAIGN_FILE, None, key, stated, expected, f"sessions[0].{name}")
        yield from _differences(
            campaign.environment, first.environment, "environment", CAMPAIGN_FILE, "sessions[0].environment"
        )
    yield from _setup_findings(campaign, tally)


def _setup_findings(campaign: Campaign, tally: Tally) -> Iterator[Finding]:
    known = {f"{SETUP_FOLDER}/{letter}.log": arm.setup for letter, arm in campaign.lineage.items() if arm.setup}
    for name, setup in known.items():
        path = campaign.directory / name
        if not path.is_file():
            yield Finding(name, f"is missing, though the lineage in {CAMPAIGN_FILE} holds its hash")
            continue
        own = file_sha256(path)
        tally.count("setup logs")
        if own != setup.log_sha256:
            source = f"{CAMPAIGN_FILE} lineage.{name[len(SETUP_FOLDER) + 1 : -4]}.setup.log_sha256"
            yield Finding(name, None, "its SHA-256", own, setup.log_sha256, source)
    folder = campaign.directory / SETUP_FOLDER
    for path in sorted(folder.glob("*")) if folder.is_dir() else ():
        name = f"{SETUP_FOLDER}/{path.name}"
        if name not in known:
            yield Finding(name, f"is the log of no setup that {CAMPAIGN_FILE} has")


def slot_setting_findings(campaign: Campaign, record: SlotRecord, tally: Tally) -> Iterator[Finding]:
    """A dump's own description of machine, libraries and commit, where campaign or slot hold the same."""
    yield from _lineage_findings(campaign, record)
    yield from _session_findings(campaign, record)
    try:
        dump = read_json_object(campaign.directory / record.directory / PERF_FILE)
    except FuseproofError:
        return
    described = dump.get("environment")
    if not isinstance(described, Mapping) or campaign.origin is not None:
        return
    arm = campaign.plan.arm(record.arm)
    is_here = record.device is None or record.device.node is None
    is_own_code = arm.command is None and arm.ref is None and arm.python is None
    keys = (*(MACHINE_KEYS if is_here else ()), *(SOFTWARE_KEYS if is_own_code else ()))
    session = session_of(campaign, record)
    known = campaign.sessions[session].environment if campaign.sessions else campaign.environment
    where = f"sessions[{session}].environment" if session else "environment"
    source = f"{record.directory}/{PERF_FILE} environment"
    tally.count("descriptions of the machine")
    for key in keys:
        if key in known and key in described:
            yield from _differences(known[key], described[key], f"{where}.{key}", CAMPAIGN_FILE, f"{source}.{key}")
    if is_here:
        yield from _card_findings(known, described, where, source)
    yield from _commit_findings(record, described)
    yield from _variable_findings(record, described)


def _differences(stated: Any, expected: Any, place: str, file: str, source: str) -> Iterator[Finding]:
    """Leaves that both have, and that differ; the first of them."""
    if isinstance(stated, Mapping) and isinstance(expected, Mapping):
        for key in stated:
            if key in expected and key not in CHANGING_KEYS:
                found = list(_differences(stated[key], expected[key], f"{place}.{key}", file, f"{source}.{key}"))
                if found:
                    yield found[0]
                    return
    elif stated != expected:
        yield Finding(file, None, place, stated, expected, source)


def _card_findings(
    known: Mapping[str, Any], described: Mapping[str, Any], where: str, source: str
) -> Iterator[Finding]:
    """A slot sees no GPU that the campaign did not see; it may see fewer."""
    stated, seen = _card_names(known.get("gpus")), _card_names(described.get("gpus"))
    if stated is not None and seen is not None and not set(seen) <= set(stated):
        yield Finding(CAMPAIGN_FILE, None, f"{where}.gpus", sorted(stated), sorted(seen), f"{source}.gpus")


def _card_names(gpus: Any) -> list[str] | None:
    if not isinstance(gpus, list):
        return None
    names = [card.get("name") if isinstance(card, Mapping) else card for card in gpus]
    return [name for name in names if isinstance(name, str)]


def _commit_findings(record: SlotRecord, described: Mapping[str, Any]) -> Iterator[Finding]:
    own = described.get("fuseproof")
    commit = own.get("commit") if isinstance(own, Mapping) else None
    known = (record.lineage or {}).get("commit")
    if isinstance(commit, str) and isinstance(known, str) and (record.lineage or {}).get("ref") and commit != known:
        file = f"{record.directory}/{RESULT_FILE}"
        yield Finding(file, None, "lineage.commit", known, commit, f"{PERF_FILE} environment.fuseproof.commit")


def _lineage_findings(campaign: Campaign, record: SlotRecord) -> Iterator[Finding]:
    """Slots of the first session have the lineage that the campaign began with; those of a ref always its commit."""
    known, own = campaign.lineage.get(record.arm), record.lineage
    if known is None or own is None or not (known.ref or session_of(campaign, record) == 0):
        return
    for key, expected in known.of_slot().items():
        if key in own and own[key] != expected:
            source = f"{CAMPAIGN_FILE} lineage.{record.arm}.{key}"
            yield Finding(f"{record.directory}/{RESULT_FILE}", None, f"lineage.{key}", own[key], expected, source)
            return


def _session_findings(campaign: Campaign, record: SlotRecord) -> Iterator[Finding]:
    """No slot began before the session that began the campaign."""
    began = moment_s(record.started)
    first = moment_s(campaign.sessions[0].started) if campaign.sessions else None
    if began is not None and first is not None and began < first - CLOCK_TOLERANCE_S:
        source = f"{CAMPAIGN_FILE} sessions[0].started"
        wanted = f"{campaign.sessions[0].started} or later"
        yield Finding(f"{record.directory}/{RESULT_FILE}", None, "started", record.started, wanted, source)


def _variable_findings(record: SlotRecord, described: Mapping[str, Any]) -> Iterator[Finding]:
    """Variables that were set for the slot and that its dump saw otherwise."""
    seen = described.get("environment_variables")
    if not isinstance(seen, Mapping):
        return
    for name, stated in record.environment_overrides.items():
        if name in seen and seen[name] != stated and REDACTED not in stated:
            source = f"{record.directory}/{PERF_FILE} environment.environment_variables.{name}"
            file, place = f"{record.directory}/{RESULT_FILE}", f"environment_overrides.{name}"
            yield Finding(file, None, place, stated, seen[name], source)
