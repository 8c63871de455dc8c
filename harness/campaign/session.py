"""One call of ``fuseproof abba`` on one campaign folder: locks, checks, slots, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.arm_caches import cache_space
from fuseproof.harness.campaign.arm_sessions import adopt, clean_up
from fuseproof.harness.campaign.arms import check_arms, portable
from fuseproof.harness.campaign.folder import Campaign, refuse_used_folder, utc_text
from fuseproof.harness.campaign.git_arms import PreparedArms, moved_refs, prepare_arms, resolve_arms
from fuseproof.harness.campaign.inputs import refuse_missing_inputs
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.locking import campaign_locks, device_names
from fuseproof.harness.campaign.readiness import refuse_leftovers
from fuseproof.harness.campaign.runner import CampaignObserver, CampaignRunner, Outcome, SilentObserver
from fuseproof.harness.campaign.slots import Clock, ProcessExecutor, SlotExecutor, SystemClock
from fuseproof.harness.machine.redaction import redact
from fuseproof.schedules.plan import Plan


@dataclass
class CampaignSession:
    """Everything around the loop. ``check_machine`` raises when the machine is too busy to start; None looks away."""

    command: Sequence[str]
    environment: Mapping[str, Any]
    executor: SlotExecutor = field(default_factory=ProcessExecutor)
    observer: CampaignObserver = field(default_factory=SilentObserver)
    clock: Clock = field(default_factory=SystemClock)
    interrupts: Interrupts = field(default_factory=Interrupts)
    check_machine: Callable[[], None] | None = None

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
            campaign = Campaign.create(
                directory,
                stored_plan,
                command=self.recorded_command,
                environment=self.environment,
                created=created,
            )
            return self._run(campaign, prepared)

    def resume(self, directory: Path, plan: Plan | None) -> Outcome:
        """Go on with a campaign; ``plan``, when given, must be the one it began with."""
        campaign = Campaign.open(directory)
        if campaign.origin is not None:
            raise UsageError(
                f"{directory} was imported: there is nothing in it that could go on.",
                next_step="Measure in a new campaign with `fuseproof abba`.",
            )
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
            for sentence in moved_refs(campaign.plan, worktrees):
                self.observer.remark(sentence)
            for change in changed_software(campaign.environment, self.environment):
                self.observer.remark(f"since this campaign began, {change}: its blocks measured different software")
            campaign.begin_session(utc_text(self.clock.now()), self.recorded_command, self.environment)
            return self._run(campaign, prepared)

    @property
    def recorded_command(self) -> tuple[str, ...]:
        return tuple(redact(word) for word in self.command)

    def _check_machine(self) -> None:
        if self.check_machine is not None:
            self.check_machine()

    def _locked(self, directory: Path) -> AbstractContextManager[None]:
        return campaign_locks(directory, device_names(self.environment))

    def _run(self, campaign: Campaign, prepared: PreparedArms) -> Outcome:
        adopt(campaign, prepared)
        for sentence in prepared.remarks:
            self.observer.remark(sentence)
        runner = CampaignRunner(campaign, self.executor, self.observer, self.interrupts)
        try:
            with self.interrupts:
                outcome = runner.run()
        except FuseproofError as error:
            error.next_step = f"When that is mended, go on with: fuseproof abba --resume {campaign.directory}"
            raise
        clean_up(campaign)
        return outcome


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
