"""One imported slot: its files copied, its record made from what they say, and no more."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.campaign.evidence import Evidence, EvidenceError, collect, frames_listing, log_tail
from fuseproof.harness.campaign.folder import OUTPUTS_FOLDER, PERF_FILE, utc_text
from fuseproof.harness.campaign.origin import NOT_IMPORTED, SLOT_ORDER, OriginFile
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.sglang_log import SglangLog, doubt_of, slot_log, with_client_time
from fuseproof.harness.importing.files import copy_file
from fuseproof.harness.importing.placing import ImportedRun, PlacedBlock, PlacedSlot
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.perf.fields import LARGEST_FILE_BYTES


@dataclass(frozen=True)
class WrittenSlot:
    """A slot's record, the files it came from, its run (None where no file was given) and its log's markers."""

    record: SlotRecord
    files: tuple[OriginFile, ...] = ()
    run: ImportedRun | None = None
    log: SglangLog | None = None


def write_slot(
    campaign: Path, block: PlacedBlock, slot: PlacedSlot, command: Sequence[str], environment: Mapping[str, str]
) -> WrittenSlot:
    """Copy a slot's files below ``campaign`` and make its record; a slot without a file is ``absent``."""
    planned, run = slot.planned, slot.run
    if run is None:
        return WrittenSlot(
            SlotRecord.planned(planned, "absent", reason_code=NOT_IMPORTED, reason=_absence(block, planned.label))
        )
    folder = campaign / "slots" / planned.id
    files = _copied(folder, planned.id, run)
    evidence = _evidence(run, folder)
    write_text_atomically(folder / "frames.sha256", frames_listing(evidence.outputs))
    log = slot_log(folder) if run.beside.logs else None
    times = evidence.times if log is None else with_client_time(evidence.times, run.read, log)
    record = SlotRecord.planned(
        planned,
        "done",
        command=tuple(map(redact, command)),
        environment_overrides=dict(environment),
        ended=None if run.written is None else utc_text(run.written),
        times=times,
        memory=evidence.memory,
        outputs=evidence.outputs,
        work=evidence.work,
        fastpaths=evidence.fastpaths,
        log_tail=log_tail(folder / "stderr.log", folder / "stdout.log", campaign),
    )
    doubt = _doubt(block, run, log, command)
    if doubt is not None:
        record = record.with_facts(state="invalid", reason_code=doubt[0], reason=doubt[1])
    return WrittenSlot(record, files, run, log)


def _absence(block: PlacedBlock, label: str) -> str:
    if block.label:
        return f"no perf dump of {label} of block {block.label} was given"
    return f"no perf dump of block {block.number} was given"


def _copied(folder: Path, slot_id: str, run: ImportedRun) -> tuple[OriginFile, ...]:
    dump_sha256 = copy_file(run.dump, folder / PERF_FILE, LARGEST_FILE_BYTES)
    files = [OriginFile(run.dump.shown, dump_sha256, "perf dump", slot_id)]
    for name, file in run.beside.logs:
        files.append(OriginFile(file.shown, copy_file(file, folder / name), "log", slot_id))
    for name, file in run.beside.outputs:
        target = folder / OUTPUTS_FOLDER / name
        files.append(OriginFile(file.shown, copy_file(file, target), "output", slot_id))
    with contextlib.suppress(FileExistsError):
        (folder / OUTPUTS_FOLDER).mkdir()
    return tuple(files)


def _evidence(run: ImportedRun, folder: Path) -> Evidence:
    """Times, memory, work and hashed outputs. An output that the dump states is known by its name here."""
    present = {Path(name).name: name for name, _ in run.beside.outputs}
    stated = [
        {**entry, "path": f"{OUTPUTS_FOLDER}/{present[name]}"}
        for entry in run.read.outputs
        if (name := Path(str(entry.get("path") or "")).name) in present
    ]
    try:
        return collect(replace(run.read, path=folder / PERF_FILE, outputs=stated), folder / OUTPUTS_FOLDER, False)
    except EvidenceError as error:
        raise FuseproofError(
            f"{run.dump.path} cannot be imported: {error.reason}.",
            next_step="Repair or remove what lies beside the dump, or import the run without it.",
        ) from error


def _doubt(
    block: PlacedBlock, run: ImportedRun, log: SglangLog | None, command: Sequence[str]
) -> tuple[str, str] | None:
    """Why a run may not be used: reason code and sentence."""
    if block.problem is not None:
        return SLOT_ORDER, f"{block.problem}, which is neither A-B-B-A nor B-A-A-B"
    fallback = run.read.config.get("fallback_reason") or run.read.environment.get("fallback_reason")
    if fallback:
        return "FALLBACK", f"the run fell back to another backend: {redact(str(fallback))}"
    return None if log is None else doubt_of(log, command, run.read.config)
