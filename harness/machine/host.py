"""The computer under a measurement: processor, memory, operating system and what limits this process on it.

Everything here is read, nothing is changed. What a platform does not tell is None.
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

BYTES_PER_MIB = 2**20
_CGROUP_ROOT = Path("/sys/fs/cgroup")
# Instruction sets that decide which kernels a CPU library picks, and so how sums are rounded.
_INSTRUCTION_SETS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "asimd", "sve", "bf16")


@dataclass(frozen=True)
class Processor:
    """Cores are counts: logical ones of the machine, usable ones of this process, ``quota_cores`` of its container."""

    model: str | None
    architecture: str
    physical_cores: int | None
    logical_cores: int
    usable_cores: int
    quota_cores: float | None
    instruction_sets: tuple[str, ...]
    governors: tuple[str, ...]
    clock_source: str | None
    is_virtual: bool | None


@dataclass(frozen=True)
class Memory:
    total_mib: int
    available_mib: int
    limit_mib: int | None
    swap_total_mib: int
    swap_used_mib: int


@dataclass(frozen=True)
class OperatingSystem:
    system: str
    release: str
    distribution: str | None
    is_container: bool


@dataclass(frozen=True)
class Host:
    processor: Processor
    memory: Memory
    operating_system: OperatingSystem
    load_average: tuple[float, float, float] | None
    timer_tick_s: float


def read_host() -> Host:
    """Describe this computer; takes a few milliseconds."""
    return Host(
        processor=read_processor(),
        memory=read_memory(),
        operating_system=read_operating_system(),
        load_average=_load_average(),
        timer_tick_s=measure_timer_tick_s(),
    )


def read_processor(proc_cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    import psutil

    cpuinfo = _read_text(proc_cpuinfo) or ""
    flags = set((_field(cpuinfo, "flags") or _field(cpuinfo, "Features") or "").split())
    logical_cores = psutil.cpu_count() or os.cpu_count() or 1
    usable_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else logical_cores
    return Processor(
        model=_field(cpuinfo, "model name") or platform.processor() or None,
        architecture=platform.machine(),
        physical_cores=psutil.cpu_count(logical=False),
        logical_cores=logical_cores,
        usable_cores=usable_cores,
        quota_cores=read_cpu_quota(),
        instruction_sets=tuple(name for name in _INSTRUCTION_SETS if name in flags),
        governors=_governors(Path("/sys/devices/system/cpu")),
        clock_source=_read_text(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
        is_virtual="hypervisor" in flags if flags else None,
    )


def read_memory() -> Memory:
    import psutil

    memory = psutil.virtual_memory()
    swap = psutil.swap_memory()
    limit_mib = read_memory_limit_mib()
    total_mib = int(memory.total // BYTES_PER_MIB)
    return Memory(
        total_mib=total_mib,
        available_mib=int(memory.available // BYTES_PER_MIB),
        limit_mib=limit_mib if limit_mib is not None and limit_mib < total_mib else None,
        swap_total_mib=int(swap.total // BYTES_PER_MIB),
        swap_used_mib=int(swap.used // BYTES_PER_MIB),
    )


def read_operating_system() -> OperatingSystem:
    try:
        distribution = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        distribution = None
    marks = ("docker", "kubepods", "containerd", "lxc")
    own_cgroup = _read_text(Path("/proc/self/cgroup")) or ""
    return OperatingSystem(
        system=platform.system(),
        release=platform.release(),
        distribution=distribution,
        is_container=Path("/.dockerenv").exists()
        or Path("/run/.containerenv").exists()
        or any(mark in own_cgroup for mark in marks),
    )


def read_cpu_quota(root: Path = _CGROUP_ROOT, own_cgroup: str | None = None) -> float | None:
    """The tightest CPU limit of this process's control groups, in cores; None without one."""
    quotas = [_quota_of_v2(text) for text in _controls(root, own_cgroup, "cpu.max")]
    quotas.append(_quota_of_v1(root / "cpu"))
    limits = [quota for quota in quotas if quota is not None]
    return min(limits) if limits else None


def read_quota_use_s(root: Path = _CGROUP_ROOT, own_cgroup: str | None = None) -> float | None:
    """CPU seconds so far of everybody under this process's tightest CPU limit; None without a limit, or untold."""
    limited = [
        (quota, folder)
        for folder in _folders(root, own_cgroup)
        if (text := _read_text(folder / "cpu.max")) is not None and (quota := _quota_of_v2(text)) is not None
    ]
    if not limited:
        return None
    _, folder = min(limited, key=lambda found: found[0])
    stated = dict(line.split(" ", 1) for line in (_read_text(folder / "cpu.stat") or "").splitlines() if " " in line)
    used = stated.get("usage_usec", "")
    return int(used) / 1e6 if used.isdigit() else None


def read_memory_limit_mib(root: Path = _CGROUP_ROOT, own_cgroup: str | None = None) -> int | None:
    """The tightest memory limit of this process's control groups in MiB; None without one."""
    texts = _controls(root, own_cgroup, "memory.max")
    version_1 = _read_text(root / "memory" / "memory.limit_in_bytes")
    limits = [int(text) for text in [*texts, version_1] if text is not None and text.isdigit()]
    return min(limits) // BYTES_PER_MIB if limits else None


def measure_timer_tick_s(samples: int = 200) -> float:
    """The smallest step of ``time.perf_counter`` seen here, in seconds."""
    smallest = float("inf")
    for _ in range(samples):
        start = time.perf_counter()
        end = time.perf_counter()
        while end == start:
            end = time.perf_counter()
        smallest = min(smallest, end - start)
    return smallest


def _controls(root: Path, own_cgroup: str | None, control: str) -> list[str]:
    """The text of one control file in this process's group and in every group above it (control groups version 2)."""
    texts = (_read_text(folder / control) for folder in _folders(root, own_cgroup))
    return [text for text in texts if text is not None]


def _folders(root: Path, own_cgroup: str | None) -> list[Path]:
    """The folders of this process's group and of every group above it, from the root down."""
    text = own_cgroup if own_cgroup is not None else _read_text(Path("/proc/self/cgroup")) or ""
    path = next((line[3:] for line in text.splitlines() if line.startswith("0::")), "/")
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:depth]) for depth in range(len(parts) + 1)]


def _quota_of_v2(text: str) -> float | None:
    """``"150000 100000"`` (microseconds allowed, per period) is 1.5 cores; ``"max 100000"`` is no limit."""
    allowed, _, period = text.partition(" ")
    return int(allowed) / int(period) if allowed.isdigit() and period.isdigit() and int(period) else None


def _quota_of_v1(folder: Path) -> float | None:
    allowed = _read_text(folder / "cpu.cfs_quota_us") or ""
    period = _read_text(folder / "cpu.cfs_period_us") or ""
    return _quota_of_v2(f"{allowed} {period}")


def _governors(folder: Path) -> tuple[str, ...]:
    texts = {_read_text(path) for path in folder.glob("cpu[0-9]*/cpufreq/scaling_governor")}
    return tuple(sorted(text for text in texts if text))


def _load_average() -> tuple[float, float, float] | None:
    try:
        return os.getloadavg()
    except (OSError, AttributeError):
        return None


def _field(cpuinfo: str, name: str) -> str | None:
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip() or None
    return None


def _read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
