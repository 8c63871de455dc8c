"""How a slot ended, against what is kept of it: its state and reason, its exit status, its times, its machine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.evidence import CLOCK_TOLERANCE_S, EvidenceError, refuse_fallback, stated_moments
from fuseproof.harness.campaign.folder import OUTPUTS_FOLDER, PERF_FILE, RESULT_FILE, Campaign
from fuseproof.harness.campaign.gpu_telemetry import hardware_slowdown
from fuseproof.harness.campaign.plausibility import refuse_impossible_times
from fuseproof.harness.campaign.printed_times import printed_time
from fuseproof.harness.campaign.records import SlotRecord, SlotTimes
from fuseproof.harness.machine.usage import busy_threshold
from fuseproof.harness.perf.dump import PerfDump, read_perf_dump
from fuseproof.harness.verification.findings import Finding, Tally
from fuseproof.harness.verification.moments import moment_s

STATES_OF_CODES: Mapping[str | None, tuple[str, ...]] = {
    None: ("done", "running"),
    "SUPERSEDED": ("superseded",),
    "INTERRUPTED": ("interrupted",),
}
"""Every other code is of an invalid slot."""
STATUS_OF_CODES: Mapping[str, tuple[str, Callable[[int], bool]]] = {
    "EXIT": ("a status above 0", lambda status: status > 0),
    "OOM": ("a status other than 0", lambda status: status != 0),
    "KILLED": ("a signal, below 0", lambda status: status < 0),
    "USAGE": ("2", lambda status: status == 2),
    "INVALID_RUN": ("6", lambda status: status == 6),
}
CODES_OF_FINISHED = frozenset(
    {
        "NO_DUMP",
        "NO_TIME",
        "BAD_DUMP",
        "NO_OUTPUT",
        "BAD_OUTPUT",
        "FALLBACK",
        "IMPOSSIBLE_TIME",
        "HW_SLOWDOWN",
        "WRONG_CHECKOUT",
    }
)
"""Of slots whose process ended with status 0, like ``done`` and ``superseded``."""
RECORDED_CODES = frozenset({"OOM", "BAD_DUMP", "BAD_OUTPUT", "WRONG_CHECKOUT"})
"""What was seen once and cannot be seen again."""
SHARE_ROUNDING = 1e-4
_CODE = re.compile(r"[A-Z][A-Z_]*")


def ending_findings(campaign: Campaign, record: SlotRecord, tally: Tally) -> Iterator[Finding]:
    """Where ``result.json`` contradicts itself, or its dump, about how the slot ended. Imported slots had no end."""
    file = f"{record.directory}/{RESULT_FILE}"
    yield from _state_findings(record, file)
    if campaign.origin is not None:
        return
    tally.count("recorded only", record.reason_code in RECORDED_CODES)
    yield from _status_findings(record, file)
    yield from _clock_findings(record, file)
    yield from _contention_findings(campaign, record, file)
    yield from _cause_findings(campaign, record, file)


def _state_findings(record: SlotRecord, file: str) -> Iterator[Finding]:
    code = record.reason_code
    allowed = STATES_OF_CODES.get(code, ("invalid", "absent"))
    if record.state not in allowed:
        yield Finding(file, None, "state", record.state, " or ".join(allowed), f"its reason_code {code!r}")
    if code is not None and not _CODE.fullmatch(code):
        yield Finding(file, f"has {code!r} in the place of a reason code")


def _status_findings(record: SlotRecord, file: str) -> Iterator[Finding]:
    status, code = record.returncode, record.reason_code or ""
    is_finished = record.state in ("done", "superseded") or code in CODES_OF_FINISHED
    source = f"its state {record.state}{f' ({code})' if code else ''}"
    if is_finished and status != 0:
        yield Finding(file, None, "returncode", status, 0, source)
    if code in STATUS_OF_CODES:
        wanted, is_right = STATUS_OF_CODES[code]
        if status is None or not is_right(status):
            yield Finding(file, None, "returncode", status, wanted, source)


def _clock_findings(record: SlotRecord, file: str) -> Iterator[Finding]:
    """The clocks of a slot whose process has ended: all there, and forwards."""
    if record.returncode is None:
        return
    for key in ("started", "ended", "started_monotonic_s", "ended_monotonic_s", "wall_s"):
        if getattr(record, key) is None:
            yield Finding(file, f"has no {key}, though its process has ended")
    for first, last in (("started_monotonic_s", "ended_monotonic_s"), ("started", "ended")):
        began, ended = moment_s(getattr(record, first)), moment_s(getattr(record, last))
        tolerance_s = CLOCK_TOLERANCE_S if first == "started" else 0.0
        for key, stated, moment in ((first, getattr(record, first), began), (last, getattr(record, last), ended)):
            if stated is not None and moment is None:
                yield Finding(file, f"has a {key} that is no moment: {stated!r}")
        if began is not None and ended is not None and ended < began - tolerance_s:
            wanted = f"{getattr(record, first)} or later"
            yield Finding(file, None, last, getattr(record, last), wanted, f"{first}, when it began")


def _contention_findings(campaign: Campaign, record: SlotRecord, file: str) -> Iterator[Finding]:
    """``busy`` follows from the share and the threshold, and the threshold from the machine's cores."""
    seen = record.contention
    if seen.other_cpu_share is None:
        if seen.busy:
            yield Finding(file, None, "contention.busy", True, None, "the share that was not measured")
    elif seen.threshold is not None and abs(seen.other_cpu_share - seen.threshold) > SHARE_ROUNDING:
        is_busy = seen.other_cpu_share > seen.threshold
        if seen.busy != is_busy:
            source = f"contention.other_cpu_share {seen.other_cpu_share:g} and threshold {seen.threshold:g}"
            yield Finding(file, None, "contention.busy", seen.busy, is_busy, source)
    processor = campaign.environment.get("processor")
    cores = processor.get("usable_cores") if isinstance(processor, Mapping) else None
    is_here = record.device is None or record.device.node is None
    if isinstance(cores, int) and cores > 0 and is_here and seen.threshold is not None:
        quota = processor.get("quota_cores") if isinstance(processor, Mapping) else None
        expected = busy_threshold(min(cores, quota) if isinstance(quota, int | float) and quota > 0 else cores)
        if seen.threshold != expected:
            source = f"campaign.json environment.processor.usable_cores {cores}"
            yield Finding(file, None, "contention.threshold", seen.threshold, expected, source)


def _cause_findings(campaign: Campaign, record: SlotRecord, file: str) -> Iterator[Finding]:
    """What makes a slot invalid by what is kept of it must do so again, and what would must not be ``done``."""
    dump = _dump(campaign, record)
    causes = {
        "HW_SLOWDOWN": None if record.gpu is None else hardware_slowdown(record.gpu),
        "IMPOSSIBLE_TIME": _impossible(dump, record),
        "FALLBACK": _fallback(dump),
        "NO_DUMP": _no_dump(campaign, record),
        "NO_TIME": _no_time(campaign, record),
        "NO_OUTPUT": _no_output(campaign, record),
        "TIMEOUT": _timed_out(campaign, record),
    }
    code = record.reason_code or ""
    if code in causes and causes[code] is None:
        yield Finding(
            file, f"says that the slot is invalid because of {code}, and nothing that is kept of it shows that"
        )
    for cause in ("HW_SLOWDOWN", "IMPOSSIBLE_TIME", "FALLBACK"):
        if record.state in ("done", "superseded") and causes[cause] is not None:
            yield Finding(file, f"says {record.state}, and the slot is invalid: {cause}, {causes[cause]}")
    if record.state in ("done", "superseded") and dump is not None:
        yield from _stamp_findings(record, dump)


def _dump(campaign: Campaign, record: SlotRecord) -> PerfDump | None:
    try:
        return read_perf_dump(campaign.directory / record.directory / PERF_FILE)
    except FuseproofError:
        return None


def _stamp_findings(record: SlotRecord, dump: PerfDump) -> Iterator[Finding]:
    """A dump is written while its slot runs: one of another slot is of another time."""
    began, ended = moment_s(record.started), moment_s(record.ended)
    stamp = next(iter(stated_moments(dump.raw.get("timestamp"))), None)
    moment = None if stamp is None else moment_s(stamp.isoformat())
    if began is None or ended is None or moment is None or ended < began:
        return
    if not began - CLOCK_TOLERANCE_S <= moment <= ended + CLOCK_TOLERANCE_S:
        file, source = f"{record.directory}/{PERF_FILE}", f"{RESULT_FILE}, when the slot ran"
        yield Finding(file, None, "timestamp", dump.raw.get("timestamp"), f"{record.started} to {record.ended}", source)


def _impossible(dump: PerfDump | None, record: SlotRecord) -> str | None:
    if record.wall_s is None:
        return None
    own = None if dump is None else dump.timers
    claimed = record.times if own is None or dump is None else SlotTimes(
        worker_s=dump.worker_ms / 1e3, client_s=None if dump.client_ms is None else dump.client_ms / 1e3
    )  # fmt: skip
    return _reason(lambda: refuse_impossible_times(claimed, record.wall_s or 0.0))


def _fallback(dump: PerfDump | None) -> str | None:
    return None if dump is None else _reason(lambda: refuse_fallback(dump))


def _reason(check: Callable[[], object]) -> str | None:
    try:
        check()
    except EvidenceError as error:
        return error.reason
    return None


def _no_dump(campaign: Campaign, record: SlotRecord) -> str | None:
    return None if (campaign.directory / record.directory / PERF_FILE).exists() else "no dump"


def _no_time(campaign: Campaign, record: SlotRecord) -> str | None:
    pattern = campaign.plan.arm(record.arm).time_pattern
    return None if pattern is None else _reason(lambda: printed_time(campaign.directory / record.directory, pattern))


def _no_output(campaign: Campaign, record: SlotRecord) -> str | None:
    folder = campaign.directory / record.directory / OUTPUTS_FOLDER
    found = any(path.is_file() and not path.name.startswith(".") for path in folder.rglob("*"))
    return None if found else "no output"


def _timed_out(campaign: Campaign, record: SlotRecord) -> str | None:
    is_long = record.wall_s is not None and record.wall_s >= campaign.plan.timeout_s
    return "it took longer than it may" if is_long else None
