"""Does a slot's folder still say what its ``result.json`` says? Times against its perf dump, hashes against its files.

A slot is judged by ``result.json``, which was written when its process had ended. A dump or a picture that was
rewritten later, a number that was edited, or a dump that is another slot's copy makes the slot unusable; so does a
folder that is gone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.repeated_times import precise_times, repeated_times
from fuseproof.harness.campaign.evidence import times_of
from fuseproof.harness.campaign.folder import MISSING, PERF_FILE, Campaign
from fuseproof.harness.campaign.records import SlotOutput, SlotRecord
from fuseproof.harness.campaign.sglang_log import slot_log, with_client_time
from fuseproof.harness.media.files import file_sha256
from fuseproof.harness.perf.dump import PerfDump

CONTRADICTION = "CONTRADICTION"
COPIED_DUMP = "COPIED_DUMP"
DOUBTED_CODES = frozenset({CONTRADICTION, COPIED_DUMP, MISSING})
"""The arm did not fail: what is on disk cannot be believed, or is gone."""
RELATIVE_TOLERANCE = 1e-9
"""Milliseconds divided by a thousand and written as decimals."""


def copied_dumps(campaign: Campaign) -> dict[str, str]:
    """Slot id → why its dump is not its own: another finished slot's is the same, byte for byte or in its times."""
    holders: dict[str, list[str]] = {}
    times: dict[str, Mapping[str, float]] = {}
    for slot in campaign.slots():
        path = campaign.directory / slot.directory / PERF_FILE
        if slot.state == "done" and path.is_file():
            content = _bytes(path)
            holders.setdefault(hashlib.sha256(content).hexdigest(), []).append(slot.id)
            times[slot.id] = precise_times(content)
    copies = {
        slot_id: f"{amount} of the times in its {PERF_FILE} are those of {other}, to the digit: a clock never repeats "
        "itself, so at least one of them is a copy"
        for slot_id, (other, amount) in repeated_times(times).items()
    }
    return copies | {
        slot_id: f"its {PERF_FILE} is that of {next(other for other in ids if other != slot_id)}, byte for byte: "
        "a clock never repeats itself, so at least one of them is a copy"
        for ids in holders.values()
        if len(ids) > 1
        for slot_id in ids
    }


def contradiction(
    record: SlotRecord, dump: PerfDump | None, folder: Path, left_out: Collection[str] = ()
) -> str | None:
    """The first thing in which a slot's ``result.json`` and its other files disagree; ``folder`` is the slot's own.

    ``left_out`` are the paths, relative to the campaign, that a packed folder may lack.
    """
    kept = [output for output in record.outputs if f"{record.directory}/{output.path}" not in left_out]
    found: Iterable[str] = (
        *(_time_differences(record, dump, folder) if dump is not None else ()),
        *_output_differences(kept, folder),
        *(_stated_differences(record.outputs, dump.outputs) if dump is not None else ()),
    )
    return next(iter(found), None)


def doubted(record: SlotRecord, code: str, reason: str) -> SlotRecord:
    """The record of a slot that may not be used, whatever it said itself."""
    return record.with_facts(state="invalid", reason_code=code, reason=reason)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FuseproofError(
            f"{path} cannot be read: {error.strerror or error}.", next_step="Check its permissions."
        ) from error


def _time_differences(record: SlotRecord, dump: PerfDump, folder: Path) -> Iterable[str]:
    times = times_of(dump)
    if record.times.client_s is not None and times.client_s is None:
        times = with_client_time(times, dump, slot_log(folder))
    stated = dataclasses.asdict(times)
    for name, value in dataclasses.asdict(record.times).items():
        other = stated[name]
        if value is None or (other is not None and math.isclose(value, other, rel_tol=RELATIVE_TOLERANCE)):
            continue
        timer = name.removesuffix("_s")
        what = f"no {timer} time" if other is None else f"{other:.10g} s of {timer} time"
        yield f"its result.json says {value:.10g} s of {timer} time and its {PERF_FILE} {what}"


def _output_differences(outputs: Iterable[SlotOutput], folder: Path) -> Iterable[str]:
    for output in outputs:
        path = folder / output.path
        if not path.is_file():
            yield f"its result.json holds the hash of {output.path}, which is missing"
        elif file_sha256(path) != output.file_sha256:
            yield f"{output.path} is not the file whose hash its result.json holds"


def _stated_differences(outputs: Iterable[SlotOutput], entries: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    """Hashes that the dump states of an output too; files are told apart by their names."""
    stated = {PurePosixPath(str(entry["path"])).name: entry for entry in entries if entry.get("path")}
    for output in outputs:
        entry = stated.get(PurePosixPath(output.path).name, {})
        for level in ("file", "raw", "latents"):
            theirs, ours = entry.get(f"{level}_sha256"), getattr(output, f"{level}_sha256")
            if isinstance(theirs, str) and theirs and theirs != ours:
                yield f"its result.json and its {PERF_FILE} hold different {level} hashes of {output.path}"
