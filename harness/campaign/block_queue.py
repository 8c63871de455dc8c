"""Which block comes next where several run at once: a cell stays on the lane that began it for as long as it can."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.schedules.plan import Cell


@dataclass
class BlockQueue:
    """The missing blocks of a campaign, cell by cell in the plan's order. Any thread may call."""

    campaign: Campaign
    _waiting: dict[str, list[int]] = field(init=False)
    _running: dict[str, int] = field(init=False)
    _failures: dict[str, SlotRecord] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        plan = self.campaign.plan
        self._waiting = {cell.name: self.campaign.missing_blocks(cell.name) for cell in plan.cells}
        self._running = dict.fromkeys(self._waiting, 0)

    @property
    def failures(self) -> tuple[SlotRecord, ...]:
        """The slots that made a cell be given up, in the order of the cells."""
        return tuple(self._failures[name] for name in self._waiting if name in self._failures)

    @property
    def is_empty(self) -> bool:
        """Nothing waits; blocks may still be running."""
        return not any(self._waiting.values())

    def take(self, warm_cell: str | None = None) -> tuple[Cell, int] | None:
        """The next block for a lane that is warm for ``warm_cell``, now running; None when nothing waits.

        First the lane's own cell, then a cell that nobody is at, then the first with a block to give.
        """
        with self._lock:
            waiting = [name for name, blocks in self._waiting.items() if blocks]
            if not waiting:
                return None
            untouched = (name for name in waiting if not self._running[name])
            name = warm_cell if warm_cell in waiting and warm_cell is not None else next(untouched, waiting[0])
            self._running[name] += 1
            return self.campaign.plan.cell(name), self._waiting[name].pop(0)

    def put_back(self, cell: Cell, block: int) -> None:
        """A block that was taken and is lost with its machine waits again, before the others of its cell."""
        with self._lock:
            self._running[cell.name] -= 1
            if cell.name not in self._failures:
                self._waiting[cell.name].insert(0, block)

    def end(self, cell: Cell, failure: SlotRecord | None) -> bool:
        """A block has ended; a failure gives its cell up. Whether nothing more of the cell waits or runs."""
        with self._lock:
            self._running[cell.name] -= 1
            if failure is not None:
                self._failures.setdefault(cell.name, failure)
                self._waiting[cell.name].clear()
            return not self._waiting[cell.name] and not self._running[cell.name]
