"""CPU time of this machine's cores, of this program and of its process tree, as the operating system counts it.

Needs psutil alone, so that ``fuseproof doctor`` can look at a machine on which other libraries are missing.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass

import psutil

BUSY_CORES = 0.5
BUSY_CPU_SHARE = 0.10
"""A slot counts as disturbed when others kept half a core busy, and a tenth of all cores: slots leave one core free."""


@dataclass(frozen=True)
class MachineUse:
    """CPU seconds since boot of the cores we may use: working, and taken by a hypervisor."""

    busy_s: float
    steal_s: float


def machine_use() -> MachineUse:
    """What the cores we may use have done since boot."""
    per_core = psutil.cpu_times(percpu=True)
    times = [per_core[core] for core in usable_cores() if core < len(per_core)] or per_core
    working = ("user", "nice", "system", "irq", "softirq")
    busy_s = sum(getattr(core, name, 0.0) for core in times for name in working)
    return MachineUse(busy_s, sum(getattr(core, "steal", 0.0) for core in times))


def busy_threshold(cores: int) -> float:
    """The share of ``cores`` from which others' use counts as a disturbance."""
    return round(max(BUSY_CPU_SHARE, BUSY_CORES / cores), 4)


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
