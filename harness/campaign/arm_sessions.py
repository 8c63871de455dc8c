"""What a session does with its arms' trees: prepare them before slot 1, keep their lineage, clean up at the end."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.arm_caches import cache_space, remove_space
from fuseproof.harness.campaign.arm_lineage import ArmLineage
from fuseproof.harness.campaign.arm_places import ArmPlace
from fuseproof.harness.campaign.arm_programs import PROGRAMS
from fuseproof.harness.campaign.evidence import EvidenceError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.git_arms import PreparedArms, planned_places
from fuseproof.harness.campaign.worktrees import Worktree, changed_since_setup
from fuseproof.harness.perf.dump import PerfDump
from fuseproof.schedules.plan import Plan


def places_of(
    plan: Plan, directory: Path, created: str, working_directory: Path, worktrees: Mapping[str, Worktree]
) -> dict[str, ArmPlace]:
    """Where the arms would run, their refs resolved to ``worktrees``; nothing is made."""
    return planned_places(plan, worktrees, cache_space(directory, created), working_directory)


def adopt(campaign: Campaign, prepared: PreparedArms) -> None:
    """Give a campaign its arms, write their lineage into ``campaign.json`` and keep the logs of their setups.

    A resumed campaign keeps the lineage that it began with; its new slots record the one they have.
    """
    campaign.places, campaign.present_lineage = prepared.places, prepared.lineage
    campaign.lineage = campaign.lineage or prepared.lineage
    for letter, log in prepared.setup_logs.items():
        _keep_log(log, campaign.directory / "setup" / f"{letter}.log")
    campaign.save_status(campaign.status)


def clean_up(campaign: Campaign) -> None:
    """Remove the cache folders of a campaign that is complete; the trees stay for the next one."""
    if campaign.places and campaign.status == "complete":
        remove_space(cache_space(campaign.directory, campaign.created))


def slot_lineage(
    lineage: Mapping[str, ArmLineage], letter: str, programs: Mapping[str, str]
) -> dict[str, object] | None:
    """What a slot's record keeps of its arm's lineage, and of the ``programs`` that it runs; None without either."""
    known = lineage.get(letter)
    found = {} if known is None else known.of_slot()
    return ({**found, PROGRAMS: dict(programs)} if programs else found) or None


def refuse_wrong_checkout(dump: PerfDump, place: ArmPlace | None) -> None:
    """Raise :class:`EvidenceError` when a fuseproof dump names another commit than the arm's ref, or its tree changed.

    An arm that writes to its own tree would run other code from the next slot on, and nobody knows since when.
    """
    if place is not None and place.tree is not None and place.commit is not None:
        change = changed_since_setup(place.tree, place.commit)
        if change is not None:
            code = place.commit[:12]
            raise EvidenceError("WRONG_CHECKOUT", f"its tree is no longer the clean {code} of its ref: {change}")
    own = dump.environment.get("fuseproof")
    commit = own.get("commit") if isinstance(own, Mapping) else None
    if place is None or place.commit is None or not isinstance(commit, str) or commit == place.commit:
        return
    raise EvidenceError(
        "WRONG_CHECKOUT", f"its dump is of commit {commit[:12]}, but the arm's ref is {place.commit[:12]}"
    )


def _keep_log(log: Path, kept: Path) -> None:
    if kept.exists():
        return
    try:
        kept.parent.mkdir(exist_ok=True)
        shutil.copyfile(log, kept)
    except OSError as error:
        raise FuseproofError(f"The setup log {kept} cannot be kept: {error.strerror or error}.") from error
