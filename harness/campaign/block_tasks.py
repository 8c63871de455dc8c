"""One block as a task for another machine: everything it needs, and what it gives back.

The campaign folder lies on a file system that all machines share, at the same path. A task writes its slots' own
folders and nothing else; ``campaign.json`` belongs to the program that handed the task out. Where a task is lost with
its machine, the folders say what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fuseproof import __version__
from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.arm_lineage import ArmLineage
from fuseproof.harness.campaign.arm_places import ArmPlace
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.runner import BlockLoop, SessionInterruptedError, SilentObserver
from fuseproof.harness.campaign.slots import SlotExecutor
from fuseproof.schedules.plan import Plan


@dataclass(frozen=True)
class BlockTask:
    """A block to be run. ``plan`` holds its cell alone; ``records`` are the cell's slots so far."""

    directory: Path
    plan: Plan
    cell: str
    block: int
    created: str
    working_directory: Path
    records: tuple[SlotRecord, ...] = ()
    places: Mapping[str, ArmPlace] = field(default_factory=dict)
    lineage: Mapping[str, ArmLineage] = field(default_factory=dict)
    slot_variables: Mapping[tuple[str, str], Mapping[str, str]] = field(default_factory=dict)
    """As :class:`Campaign` has them, of this cell alone."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to every slot's environment, whichever machine it runs on."""
    fuseproof_version: str = __version__

    @property
    def name(self) -> str:
        """``panda/01``, as the slots' folders begin."""
        return f"{self.cell}/{self.block:02d}"

    @classmethod
    def of(cls, campaign: Campaign, cell: str, block: int, environment: Mapping[str, str]) -> BlockTask:
        """The task for one block as the campaign stands."""
        return cls(
            directory=campaign.directory,
            plan=campaign.plan.model_copy(update={"cells": (campaign.plan.cell(cell),)}),
            cell=cell,
            block=block,
            created=campaign.created,
            working_directory=campaign.working_directory,
            records=tuple(slot for slot in campaign.slots() if slot.cell == cell),
            places=dict(campaign.places),
            lineage=dict(campaign.present_lineage),
            slot_variables={key: value for key, value in campaign.slot_variables.items() if key[0] == cell},
            environment=dict(environment),
        )


@dataclass(frozen=True)
class BlockResult:
    """What became of a task: every slot of its block, the slot that gave the cell up, and what a person should read."""

    records: tuple[SlotRecord, ...]
    failure: SlotRecord | None = None
    was_interrupted: bool = False
    remarks: tuple[str, ...] = ()


class CampaignBranch(Campaign):
    """A campaign as a task sees it: slots write their own folders, ``campaign.json`` is somebody else's."""

    def _save_index(self) -> None:
        return


@dataclass
class KeptRemarks(SilentObserver):
    """An observer that keeps what is remarked, for the program that handed the task out."""

    remarks: list[str] = field(default_factory=list)

    def remark(self, text: str) -> None:
        self.remarks.append(text)


def run_block_task(task: BlockTask, executor: SlotExecutor, interrupts: Interrupts) -> BlockResult:
    """Run a task's block on this machine.

    Raises :class:`FuseproofError` where this machine runs another fuseproof or does not see the campaign folder.
    """
    if task.fuseproof_version != __version__:
        raise FuseproofError(
            f"A node has fuseproof {__version__}, the campaign was started with {task.fuseproof_version}.",
            next_step="Install the same version on every node.",
        )
    if not task.directory.is_dir():
        raise FuseproofError(
            f"A node does not see the campaign folder {task.directory}.",
            next_step="Put it on a file system that all nodes share, at the same path, with --output.",
        )
    branch = CampaignBranch(
        task.directory, task.plan, task.created, task.fuseproof_version, (), {}, task.working_directory
    )
    branch.places, branch.present_lineage, branch.slot_variables = task.places, task.lineage, task.slot_variables
    branch.take_in(task.records)
    observer = KeptRemarks()
    loop = BlockLoop(branch, executor, observer, interrupts)
    failure, was_interrupted = None, False
    try:
        failure = loop.run_block(task.plan.cell(task.cell), task.block)
    except SessionInterruptedError:
        was_interrupted = True
    own = tuple(slot for slot in branch.slots() if slot.block == task.block)
    return BlockResult(own, failure, was_interrupted, tuple(observer.remarks))
