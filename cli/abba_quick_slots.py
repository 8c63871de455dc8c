"""The slots of ``fuseproof abba --quick``: one load, then one fresh session a slot, mounted and taken off again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.cli.abba_quick_leaks import LeakGuard
from fuseproof.cli.abba_quick_rules import WARMUPS, ArmOptions, refuse_unequal_requests
from fuseproof.cli.fastpath_choices import choose_certificate, refuse_fallback, refuse_unmet_at_once
from fuseproof.cli.generate_images import run_one
from fuseproof.cli.generate_record import missing_fastpaths, perf_dump
from fuseproof.cli.generation import Job, prepare, refuse_unreadable_prompts, session_settings
from fuseproof.cli.output_names import create_folder
from fuseproof.cli.phase_times import PhaseTimes
from fuseproof.errors import FuseproofError, InvalidMeasurementError
from fuseproof.harness.analysis.runs import CellRuns, CountedBlock, Run
from fuseproof.harness.campaign.evidence import EvidenceError, collect
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.perf.dump import read_perf_dump, write_perf_dump
from fuseproof.schedules.order import PlannedSlot, first_pass

if TYPE_CHECKING:
    from fuseproof.cli.fastpath_choices import ChosenCertificate
    from fuseproof.pipelines.loaded import LoadedPipeline
    from fuseproof.schedules.plan import Cell, Plan

ARM_WORDS = {"A": "baseline", "B": "candidate"}
SLOTS_OF_A_BLOCK = 4


@dataclass(frozen=True)
class QuickArm:
    """One arm of a cell, ready to run: its flags made a job, and the certificate that it trusts."""

    job: Job
    certificate: ChosenCertificate


@dataclass
class QuickRuns:
    """What ran of one cell so far. ``warmups`` are the discarded slots."""

    cell: Cell
    planned_blocks: int
    timed: list[Run] = field(default_factory=list)
    warmups: list[Run] = field(default_factory=list)

    def add(self, run: Run) -> None:
        (self.warmups if run.record.kind == "warmup" else self.timed).append(run)

    def whole_blocks(self) -> CellRuns:
        """The blocks whose four slots all ran; a block that was cut short does not count."""
        blocks = []
        for number in range(1, self.planned_blocks + 1):
            runs = tuple(run for run in self.timed if run.record.block == number)
            if len(runs) == SLOTS_OF_A_BLOCK:
                blocks.append(CountedBlock(number, 1, runs[0].record.orientation, runs))
        slots = tuple(run.record for run in (*self.warmups, *self.timed))
        return CellRuns(self.cell, self.planned_blocks, tuple(blocks), (), (), slots)


@dataclass
class QuickRunner:
    """Runs a plan's cells in this process. ``folder`` takes the slots' pictures and dumps; ``say`` shows progress."""

    plan: Plan
    folder: Path
    machine: Mapping[str, Any]
    say: Callable[[str], None]
    loads_ms: list[float] = field(default_factory=list)
    _loaded: LoadedPipeline | None = None
    _load_key: tuple[Any, ...] | None = None
    _guard: LeakGuard = field(default_factory=LeakGuard)

    def prepare(self, both: ArmOptions) -> dict[str, QuickArm]:
        """Both arms' jobs, by letter; every mistake that can be found before a weight is read is found here.

        A file of sites is executed last, when all that both arms will run is loaded and can be held against it.
        """
        without = {letter: dataclasses.replace(both.of(letter), fastpaths_from=None) for letter in ARM_WORDS}
        jobs = {letter: prepare(options) for letter, options in without.items()}
        refuse_unequal_requests(both.cell.name, jobs["A"].requests, jobs["B"].requests)
        jobs = {letter: self._guard.with_own_sites(job, both.of(letter)) for letter, job in jobs.items()}
        return {letter: QuickArm(job, choose_certificate(job.options, job.user_sites)) for letter, job in jobs.items()}

    def run(self, both: ArmOptions, arms: Mapping[str, QuickArm], runs: QuickRuns) -> None:
        """Run one cell's warm-ups and blocks, adding each finished slot to ``runs``.

        Raises :class:`FuseproofError` naming cell, slot and arm for a slot that fails; ``runs`` keeps the others.
        """
        self._load(both, arms["A"])
        slots = list(first_pass({runs.cell.name: runs.planned_blocks}, self.plan.order, WARMUPS))
        for number, slot in enumerate(slots, start=1):
            try:
                run = self._run_slot(slot, arms[slot.arm])
                self._guard.refuse_changes()
            except FuseproofError as error:
                error.message = f"Cell {slot.cell}, slot {slot.label} ({ARM_WORDS[slot.arm]}): {error.message}"
                raise
            runs.add(run)
            worker_s = run.record.times.worker_s or 0.0
            note = ", discarded" if slot.kind == "warmup" else ""
            name = slot.label if note else f"block {slot.block} {slot.label}"
            self.say(f"slot {number} of {len(slots)}, {slot.cell}, {name}: worker {worker_s:.3f} s{note}")

    def close(self) -> None:
        """Let go of the loaded pipeline."""
        loaded, self._loaded, self._load_key = self._loaded, None, None
        self._guard.forget_model()
        if loaded is not None:
            settle = loaded.settle
            del loaded
            settle(gives_back=True)

    def _load(self, both: ArmOptions, arm: QuickArm) -> None:
        """Load, unless the cell before had the same model on the same device."""
        if self._loaded is not None and self._load_key == both.load_key:
            return
        self.close()
        settings = session_settings(arm.job)
        from fuseproof.pipelines.loaded import LoadedPipeline

        refuse_unreadable_prompts(arm.job)
        self._loaded = LoadedPipeline.load(arm.job.family, arm.job.checkpoint, settings)
        self._guard.watch(self._loaded)
        self._load_key = both.load_key
        self.loads_ms.append(self._loaded.load_ms)

    def _run_slot(self, slot: PlannedSlot, arm: QuickArm) -> Run:
        """One slot: a session of its own on the loaded pipeline, warmed up, timed, hashed, closed."""
        if self._loaded is None:
            raise AssertionError("a slot runs on what was loaded")
        record = SlotRecord.planned(slot)
        place = self.folder / record.directory
        options = dataclasses.replace(
            arm.job.options, perf_dump_path=str(place / "perf.json"), output_path=str(place / "outputs")
        )
        job = dataclasses.replace(arm.job, options=options)
        create_folder(options.output_folder, "the folder for temporary files")
        self._loaded.settle(gives_back=True)
        dump = self._dump(job, arm.certificate, self._loaded)
        missing = missing_fastpaths(dump)
        if missing:
            raise InvalidMeasurementError(missing, next_step="Leave out --require-fastpaths to see the run's numbers.")
        path = place / "perf.json"
        write_perf_dump(path, dump)
        read = read_perf_dump(path)
        try:
            evidence = collect(read, place / "outputs", True)
        except EvidenceError as error:
            raise FuseproofError(f"{error.reason}.") from error
        facts = {name.name: getattr(evidence, name.name) for name in dataclasses.fields(evidence)}
        return Run(record.with_facts(state="done", **facts), read)

    def _dump(self, job: Job, certificate: ChosenCertificate, loaded: LoadedPipeline) -> dict[str, Any]:
        session = loaded.session(session_settings(job, certificate))
        try:
            refuse_fallback(job.options, session.backend)
            if job.options.require_fastpaths:
                refuse_unmet_at_once(session.fastpaths_report())
            for request in job.warmups:
                session.warm_up(request, job.options.warmup_plan.steps)
            loaded.settle(gives_back=False)
            finished = [
                run_one(index, job, session, lambda _: None, PhaseTimes()) for index in range(len(job.requests))
            ]
            return perf_dump(job, session, finished, self.machine, certificate)
        finally:
            session.close()


def cells_of(plan: Plan, arms: tuple[ArmOptions, ...]) -> Iterator[tuple[ArmOptions, QuickRuns]]:
    """Each cell's arms with an empty record of what ran."""
    for both in arms:
        yield both, QuickRuns(both.cell, plan.blocks_of(both.cell.name))
