"""Whole blocks on other machines: hands tasks to a pool, takes their slots in, and starts lost blocks again.

The pool is somebody else's engine (:mod:`fuseproof.harness.campaign.ray_executor` is Ray's). This loop holds the one
copy of ``campaign.json``; a block whose machine is gone is read from the folder and runs again as its next attempt.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.block_queue import BlockQueue
from fuseproof.harness.campaign.block_tasks import BlockResult, BlockTask
from fuseproof.harness.campaign.folder import Campaign, CampaignStatus
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.runner import CampaignObserver, Outcome, SilentObserver, warn_of_cell

MOST_LOSSES = 3
"""How often one block may be lost with its machine: after that the machines are not to blame."""
WAIT_S = 0.5
END_POLL_S = 0.5
LAST_WAIT_S = 20.0
"""How long interrupted tasks may take to end their slots in order."""


class LostBlockError(Exception):
    """A task's machine or process is gone; the text says what the pool knows of it."""


class BlockPool(Protocol):
    """Runs tasks somewhere. A task is known by the handle that ``submit`` returns."""

    def capacity(self) -> int:
        """How many tasks may run at once, now."""

    def submit(self, task: BlockTask) -> object: ...

    def wait(self, handles: Sequence[object], timeout_s: float) -> Sequence[object]:
        """Those handles whose tasks have ended, after at most ``timeout_s``."""

    def result(self, handle: object) -> BlockResult:
        """What an ended task gave; :class:`LostBlockError` for one that is lost, else the task's own error."""

    def interrupt(self, handles: Sequence[object], at_once: bool) -> None:
        """Ask running tasks to end their slots in order, or end them at once."""


@dataclass
class RemoteRunner:
    """Runs what a campaign still lacks through a pool. One instance is one session."""

    campaign: Campaign
    pool: BlockPool
    environment: Mapping[str, str] = field(default_factory=dict)
    observer: CampaignObserver = field(default_factory=SilentObserver)
    interrupts: Interrupts = field(default_factory=Interrupts)
    sleep: Callable[[float], None] = time.sleep
    _running: dict[object, BlockTask] = field(default_factory=dict)
    _losses: Counter[str] = field(default_factory=Counter)
    _said_waiting: bool = False

    def run(self) -> Outcome:
        """Run every missing block and leave the campaign's status on disk.

        After an error of a task no other is handed out; those that run are waited for, then it is raised.
        """
        self.observer.campaign_started(self.campaign)
        queue = BlockQueue(self.campaign)
        error: FuseproofError | None = None
        while not self.interrupts.requested and (self._running or not (queue.is_empty or error)):
            if error is None:
                self._hand_out(queue)
            for handle in self.pool.wait(list(self._running), WAIT_S):
                try:
                    self._take_in(queue, handle)
                except FuseproofError as found:
                    error = error or found
        if self._running:
            self._end_tasks()
        if error is not None:
            raise error
        status: CampaignStatus = "failed" if queue.failures else "complete"
        outcome = Outcome("interrupted" if self.interrupts.requested else status, queue.failures)
        self.campaign.save_status(outcome.status)
        return outcome

    def _hand_out(self, queue: BlockQueue) -> None:
        capacity = self.pool.capacity()
        while len(self._running) < capacity and (taken := queue.take()) is not None:
            task = BlockTask.of(self.campaign, taken[0].name, taken[1], self.environment)
            self._running[self.pool.submit(task)] = task
        if not self._running and not self._said_waiting:
            self._said_waiting = True
            self.observer.remark("no node can take a block now; waiting for one (Ctrl-C ends it, --resume goes on)")

    def _take_in(self, queue: BlockQueue, handle: object) -> None:
        task = self._running.pop(handle)
        cell = task.plan.cell(task.cell)
        try:
            result = self.pool.result(handle)
        except LostBlockError as error:
            self._note_loss(queue, task, str(error))
            return
        except FuseproofError:
            self.campaign.read_block(task.cell, task.block)
            raise
        known = {record.id for record in task.records}
        self.campaign.take_in(result.records)
        for text in result.remarks:
            self.observer.remark(text)
        for record in result.records:
            if record.id not in known:
                self.observer.slot_finished(record)
        if result.was_interrupted:
            self.interrupts.request()
        elif queue.end(cell, result.failure):
            warn_of_cell(self.campaign, cell, self.observer)

    def _note_loss(self, queue: BlockQueue, task: BlockTask, what: str) -> None:
        self.campaign.read_block(task.cell, task.block)
        self._losses[task.name] += 1
        if self._losses[task.name] >= MOST_LOSSES:
            raise FuseproofError(f"Block {task.block} of {task.cell} was lost {MOST_LOSSES} times: {what}.")
        self.observer.remark(f"block {task.block} of {task.cell} was lost ({what}); it starts again")
        queue.put_back(task.plan.cell(task.cell), task.block)

    def _end_tasks(self) -> None:
        """Let running tasks end their slots in order, at once on a second interrupt, and read what they left.

        A pool may call a task ended before its slot is, so the slots' own files decide.
        """
        self.observer.remark(f"ending {len(self._running)} running blocks")
        seen = self.interrupts.count
        handles, tasks = list(self._running), list(self._running.values())
        self._running.clear()
        self.pool.interrupt(handles, False)
        for _ in range(int(LAST_WAIT_S / END_POLL_S)):
            for task in tasks:
                self.campaign.read_block(task.cell, task.block)
            if self.interrupts.count > seen or not self._has_running_slot(tasks):
                break
            self.sleep(END_POLL_S)
        self.pool.interrupt(handles, True)

    def _has_running_slot(self, tasks: Sequence[BlockTask]) -> bool:
        blocks = {(task.cell, task.block) for task in tasks}
        return any(slot.state == "running" and (slot.cell, slot.block) in blocks for slot in self.campaign.slots())
