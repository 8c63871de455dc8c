"""One call of ``fuseproof abba`` on one campaign folder: locks, checks, slots, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.adding_blocks import add_blocks
from fuseproof.harness.campaign.arm_caches import cache_space
from fuseproof.harness.campaign.arm_programs import changed_on_disk
from fuseproof.harness.campaign.arm_sessions import adopt, clean_up
from fuseproof.harness.campaign.arms import check_arms, portable
from fuseproof.harness.campaign.crash_recovery import recover
from fuseproof.harness.campaign.floors import Floor, keep_floor
from fuseproof.harness.campaign.folder import Campaign, refuse_used_folder, utc_text
from fuseproof.harness.campaign.git_arms import PreparedArms, moved_refs, prepare_arms, resolve_arms
from fuseproof.harness.campaign.inputs import refuse_missing_inputs
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.kept_bench import KeptBench, keep_bench
from fuseproof.harness.campaign.locking import campaign_locks, device_names
from fuseproof.harness.campaign.model_ledger import CampaignWeights, HeldWeights, OwnWeights
from fuseproof.harness.campaign.plan_source import PlanSource
from fuseproof.harness.campaign.readiness import refuse_leftovers
from fuseproof.harness.campaign.runner import CampaignObserver, CampaignRunner, Outcome, SilentObserver
from fuseproof.harness.campaign.slots import Clock, ProcessExecutor, SlotExecutor, SystemClock
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.plan import Plan


class Runner(Protocol):
    """Runs what a campaign still lacks, once."""

    def run(self) -> Outcome: ...


@dataclass
class CampaignSession:
    """Everything around the loop. ``check_machine`` raises when the machine is too busy to start; None looks away.

    ``make_runner`` makes another loop than that of one lane; ``devices`` are the devices to lock where they are not
    those that ``environment`` calls visible.
    """

    command: Sequence[str]
    environment: Mapping[str, Any]
    executor: SlotExecutor = field(default_factory=ProcessExecutor)
    observer: CampaignObserver = field(default_factory=SilentObserver)
    clock: Clock = field(default_factory=SystemClock)
    interrupts: Interrupts = field(default_factory=Interrupts)
    check_machine: Callable[[], None] | None = None
    make_runner: Callable[[Campaign, CampaignObserver, Interrupts], Runner] | None = None
    devices: Sequence[str] | None = None
    weights: CampaignWeights = field(default_factory=OwnWeights)
    """Fetches the weights before slot 1, and cleans up at the end."""
    add_blocks: int = 0
    """How many blocks a resumed campaign gets beyond those that it has."""
    floor: Floor | None = None
    """An A/A floor that is kept in the campaign's folder before slot 1."""
    bench: KeptBench | None = None
    """Times of single kernels that are kept in the folder of an ablation, likewise."""
    plan_source: PlanSource | None = None
    """Of a new campaign whose plan is a stored one's."""

    def start(self, plan: Plan, directory: Path) -> Outcome:
        """Run a new campaign in ``directory``, which must be missing or empty; nothing is written before all checks."""
        check_arms(plan)
        refuse_missing_inputs(plan, Path.cwd())
        worktrees = resolve_arms(plan, Path.cwd())
        stored_plan = portable(plan)
        refuse_used_folder(directory)
        created = utc_text(self.clock.now())
        with self._locked(directory):
            self._check_machine()
            prepared = prepare_arms(plan, worktrees, cache_space(directory, created), Path.cwd())
            with self.weights.held(plan, directory, Path.cwd()) as weights:
                campaign = Campaign.create(
                    directory,
                    stored_plan,
                    command=self.recorded_command,
                    environment=self.environment,
                    created=created,
                )
                campaign.plan_source = self.plan_source  # written with the arms' lineage, before slot 1
                return self._run(campaign, prepared, weights)

    def resume(self, directory: Path, plan: Plan | None) -> Outcome:
        """Go on with a campaign; ``plan``, when given, must be the one it began with."""
        campaign = Campaign.open(directory)
        if campaign.origin is not None:
            raise UsageError(
                f"{directory} was imported: there is nothing in it that could go on.",
                next_step="Measure in a new campaign with `fuseproof abba`.",
            )
        refuse_change_of_lanes(campaign, self.make_runner is not None)
        if plan is not None:
            refuse_other_plan(campaign, portable(plan))
        check_arms(campaign.plan, campaign.working_directory)
        refuse_missing_inputs(campaign.plan, campaign.working_directory)
        refuse_leftovers(campaign)
        worktrees = resolve_arms(campaign.plan, campaign.working_directory, campaign.lineage)
        with self._locked(directory):
            self._check_machine()
            space = cache_space(directory, campaign.created)
            prepared = prepare_arms(campaign.plan, worktrees, space, campaign.working_directory)
            campaign = Campaign.open(directory)
            recover(campaign)
            if self.add_blocks:
                add_blocks(campaign, self.add_blocks)
            for sentence in moved_refs(campaign.plan, worktrees):
                self.observer.remark(sentence)
            for sentence in changed_on_disk(campaign.slots(), prepared.places, campaign.working_directory):
                self.observer.remark(sentence)
            for change in changed_software(campaign.environment, self.environment):
                self.observer.remark(f"since this campaign began, {change}: its blocks measured different software")
            with self.weights.held(unfinished(campaign), directory, campaign.working_directory) as weights:
                campaign.begin_session(utc_text(self.clock.now()), self.recorded_command, self.environment)
                return self._run(campaign, prepared, weights)

    @property
    def recorded_command(self) -> tuple[str, ...]:
        return tuple(redact(word) for word in self.command)

    def _check_machine(self) -> None:
        if self.check_machine is not None:
            self.check_machine()

    def _locked(self, directory: Path) -> AbstractContextManager[None]:
        devices = device_names(self.environment) if self.devices is None else self.devices
        return campaign_locks(directory, devices)

    def _runner(self, campaign: Campaign) -> Runner:
        if self.make_runner is not None:
            return self.make_runner(campaign, self.observer, self.interrupts)
        return CampaignRunner(campaign, self.executor, self.observer, self.interrupts)

    def _run(self, campaign: Campaign, prepared: PreparedArms, weights: HeldWeights) -> Outcome:
        if self.floor is not None:
            keep_floor(self.floor, campaign.directory)
        if self.bench is not None:
            keep_bench(self.bench, campaign.directory)
        adopt(campaign, prepared)
        weights.adopt(campaign)
        for sentence in prepared.remarks:
            self.observer.remark(sentence)
        runner = self._runner(campaign)
        try:
            with self.interrupts:
                outcome = runner.run()
        except FuseproofError as error:
            error.next_step = f"When that is mended, go on with: fuseproof abba --resume {campaign.directory}"
            raise
        clean_up(campaign)
        return outcome


def refuse_change_of_lanes(campaign: Campaign, has_lanes: bool) -> None:
    """Raise :class:`UsageError` where blocks had a GPU of their own and would go on without one."""
    device = next((slot.device for slot in campaign.slots() if slot.device is not None), None)
    if device is None or has_lanes:
        return
    flags = "--executor ray" if device.node is not None else "--gpus 0,1"
    raise UsageError(
        f"The blocks in {campaign.directory} ran side by side, and nothing says where the others shall run.",
        next_step=f"Say it as before, for example: fuseproof abba --resume {campaign.directory} {flags}",
    )


def unfinished(campaign: Campaign) -> Plan:
    """The plan of what a campaign still has to run: its cells that lack blocks, perhaps none."""
    plan = campaign.plan
    cells = [cell for cell in plan.cells if campaign.missing_blocks(cell.name)]
    return plan.model_copy(update={"cells": tuple(cells)})


def refuse_other_plan(campaign: Campaign, plan: Plan) -> None:
    """Raise :class:`UsageError` unless ``plan`` is the one ``campaign`` began with."""
    differing = campaign.plan.differences(plan)
    if differing:
        raise UsageError(
            f"{campaign.directory} was begun with another plan; they differ in {', '.join(differing[:5])}.",
            next_step="Resume it with --resume alone, or start a new campaign.",
        )


def changed_software(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two descriptions of the environment that arms run in, in words."""
    changes = []
    for key in ("commit", "diff_sha256"):
        old, new = (_mapping(source, "fuseproof").get(key) for source in (before, now))
        if old != new:
            changes.append(f"fuseproof's {key} went from {old} to {new}")
    libraries, libraries_now = _mapping(before, "libraries"), _mapping(now, "libraries")
    for name in sorted({*libraries, *libraries_now}):
        if libraries.get(name) != libraries_now.get(name):
            changes.append(f"{name} went from {libraries.get(name)} to {libraries_now.get(name)}")
    return changes


def _mapping(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = source.get(key)
    return value if isinstance(value, Mapping) else {}
