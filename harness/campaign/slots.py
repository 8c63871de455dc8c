"""Run one slot: one arm, once, in a fresh process, and keep everything it says.

The slot's record is written twice: as ``running`` with its process id before the process is waited for, and complete
afterwards. Between the two nothing of ours works on the machine but the sampler.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from fuseproof.errors import FuseproofError
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.campaign.arm_caches import cache_record, warmth
from fuseproof.harness.campaign.arm_programs import slot_programs
from fuseproof.harness.campaign.arm_sessions import refuse_wrong_checkout, slot_lineage
from fuseproof.harness.campaign.arms import SlotCommand, recorded_argv, slot_command
from fuseproof.harness.campaign.evidence import (
    Evidence,
    EvidenceError,
    check_ending,
    collect,
    collect_dump,
    frames_listing,
    log_tail,
    read_tail,
    refuse_by_log,
)
from fuseproof.harness.campaign.folder import OUTPUTS_FOLDER, PERF_FILE, RESULT_FILE, Campaign, utc_text
from fuseproof.harness.campaign.gpu_records import SlotDevice, SlotGpu
from fuseproof.harness.campaign.gpu_rest import GpuWatch
from fuseproof.harness.campaign.gpu_telemetry import hardware_slowdown, slot_gpu
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.phases import SlotPhases, read_phases
from fuseproof.harness.campaign.plausibility import refuse_impossible_times
from fuseproof.harness.campaign.printed_times import write_printed_dump
from fuseproof.harness.campaign.processes import ProcessEnd, start_process
from fuseproof.harness.campaign.records import SlotMemory, SlotRecord, SlotState
from fuseproof.harness.campaign.sglang_log import SglangLog, slot_log, with_client_time
from fuseproof.harness.campaign.telemetry import ProcessSampler, Sampler, SlotTelemetry
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.order import PlannedSlot


class Clock(Protocol):
    """Where a campaign's times come from; tests bring their own."""

    def now(self) -> datetime: ...

    def monotonic_s(self) -> float: ...


class SystemClock:
    """UTC and the monotonic clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()


class SlotExecutor(Protocol):
    """Runs one planned slot of a campaign to its end and returns its complete record, already saved."""

    def execute(self, campaign: Campaign, slot: PlannedSlot, interrupts: Interrupts) -> SlotRecord: ...


@dataclass(frozen=True)
class SlotFiles:
    """The files of one slot's folder."""

    directory: Path

    @property
    def perf_dump(self) -> Path:
        return self.directory / PERF_FILE

    @property
    def outputs(self) -> Path:
        return self.directory / OUTPUTS_FOLDER

    @property
    def stdout(self) -> Path:
        return self.directory / "stdout.log"

    @property
    def stderr(self) -> Path:
        return self.directory / "stderr.log"

    @property
    def telemetry(self) -> Path:
        return self.directory / "telemetry.jsonl"

    @property
    def frames(self) -> Path:
        return self.directory / "frames.sha256"

    def make(self) -> None:
        """Make the folder; one that already holds a result is never used again."""
        if (self.directory / RESULT_FILE).exists():
            raise FuseproofError(f"The slot folder {self.directory} already holds a result.")
        try:
            self.outputs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FuseproofError(
                f"The slot folder {self.directory} cannot be made: {error.strerror or error}.",
                next_step="Free some space or choose another folder, then go on with --resume.",
            ) from error


@dataclass(frozen=True)
class Placement:
    """Where the slots of one lane run, when blocks run side by side.

    ``environment`` is added to every slot's own, except for what its arm sets itself; ``device`` is recorded.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    device: SlotDevice | None = None


@dataclass
class ProcessExecutor:
    """The real executor: a fresh process group, a sampler beside it, then the evidence."""

    clock: Clock = field(default_factory=SystemClock)
    make_sampler: Callable[[], Sampler] = ProcessSampler
    gpus: GpuWatch = field(default_factory=GpuWatch)
    placement: Placement = field(default_factory=Placement)

    def execute(self, campaign: Campaign, slot: PlannedSlot, interrupts: Interrupts) -> SlotRecord:
        """Run ``slot``; the record's state is done, invalid or interrupted.

        Raises :class:`FuseproofError` when the campaign folder cannot be written; the arm's own failures are records.
        """
        files = SlotFiles(campaign.slot_directory(slot.id))
        files.make()
        arm, cell = campaign.plan.arm(slot.arm), campaign.plan.cell(slot.cell)
        place = campaign.places.get(slot.arm)
        command = slot_command(arm, cell, files.perf_dump, files.outputs, place)
        added = {**campaign.slot_variables.get((slot.cell, slot.arm), {}), **self.placement.environment}
        placed = {name: value for name, value in added.items() if name not in arm.env}
        command = replace(command, overrides={**command.overrides, **placed})
        files_before = warmth(command.caches)
        folder = command.working_directory or campaign.working_directory
        programs = slot_programs(arm, command.argv, command.overrides, folder, files.directory)
        self.gpus.note_baseline()
        started, started_s = self.clock.now(), round(self.clock.monotonic_s(), 6)
        record = SlotRecord.planned(
            slot,
            command=recorded_argv(command.argv, campaign.directory),
            environment_overrides={name: redact(value) for name, value in command.overrides.items()},
            lineage=slot_lineage(campaign.present_lineage, slot.arm, programs),
            started=utc_text(started),
            started_monotonic_s=started_s,
            device=self.placement.device,
        )
        record, end, telemetry = self._run(campaign, record, command, files, interrupts)
        ended_s = round(self.clock.monotonic_s(), 6)
        phases = read_phases(files.directory, files.perf_dump, started, started_s, ended_s)
        record = record.with_facts(
            ended=utc_text(self.clock.now()),
            ended_monotonic_s=ended_s,
            wall_s=round(ended_s - started_s, 6),
            returncode=end.returncode,
            memory=SlotMemory(peak_rss_mib=telemetry.peak_rss_mib),
            contention=telemetry.contention,
            gpu=gpu_facts(telemetry, phases),
            caches=cache_record(command.caches, files_before) if command.caches else None,
            log_tail=log_tail(files.stderr, files.stdout, campaign.directory),
        )
        write_text_atomically(files.telemetry, telemetry.to_jsonl(phases))
        try:
            logs = read_tail(files.stderr) + read_tail(files.stdout)
            check_ending(end, logs, campaign.plan.timeout_s, is_generate=arm.command is None)
            log = slot_log(files.directory) if arm.command is not None else SglangLog()
            if log.has_failed:  # sglang says so, and ends with status 0
                raise EvidenceError("EXIT", "its log says that the generation failed, and it ended with status 0")
            if arm.time_pattern is not None:
                write_printed_dump(files.directory, files.perf_dump, arm.time_pattern, self.clock.now())
            dump = collect_dump(files.perf_dump, started)
            refuse_by_log(log, command.argv, dump.config)
            refuse_wrong_checkout(dump, place)
            evidence = collect(dump, files.outputs, command.writes_outputs)
            evidence = replace(evidence, times=with_client_time(evidence.times, dump, log))
            refuse_impossible_times(evidence.times, ended_s - started_s)
        except EvidenceError as error:
            state: SlotState = "interrupted" if error.code == "INTERRUPTED" else "invalid"
            record = record.with_facts(state=state, reason_code=error.code, reason=error.reason)
        else:
            write_text_atomically(files.frames, frames_listing(evidence.outputs))
            record = spoilt_by_slowdown(with_evidence(record, evidence))
        campaign.save_slot(record)
        return self._rested(campaign, record, interrupts)

    def _rested(self, campaign: Campaign, record: SlotRecord, interrupts: Interrupts) -> SlotRecord:
        """Wait until the GPUs are as before the campaign, and keep how that went; nothing where there are none."""
        at_rest = self.gpus.wait_for_rest(lambda: interrupts.requested)
        if at_rest is None:
            return record
        record = record.with_facts(gpu=replace(record.gpu or SlotGpu(), at_rest=at_rest))
        campaign.save_slot(record)
        return record

    def _run(
        self, campaign: Campaign, record: SlotRecord, command: SlotCommand, files: SlotFiles, interrupts: Interrupts
    ) -> tuple[SlotRecord, ProcessEnd, SlotTelemetry]:
        sampler, gpu_sampler = self.make_sampler(), self.gpus.sampler()
        environment = {**os.environ, **command.overrides}
        folder = command.working_directory or campaign.working_directory
        child = start_process(command.argv, environment, folder, files.stdout, files.stderr)
        try:
            sampler.start(child.pid)
            gpu_sampler.start()
            record = record.with_facts(pid=child.pid)
            campaign.save_slot(record)
            end = child.wait(campaign.plan.timeout_s, interrupts)
        except BaseException:
            child.kill()
            gpu_sampler.stop()
            sampler.stop()
            raise
        recording = gpu_sampler.stop()  # first: its processor time is ours once it has been waited for
        return record, end, replace(sampler.stop(), gpu=recording)


def gpu_facts(telemetry: SlotTelemetry, phases: SlotPhases) -> SlotGpu | None:
    """What was seen of the GPUs, summed up; None where there are none."""
    return None if telemetry.gpu is None else slot_gpu(telemetry.gpu, phases)


def spoilt_by_slowdown(record: SlotRecord) -> SlotRecord:
    """The record, or an invalid one with all its numbers when the hardware slowed a GPU down meanwhile."""
    reason = hardware_slowdown(record.gpu) if record.gpu is not None else None
    if reason is None:
        return record
    return record.with_facts(state="invalid", reason_code="HW_SLOWDOWN", reason=reason)


def with_evidence(record: SlotRecord, evidence: Evidence) -> SlotRecord:
    """The finished record. The peak is the larger of what the arm and what the sampler saw of the same counter."""
    peaks = (record.memory.peak_rss_mib, evidence.memory.peak_rss_mib)
    peak_rss_mib = max((peak for peak in peaks if peak is not None), default=None)
    return record.with_facts(
        state="done",
        times=evidence.times,
        memory=replace(evidence.memory, peak_rss_mib=peak_rss_mib),
        outputs=evidence.outputs,
        work=evidence.work,
        fastpaths=evidence.fastpaths,
    )
