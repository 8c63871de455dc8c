"""The A-B-B-A loop: cells, blocks, slots; what happens when a slot fails or somebody presses Ctrl-C.

A block counts only whole. When one of its slots is lost the block stops at once; it starts again in the same
orientation, after a discarded warm-up slot, if that may help. What was measured before stays on disk, marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from fuseproof.harness.campaign.arm_caches import cold_caches
from fuseproof.harness.campaign.arm_programs import changed_since
from fuseproof.harness.campaign.evidence import SMALLEST_DUMP, read_tail
from fuseproof.harness.campaign.folder import Campaign, CampaignStatus
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.plausibility import identical_times
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.slots import SlotExecutor
from fuseproof.harness.machine.activity import named_process
from fuseproof.schedules.order import PlannedSlot, timed_slots, warmup_slots
from fuseproof.schedules.plan import Cell

UNLUCKY_CODES = frozenset({"KILLED", "HW_SLOWDOWN"})
"""What befell a slot from outside; it says nothing of the arm."""


NEXT_STEPS = {
    "USAGE": "; correct the arm's flags and start a new campaign",
    "NO_DUMP": f". {SMALLEST_DUMP.rstrip('.')}",
}
"""Reason code → what stands behind the place of a failed slot's log."""


class CampaignObserver(Protocol):
    """Told what happens, to show it. Nothing it does may change what is measured."""

    def campaign_started(self, campaign: Campaign) -> None: ...

    def slot_started(self, slot: PlannedSlot) -> None: ...

    def slot_finished(self, record: SlotRecord) -> None: ...

    def remark(self, text: str) -> None:
        """One sentence a person should read: a disturbed slot, a block that starts again."""


class SilentObserver:
    """Shows nothing."""

    def campaign_started(self, campaign: Campaign) -> None:
        return

    def slot_started(self, slot: PlannedSlot) -> None:
        return

    def slot_finished(self, record: SlotRecord) -> None:
        return

    def remark(self, text: str) -> None:
        return


@dataclass(frozen=True)
class Outcome:
    """How a session ended. ``failures`` are the slots that made a cell be given up."""

    status: CampaignStatus
    failures: tuple[SlotRecord, ...] = ()


class SessionInterruptedError(Exception):
    """The session ends here; everything is saved."""


@dataclass
class CampaignRunner:
    """Runs what a campaign still lacks, one block after the other. One instance is one session."""

    campaign: Campaign
    executor: SlotExecutor
    observer: CampaignObserver = field(default_factory=SilentObserver)
    interrupts: Interrupts = field(default_factory=Interrupts)

    def run(self) -> Outcome:
        """Run every missing block and leave the campaign's status on disk.

        Raises :class:`FuseproofError` when the folder cannot be written; the campaign can then be resumed.
        """
        self.observer.campaign_started(self.campaign)
        loop = BlockLoop(self.campaign, self.executor, self.observer, self.interrupts)
        failures: list[SlotRecord] = []
        try:
            for cell in self.campaign.plan.cells:
                failure = self._run_cell(loop, cell)
                failures += [failure] if failure else []
                warn_of_cell(self.campaign, cell, self.observer)
        except SessionInterruptedError:
            return self._finish(Outcome("interrupted", tuple(failures)))
        return self._finish(Outcome("failed" if failures else "complete", tuple(failures)))

    def _finish(self, outcome: Outcome) -> Outcome:
        self.campaign.save_status(outcome.status)
        return outcome

    def _run_cell(self, loop: BlockLoop, cell: Cell) -> SlotRecord | None:
        """Run a cell's missing blocks in order; the slot that ended the cell, or None when it is complete."""
        for block in self.campaign.missing_blocks(cell.name):
            failure = loop.run_block(cell, block)
            if failure is not None:
                return failure
        return None


@dataclass
class BlockLoop:
    """One lane: runs whole blocks, one after the other, and knows for which cell it is warm.

    ``warm_cell`` is the cell whose block has just ended whole here; any other cell's block begins with the warm-up.
    """

    campaign: Campaign
    executor: SlotExecutor
    observer: CampaignObserver = field(default_factory=SilentObserver)
    interrupts: Interrupts = field(default_factory=Interrupts)
    warm_cell: str | None = None

    def run_block(self, cell: Cell, block: int) -> SlotRecord | None:
        """Try a block until it is whole; the last lost slot when the plan's retries are used up.

        Raises :class:`SessionInterruptedError` when the session is to end.
        """
        tries = 1 + self.campaign.plan.retries
        for tried in range(1, tries + 1):
            attempt = self.campaign.attempts(cell.name, block) + 1
            if attempt > 1:
                self.campaign.supersede_block(cell.name, block, f"block {block} started again as attempt {attempt}")
            failure = self._try_block(cell, block, attempt)
            if failure is None:
                return None
            self.warm_cell = None
            if tried == tries or not self._may_help_to_repeat(failure):
                self.observer.remark(f"{cell.name} is given up: {failure_remark(failure, self.campaign)}")
                return failure
            told = failure_remark(failure, self.campaign)
            self.observer.remark(f"block {block} of {cell.name} starts again: {told}")
        raise AssertionError("a block ends whole or given up")

    def _try_block(self, cell: Cell, block: int, attempt: int) -> SlotRecord | None:
        """Run one attempt; the slot that spoilt it, or None."""
        for slot in self._slots_of(cell, block, attempt):
            if self.interrupts.requested:
                raise SessionInterruptedError
            self.observer.slot_started(slot)
            record = self.executor.execute(self.campaign, slot, self.interrupts)
            self.observer.slot_finished(record)
            if record.state == "interrupted":
                raise SessionInterruptedError
            for remark in (changed_since(self.campaign.slots(), record), restless_remark(record)):
                if remark is not None:
                    self.observer.remark(remark)
            if record.state != "done":
                return record
            if record.contention.busy and record.kind == "timed":
                self.observer.remark(busy_remark(record))
        self.warm_cell = cell.name
        return None

    def _slots_of(self, cell: Cell, block: int, attempt: int) -> Iterator[PlannedSlot]:
        direction = self.campaign.plan.orientation(block - 1)
        if self.warm_cell != cell.name:
            yield from warmup_slots(cell.name, block, attempt, direction, self.campaign.plan.warmup_slots)
        yield from timed_slots(cell.name, block, attempt, direction)

    def _may_help_to_repeat(self, failure: SlotRecord) -> bool:
        """An arm that never finished a slot of this cell is broken, not unlucky, unless this came from outside."""
        if failure.reason_code == "USAGE":
            return False
        return failure.reason_code in UNLUCKY_CODES or self.campaign.has_finished_slot(failure.cell, failure.arm)


def warn_of_cell(campaign: Campaign, cell: Cell, observer: CampaignObserver) -> None:
    """Note in the campaign what is odd about a cell that has been run to its end, and say it."""
    counted = [slot for block in campaign.complete_blocks(cell.name) for slot in block.slots]
    warnings = (*identical_times(cell.name, counted), *cold_caches(cell.name, counted))
    campaign.save_warnings(cell.name, warnings)
    for warning in warnings:
        observer.remark(f"warning: {warning.detail}")


def failure_remark(record: SlotRecord, campaign: Campaign) -> str:
    """Which slot failed, why, the last thing it said, and where the rest of that stands."""
    said = f': "{_telling_line(record.log_tail)}"' if record.log_tail else ""
    log = slot_log(campaign.slot_directory(record.id))
    next_step = NEXT_STEPS.get(record.reason_code or "", "")
    return f"slot {record.id} failed ({record.reason}){said}; its log: {log}{next_step}"


def slot_log(directory: Path) -> Path:
    """The log whose end a record quotes, relative to the present folder where it lies below that."""
    stderr, stdout = directory / "stderr.log", directory / "stdout.log"
    log = stdout if read_tail(stdout).strip() and not read_tail(stderr).strip() else stderr
    return log.relative_to(Path.cwd()) if log.is_relative_to(Path.cwd()) else log


def busy_remark(record: SlotRecord) -> str:
    """Who disturbed a slot, and how much."""
    contention = record.contention
    share = 100.0 * (contention.other_cpu_share or 0.0)
    named = ", ".join(named_process(process.name, process.pid, process.cpu_cores) for process in contention.worst)
    who = f" ({named})" if named else ""
    return f"slot {record.id} was disturbed: other processes used {share:.0f} % of the cores{who}"


def restless_remark(record: SlotRecord) -> str | None:
    """That the GPUs were not free again after a slot; None where they were, or nobody can tell."""
    at_rest = None if record.gpu is None else record.gpu.at_rest
    if at_rest is None or (at_rest.is_at_rest is not False and not at_rest.foreign):
        return None
    left = [
        f"{at_rest.used_mib[uuid]:,.0f} MiB in use on {uuid} (before the campaign: {before:,.0f} MiB)"
        for uuid, before in at_rest.baseline_mib.items()
        if uuid in at_rest.used_mib
    ]
    return f"{at_rest.waited_s:.0f} s after slot {record.id} its GPUs were not free: " + ", ".join(
        [*at_rest.foreign, *left]
    )


def _telling_line(lines: tuple[str, ...]) -> str:
    """The last line that names an error; an arm's very last line is often advice or a frame."""
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines)[-1]
