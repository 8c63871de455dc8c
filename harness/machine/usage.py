"""CPU time of this machine's cores, of this program and of its process tree, as the operating system counts it.

Where the container has a CPU quota, what a slot may use is that quota and not all cores: others then disturb it only
where they take more than the cores that the quota leaves idle, or use the same quota.

Needs psutil alone, so that ``fuseproof doctor`` can look at a machine on which other libraries are missing.
"""

from __future__ import annotations

import math
import os
import resource
import time
from dataclasses import dataclass

import psutil

from fuseproof.harness.machine.host import read_cpu_quota, read_quota_use_s

BUSY_CORES = 0.5
BUSY_CPU_SHARE = 0.10
"""A slot counts as disturbed when others kept half a core busy, and a tenth of all cores: slots leave one core free."""
COUNTER_STEP_S = 0.01
"""Linux counts the time of each core in hundredths of a second, whatever its own tick."""
COUNTERS_A_CORE = 2
"""Those that move while programs run: user and system."""
SHORTEST_LOOK_S = 0.05
"""Below this the start and the end of the process are a part of what is looked at."""


@dataclass(frozen=True)
class MachineUse:
    """CPU seconds since boot of the cores we may use: working, and taken by a hypervisor; and of our quota."""

    busy_s: float
    steal_s: float
    quota_s: float | None = None
    """CPU seconds of everybody under the same CPU quota; None without one."""


def machine_use() -> MachineUse:
    """What the cores we may use have done since boot."""
    per_core = psutil.cpu_times(percpu=True)
    times = [per_core[core] for core in usable_cores() if core < len(per_core)] or per_core
    working = ("user", "nice", "system", "irq", "softirq")
    busy_s = math.fsum(getattr(core, name, 0.0) for core in times for name in working)
    return MachineUse(busy_s, math.fsum(getattr(core, "steal", 0.0) for core in times), read_quota_use_s())


def capacity_cores(cores: int) -> float:
    """How many cores' worth of time a slot may use: the ``cores`` it may run on, or a CPU quota below that."""
    quota = read_cpu_quota()
    return float(cores) if quota is None else min(float(cores), quota)


def contended_cores(others: float, cores: int, capacity: float, same_quota: float = 0.0) -> float:
    """Of the cores' worth of time that others use on ``cores``, what a slot that may use ``capacity`` has lost to them.

    The cores beyond a quota are idle for us and absorb others' work first; ``same_quota`` is what others in the same
    container use, which comes out of our own quota at once.
    """
    return max(0.0, others - (cores - capacity), min(same_quota, capacity) if capacity < cores else 0.0)


def busy_threshold(cores: float) -> float:
    """The share of ``cores`` from which others' use counts as a disturbance."""
    return round(max(BUSY_CPU_SHARE, BUSY_CORES / cores), 4)


def shortest_measurable_s(cores: int, capacity: float) -> float:
    """How many seconds a slot on ``cores`` that may use ``capacity`` of them must last for others' share to be told.

    Two looks at a counter differ by up to one step more or less than was worked. Over all counters that is
    ``COUNTER_STEP_S * sqrt(counters)`` (2.4 standard deviations), and it may be no more than half of what counts as a
    disturbance: then a quiet machine is not called busy, and a core that another program fills is never missed.
    """
    doubt_s = COUNTER_STEP_S * math.sqrt(COUNTERS_A_CORE * cores)
    return max(SHORTEST_LOOK_S, 2 * doubt_s / (busy_threshold(capacity) * capacity))


def usable_cores() -> list[int]:
    """The numbers of the cores this process, and so every slot, may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def own_cpu_s() -> float:
    """CPU time of this program and of every child it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def process_tree(pid: int) -> list[int]:
    """A process and its descendants; only itself when it is gone."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]


def others_s(before: MachineUse, after: MachineUse, own_s: float) -> tuple[float, float]:
    """CPU seconds that others used between two looks: on the cores we may use, and under our own quota.

    ``own_s`` is what this program and its slots used meanwhile.
    """
    on_cores = max(0.0, after.busy_s - before.busy_s - own_s)
    if before.quota_s is None or after.quota_s is None:
        return on_cores, 0.0
    return on_cores, max(0.0, after.quota_s - before.quota_s - own_s)
