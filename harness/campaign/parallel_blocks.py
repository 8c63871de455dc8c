"""Whole blocks side by side on one machine: a thread a lane, each with the loop of a campaign that has one lane.

A block stays on the lane that took it, all its attempts and warm-up slots too, so it never spans two GPUs. What two
lanes share is the campaign, which has one writer at a time, and the observer, which hears one thing at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from fuseproof.harness.campaign.block_queue import BlockQueue
from fuseproof.harness.campaign.folder import Campaign, CampaignStatus
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.runner import (
    BlockLoop,
    CampaignObserver,
    Outcome,
    SessionInterruptedError,
    SilentObserver,
    warn_of_cell,
)
from fuseproof.harness.campaign.slots import SlotExecutor
from fuseproof.schedules.order import PlannedSlot


@dataclass
class ParallelRunner:
    """Runs what a campaign still lacks on several lanes, one executor each. One instance is one session."""

    campaign: Campaign
    lanes: Sequence[SlotExecutor]
    observer: CampaignObserver = field(default_factory=SilentObserver)
    interrupts: Interrupts = field(default_factory=Interrupts)
    _errors: list[BaseException] = field(default_factory=list)
    _was_interrupted: bool = False

    def run(self) -> Outcome:
        """Run every missing block and leave the campaign's status on disk.

        After an error of one lane the others finish the block that they are at and take no other; then it is raised.
        """
        observer = OneAtATime(self.observer)
        observer.campaign_started(self.campaign)
        queue = BlockQueue(self.campaign)
        threads = [
            threading.Thread(
                target=self._run_lane, args=(queue, executor, observer), name=f"fuseproof-lane-{number}", daemon=True
            )
            for number, executor in enumerate(self.lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        status: CampaignStatus = "failed" if queue.failures else "complete"
        outcome = Outcome("interrupted" if self._was_interrupted else status, queue.failures)
        self.campaign.save_status(outcome.status)
        return outcome

    def _run_lane(self, queue: BlockQueue, executor: SlotExecutor, observer: CampaignObserver) -> None:
        loop = BlockLoop(self.campaign, executor, observer, self.interrupts)
        try:
            while not self._errors and (taken := queue.take(loop.warm_cell)) is not None:
                cell, block = taken
                if queue.end(cell, loop.run_block(cell, block)):
                    warn_of_cell(self.campaign, cell, observer)
        except SessionInterruptedError:
            self._was_interrupted = True
        except BaseException as error:  # noqa: BLE001 (raised by the thread that waits)
            self._errors.append(error)


class OneAtATime:
    """An observer that passes on what several lanes say, one thing at a time."""

    def __init__(self, observer: CampaignObserver) -> None:
        self._observer = observer
        self._lock = threading.Lock()

    def campaign_started(self, campaign: Campaign) -> None:
        with self._lock:
            self._observer.campaign_started(campaign)

    def slot_started(self, slot: PlannedSlot) -> None:
        with self._lock:
            self._observer.slot_started(slot)

    def slot_finished(self, record: SlotRecord) -> None:
        with self._lock:
            self._observer.slot_finished(record)

    def remark(self, text: str) -> None:
        with self._lock:
            self._observer.remark(text)
