"""What else runs on this computer right now, from two looks a short while apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from fuseproof.harness.machine.usage import (
    capacity_cores,
    contended_cores,
    machine_use,
    others_s,
    own_cpu_s,
    process_tree,
    usable_cores,
)

SAMPLE_S = 0.5
SMALLEST_LISTED_SHARE = 0.01
"""Less than this share of a core (here) or of the machine (in a slot's telemetry) is nobody's disturbance."""
_LISTED_PROCESSES = 3
_KERNEL_THREAD_FLAG = 0x00200000
_FLAGS_AFTER_NAME = 6


@dataclass(frozen=True)
class ActiveProcess:
    """``cpu_cores`` is CPU seconds per second: 1.0 is one core kept busy."""

    name: str
    process_id: int
    cpu_cores: float

    def __str__(self) -> str:
        """``python (pid 13350, 0.9 cores)``."""
        return named_process(self.name, self.process_id, self.cpu_cores)


@dataclass(frozen=True)
class Activity:
    """``other_cpu_cores``: cores' worth of CPU that others take from what this process may use.

    ``steal_share`` is the share of time in which the hypervisor ran somebody else. ``worst`` lists the busiest visible
    processes; inside a container the busy ones may be invisible, so the list can be shorter than the sum tells.
    """

    duration_s: float
    usable_cores: int
    other_cpu_cores: float
    steal_share: float
    worst: tuple[ActiveProcess, ...]
    capacity_cores: float | None = None
    """The container's CPU quota where that is below the usable cores; of it ``other_cpu_cores`` is what others take."""

    @property
    def cores(self) -> float:
        """The cores' worth of time that a slot may use."""
        return float(self.usable_cores) if self.capacity_cores is None else self.capacity_cores

    @property
    def cores_text(self) -> str:
        """``16 cores``, or ``the 1.5 cores of the CPU quota``."""
        if self.cores < self.usable_cores:
            return f"the {self.cores:g} cores of the CPU quota"
        return f"{self.usable_cores} cores"


def sample_activity(duration_s: float = SAMPLE_S, sleep: Callable[[float], None] = time.sleep) -> Activity:
    """Look twice, ``duration_s`` apart; this process and its children do not count as others."""
    cores = len(usable_cores())
    began_s, own_s, machine, processes = time.perf_counter(), own_cpu_s(), machine_use(), _cpu_seconds_of_others()
    sleep(duration_s)
    machine_after, own_after_s, elapsed_s = machine_use(), own_cpu_s(), time.perf_counter() - began_s
    on_cores_s, same_quota_s = others_s(machine, machine_after, own_after_s - own_s)
    capacity = capacity_cores(cores)
    lost_cores = contended_cores(on_cores_s / elapsed_s, cores, capacity, same_quota_s / elapsed_s)
    return Activity(
        duration_s=elapsed_s,
        usable_cores=cores,
        capacity_cores=capacity,
        other_cpu_cores=min(lost_cores, capacity),
        steal_share=max(machine_after.steal_s - machine.steal_s, 0.0) / (elapsed_s * cores),
        worst=_busiest(processes, _cpu_seconds_of_others(), elapsed_s),
    )


def _cpu_seconds_of_others() -> dict[tuple[int, float, str], float]:
    """CPU seconds so far of every visible process but ours, by id, start and name."""
    ours = set(process_tree(psutil.Process().pid))
    found = {}
    for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
        facts = process.info
        if facts["cpu_times"] is not None and process.pid not in ours:
            key = (process.pid, facts["create_time"], facts["name"] or "?")
            found[key] = facts["cpu_times"].user + facts["cpu_times"].system
    return found


def _busiest(
    before: dict[tuple[int, float, str], float], after: dict[tuple[int, float, str], float], elapsed_s: float
) -> tuple[ActiveProcess, ...]:
    used = {key: (seconds - before[key]) / elapsed_s for key, seconds in after.items() if key in before}
    unlisted = pids_never_listed()
    shown = [
        key
        for key, cores in used.items()
        if cores >= SMALLEST_LISTED_SHARE and key[0] not in unlisted and not is_kernel_thread(key[0])
    ]
    largest = sorted(shown, key=lambda key: (-used[key], key))
    return tuple(ActiveProcess(key[2], key[0], used[key]) for key in largest[:_LISTED_PROCESSES])


def named_process(name: str, pid: int | None, cpu_cores: float | None) -> str:
    """A process as a person looks for it; what is not known is left out."""
    facts = [*([] if pid is None else [f"pid {pid}"]), *([] if cpu_cores is None else [f"{cpu_cores:.1f} cores"])]
    return f"{name} ({', '.join(facts)})" if facts else name


def pids_never_listed() -> set[int]:
    """Nobody can end or wait for these: the first process, this one, and those it was started from."""
    own = psutil.Process()
    try:
        ancestors = {parent.pid for parent in own.parents()}
    except psutil.Error:
        ancestors = set()
    return {1, own.pid, *ancestors}


def is_kernel_thread(pid: int) -> bool:
    """Whether a process is the kernel's own; False for one that is gone, and where there is no ``/proc``."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return bool(int(text.rpartition(")")[2].split()[_FLAGS_AFTER_NAME]) & _KERNEL_THREAD_FLAG)
    except (OSError, ValueError, IndexError):
        return False
