"""What others used of this machine while something ran in this very process, by the rules of a campaign's slots."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from fuseproof.harness.machine.usage import (
    MachineUse,
    busy_threshold,
    capacity_cores,
    contended_cores,
    machine_use,
    others_s,
    own_cpu_s,
    shortest_measurable_s,
    usable_cores,
)


@dataclass
class MachineWatch:
    """Looks at the machine between :meth:`begin` and :meth:`end`, as often as they are called; both take 1 ms."""

    wall_s: float = 0.0
    on_cores_s: float = 0.0
    same_quota_s: float = 0.0
    _began: tuple[float, float, MachineUse] | None = field(default=None, repr=False)

    def begin(self) -> None:
        """A stretch begins."""
        self._began = time.perf_counter(), own_cpu_s(), machine_use()

    def end(self) -> None:
        """It ends; what others used meanwhile is added to that of earlier ones."""
        if self._began is None:
            return
        (began_s, own_s, machine), self._began = self._began, None
        on_cores_s, same_quota_s = others_s(machine, machine_use(), own_cpu_s() - own_s)
        self.wall_s += time.perf_counter() - began_s
        self.on_cores_s += on_cores_s
        self.same_quota_s += same_quota_s

    def others_share(self) -> float | None:
        """The share of the cores we may use that others took; None where all stretches are too short to tell."""
        cores = len(usable_cores())
        capacity = capacity_cores(cores)
        if self.wall_s < shortest_measurable_s(cores, capacity):
            return None
        lost = contended_cores(self.on_cores_s / self.wall_s, cores, capacity, self.same_quota_s / self.wall_s)
        return round(min(1.0, lost / capacity), 4)

    def is_busy(self) -> bool:
        """Whether others took as much as would make a slot of a campaign a disturbed one."""
        share = self.others_share()
        return share is not None and share > busy_threshold(capacity_cores(len(usable_cores())))
