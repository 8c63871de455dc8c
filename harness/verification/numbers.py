"""Times, memory, work and counters of each slot, computed again from its perf dump; and the dump against itself."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.evidence import Evidence, EvidenceError, stated_by
from fuseproof.harness.campaign.folder import PERF_FILE, RESULT_FILE, Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.sglang_log import slot_log, with_client_time
from fuseproof.harness.perf.dump import PerfDump, read_perf_dump
from fuseproof.harness.verification.conditions import gpu_findings
from fuseproof.harness.verification.dump_config import config_findings
from fuseproof.harness.verification.dump_sums import dump_findings
from fuseproof.harness.verification.findings import NUMBERS, Check, Finding, Tally
from fuseproof.harness.verification.printed_times import printed_time_findings

ROUNDING_ULPS = 2
"""Last places of a double: seconds times a thousand, and back."""


def is_measured(record: SlotRecord) -> bool:
    """Whether a ``result.json`` holds what was measured: that of a finished run, or of one refused afterwards."""
    times = dataclasses.astuple(record.times)
    return record.state in ("done", "superseded") or bool(record.outputs) or any(time is not None for time in times)


def check_numbers(campaign: Campaign, changed: frozenset[str]) -> Check:
    """Compare every number of every measured slot with its dump; ``changed`` are files that are not as signed.

    Where exactly one of the two files is, it is the one that is named.
    """
    tally = Tally()
    unseen_peaks = 0
    for record in campaign.slots():
        if not is_measured(record):
            continue
        path = campaign.directory / record.directory / PERF_FILE
        if not path.is_file():
            tally.add([Finding(f"{record.directory}/{PERF_FILE}", "is missing, so its times cannot be recomputed")])
            continue
        try:
            dump = read_perf_dump(path)
            evidence = _with_log(record, dump, path.parent)
        except (FuseproofError, EvidenceError) as error:
            problem = f"cannot be used: {str(error).replace(f'{campaign.directory}/', '')}"
            tally.add([Finding(f"{record.directory}/{PERF_FILE}", problem)])
            continue
        slot = _Slot(record, dump, evidence, changed)
        tally.add(_time_findings(slot, tally))
        tally.add(_memory_findings(slot, tally))
        tally.add(_shared_findings(slot, tally, "work", record.work, evidence.work))
        tally.add(_shared_findings(slot, tally, "fastpaths", record.fastpaths, evidence.fastpaths))
        tally.add(_hidden_findings(slot))
        tally.add(config_findings(campaign, record, dump))
        tally.add(printed_time_findings(campaign, record, tally))
        tally.add(gpu_findings(campaign, record, changed, tally))
        tally.add(dump_findings(dump, f"{record.directory}/{PERF_FILE}", tally))
        unseen_peaks += _is_of_sampler(slot)
    notes = (
        (f"{unseen_peaks} peaks of host memory are the sampler's: recorded, not recomputed",) if unseen_peaks else ()
    )
    return Check(NUMBERS, tally.counts, tuple(tally.findings), notes)


def _with_log(record: SlotRecord, dump: PerfDump, folder: Path) -> Evidence:
    """What the dump says, and the log's client seconds where only the log has them."""
    evidence = stated_by(dump)
    if record.times.client_s is None or evidence.times.client_s is not None:
        return evidence
    return dataclasses.replace(evidence, times=with_client_time(evidence.times, dump, slot_log(folder)))


@dataclasses.dataclass(frozen=True)
class _Slot:
    """A record beside what its dump says; ``changed`` are files that are not as signed."""

    record: SlotRecord
    dump: PerfDump
    evidence: Evidence
    changed: frozenset[str]

    def disagreement(self, place: str, stated: Any, expected: Any, dump_place: str, dump_value: Any) -> Finding:
        """Two files disagree: the one that was changed is named, or ``result.json`` where that is not known.

        ``expected`` is what ``result.json`` should hold, ``dump_value`` the same as the dump writes it.
        """
        result, dump = f"{self.record.directory}/{RESULT_FILE}", f"{self.record.directory}/{PERF_FILE}"
        if dump in self.changed and result not in self.changed:
            return Finding(dump, None, dump_place, dump_value, stated, f"{RESULT_FILE} {place}")
        return Finding(result, None, place, stated, expected, f"{dump} {dump_place}")


def _time_findings(slot: _Slot, tally: Tally) -> Iterator[Finding]:
    expected = dataclasses.asdict(slot.evidence.times)
    for name, stated in dataclasses.asdict(slot.record.times).items():
        tally.count("times", stated is not None)
        if not _is_same(stated, expected[name]):
            place, value = _timer_place(slot.dump, name.removesuffix("_s"))
            yield slot.disagreement(f"times.{name}", stated, expected[name], place, value)


def _is_same(stated: float | None, expected: float | None) -> bool:
    """Equal, but for the rounding of milliseconds divided by a thousand."""
    if stated is None or expected is None:
        return stated is expected
    return abs(stated - expected) <= ROUNDING_ULPS * math.ulp(expected)


def _timer_place(dump: PerfDump, timer: str) -> tuple[str, float | None]:
    """Where a dump holds a timer, and its milliseconds there."""
    name = f"{timer}_ms"
    if timer == "worker" and name not in dump.timers:
        return "total_duration_ms", dump.total_ms
    if timer == "client" and name not in dump.timers:
        return "and its logs", None
    if timer == "denoise" and name not in dump.timers:
        return "steps and denoise_steps_ms", dump.denoise_ms
    return f"timers.{name}", dump.timers.get(name)


def _memory_findings(slot: _Slot, tally: Tally) -> Iterator[Finding]:
    expected = dataclasses.asdict(slot.evidence.memory)
    for name, stated in dataclasses.asdict(slot.record.memory).items():
        if name not in expected or (name == "peak_rss_mib" and _is_of_sampler(slot)):
            continue
        tally.count("memory peaks", stated is not None)
        if stated != expected[name]:
            yield slot.disagreement(f"memory.{name}", stated, expected[name], "memory_checkpoints", expected[name])


def _is_of_sampler(slot: _Slot) -> bool:
    """The largest of two views of one counter is kept: above the dump's, it is the sampler's."""
    stated, own = slot.record.memory.peak_rss_mib, slot.evidence.memory.peak_rss_mib
    return stated is not None and (own is None or stated > own)


def _shared_findings(
    slot: _Slot, tally: Tally, place: str, stated: Mapping[str, Any] | None, expected: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """Leaves that both sides have; counters of older versions may be fewer."""
    if stated is None or expected is None:
        return
    for key, own in stated.items():
        path = f"{place}.{key}"
        if isinstance(own, Mapping) and isinstance(expected.get(key), Mapping):
            yield from _shared_findings(slot, tally, path, own, expected[key])
        elif key in expected:
            tally.count("counters", isinstance(own, int | float) and not isinstance(own, bool))
            if own != expected[key]:
                dump_place = "requests[].work" if place == "work" else path
                yield slot.disagreement(path, own, expected[key], dump_place, expected[key])


def _hidden_findings(slot: _Slot) -> Iterator[Finding]:
    """Counters and sites that a dump states and its record keeps silent about."""
    counted = {name for request in slot.dump.requests if isinstance(work := request.get("work"), dict) for name in work}
    for name in sorted(counted - (slot.record.work or {}).keys()):
        yield slot.disagreement(f"work.{name}", None, slot.evidence.work.get(name), "requests[].work", None)
    sites = slot.dump.fastpaths.get("sites")
    own = (slot.record.fastpaths or {}).get("sites")
    for name in sorted(sites if isinstance(sites, dict) else ()):
        if not isinstance(own, Mapping) or name not in own:
            yield slot.disagreement(f"fastpaths.sites.{name}", None, "a site", f"fastpaths.sites.{name}", "a site")
