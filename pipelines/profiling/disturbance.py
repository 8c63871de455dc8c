"""Whether the profiled steps had the machine to themselves, in numbers and in sentences."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

LEAST_THREAD_SHARE = 0.9
"""Below this share of its wall time on a core, the thread that runs a CPU's operations was kept waiting."""
LEAST_OUTLIER_SHARE = 0.01

BUSY = (
    "the machine was not quiet while the steps were profiled: other processes used {share:.0%} of the cores; "
    "profile again on a quiet machine before trusting {what}"
)
WAITED = (
    "the thread that runs the operations had a core for only {share:.0%} of the profiled steps' wall time: it waited, "
    "most likely for one that another program had"
)
OUTLIERS = (
    "{count} operation(s) took more than five times what the same operation takes elsewhere, {milliseconds:.1f} ms or "
    "{share:.1%} of the profiled time in all: they were most likely interrupted. Ranks go by the typical time; sums "
    "keep what was measured"
)
OF_A_CPU, OF_A_GPU = "the times of operations", "wall times (kernels are timed by the device)"


class MachineWatch(Protocol):
    """What tells of other processes; the harness has one."""

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def others_share(self) -> float | None: ...

    def is_busy(self) -> bool: ...


@dataclass
class StepClock:
    """CPU and wall time of this thread over the profiled stretches, and what others did meanwhile."""

    machine: MachineWatch | None = None
    wall_s: float = 0.0
    thread_s: float = 0.0
    _began: tuple[float, float] | None = field(default=None, repr=False)

    def begin(self) -> None:
        """A profiled stretch begins."""
        if self.machine is not None:
            self.machine.begin()
        self._began = time.perf_counter(), time.thread_time()

    def end(self) -> None:
        """It ends."""
        if self._began is None:
            return
        (wall_s, thread_s), self._began = self._began, None
        self.wall_s += time.perf_counter() - wall_s
        self.thread_s += time.thread_time() - thread_s
        if self.machine is not None:
            self.machine.end()

    def to_json(self, *, on_device: bool, outliers: Mapping[str, Any]) -> dict[str, Any]:
        """``disturbance`` of a profile. On a GPU the thread waits for the device, so its share tells nothing."""
        share = min(self.thread_s / self.wall_s, 1.0) if self.wall_s > 0 and not on_device else None
        return {
            "thread_cpu_share": share,
            "other_cpu_share": None if self.machine is None else self.machine.others_share(),
            "busy": self.machine is not None and self.machine.is_busy(),
            **outliers,
        }


def disturbance_warnings(found: Mapping[str, Any], device_us: float, *, on_device: bool) -> list[str]:
    """What ``disturbance`` means for a reader; empty where nothing was in the way."""
    told = []
    if found["busy"]:
        told.append(BUSY.format(share=found["other_cpu_share"], what=OF_A_GPU if on_device else OF_A_CPU))
    share = found["thread_cpu_share"]
    if share is not None and share < LEAST_THREAD_SHARE:
        told.append(WAITED.format(share=share))
    beyond_us = found["outlier_us"]
    if device_us > 0 and beyond_us / device_us >= LEAST_OUTLIER_SHARE:
        told.append(
            OUTLIERS.format(count=found["outlier_calls"], milliseconds=beyond_us / 1e3, share=beyond_us / device_us)
        )
    return told
