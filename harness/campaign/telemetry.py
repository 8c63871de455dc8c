"""What else the machine did while a slot ran: memory of the slot's processes, and CPU use of everybody else's.

A sampler thread reads a few files of ``/proc`` five times a second, so that it does not become the noise it looks for;
in a slot's first moments it looks more often, because a short slot has no others. Peak memory is VmHWM, the kernel's
own high-water mark (``ru_maxrss`` of a child starts at its parent's).
Others' CPU time is what the cores we may use have worked, less what the slot and this program used; under a CPU quota
only what it costs the slot counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil

from fuseproof.harness.campaign.gpu_telemetry import GpuRecording, telemetry_lines
from fuseproof.harness.campaign.phases import SlotPhases
from fuseproof.harness.campaign.records import BusyProcess, Contention
from fuseproof.harness.machine.activity import SMALLEST_LISTED_SHARE, is_kernel_thread, pids_never_listed
from fuseproof.harness.machine.usage import (
    MachineUse,
    busy_threshold,
    capacity_cores,
    contended_cores,
    machine_use,
    others_s,
    own_cpu_s,
    process_tree,
    shortest_measurable_s,
    usable_cores,
)

FIRST_INTERVAL_S = 0.005
SAMPLE_INTERVAL_S = 0.2
"""The first interval doubles until it is this long."""
SCAN_INTERVAL_S = 2.0
LARGEST_SCAN_SHARE = 0.02
PROCESSES_NAMED = 3
SMALLEST_PEAK_MIB = 1.0
"""No program runs in less: a smaller number was read before the program was loaded, and is no peak."""

_PROC = Path("/proc")


@dataclass(frozen=True)
class SlotTelemetry:
    """What the sampler saw during one slot; ``samples`` are the lines of ``telemetry.jsonl``."""

    peak_rss_mib: float | None
    contention: Contention
    samples: tuple[dict[str, Any], ...]
    began_monotonic_s: float = 0.0
    """The moment that ``t_s`` of the samples counts from."""
    gpu: GpuRecording | None = None
    """What was seen of the GPUs; None where there are none."""

    def to_jsonl(self, phases: SlotPhases | None = None) -> str:
        """The lines of ``telemetry.jsonl``, each with what the slot was doing by ``phases``."""
        known = phases or SlotPhases()
        lines = [{**sample, "phase": known.at(self.began_monotonic_s + sample["t_s"])} for sample in self.samples]
        lines += telemetry_lines(self.gpu, known, self.began_monotonic_s) if self.gpu is not None else ()
        return "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)


class Sampler(Protocol):
    """Watches one slot. ``start`` comes right after the process began, ``stop`` after it was waited for."""

    def start(self, pid: int) -> None: ...

    def stop(self) -> SlotTelemetry: ...


class ProcessSampler:
    """The real sampler: one thread, one slot, one use. Make it just before the process starts.

    ``own_use_s`` tells the CPU time of what is ours so far, and ``own_pids`` what else of ours runs beside the slot.
    """

    def __init__(
        self, own_use_s: Callable[[], float] | None = None, own_pids: Callable[[], Iterable[int]] = tuple
    ) -> None:
        self._began_s = time.monotonic()
        self._machine = machine_use()
        self._own_use_s, self._own_pids = own_use_s or own_cpu_s, own_pids
        self._own_s = self._own_use_s()
        self._others = OtherProcesses()
        self._peaks_mib: dict[int, float] = {}
        self._samples: list[dict[str, Any]] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, pid: int) -> None:
        """Take a first sample at once, so that even the shortest slot has one, then go on beside the slot."""
        self._sample([pid])
        self._thread = threading.Thread(target=self._watch, args=(pid,), name="fuseproof-telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> SlotTelemetry:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        wall_s = time.monotonic() - self._began_s
        machine = machine_use()
        contention = self._contention(wall_s, machine, self._own_use_s() - self._own_s)
        peak_mib = max(self._peaks_mib.values(), default=0.0)
        peak_rss_mib = peak_mib if peak_mib >= SMALLEST_PEAK_MIB else None
        return SlotTelemetry(peak_rss_mib, contention, tuple(self._samples), self._began_s)

    def _contention(self, wall_s: float, machine: MachineUse, own_s: float) -> Contention:
        cores = usable_cores()
        capacity = capacity_cores(len(cores))
        threshold = busy_threshold(capacity)
        if wall_s < shortest_measurable_s(len(cores), capacity):
            return Contention(threshold=threshold)
        on_cores_s, same_quota_s = others_s(self._machine, machine, own_s)
        lost = contended_cores(on_cores_s / wall_s, len(cores), capacity, same_quota_s / wall_s)
        share = min(1.0, lost / capacity)
        steal_s = machine.steal_s - self._machine.steal_s
        return Contention(
            other_cpu_share=round(share, 4),
            busy=share > threshold,
            threshold=threshold,
            worst=self._others.worst(wall_s, len(cores)),
            steal_share=round(max(0.0, steal_s / (wall_s * len(cores))), 4),
        )

    def _watch(self, pid: int) -> None:
        tree = [pid]
        next_tree_s = next_scan_s = 0.0
        interval_s = FIRST_INTERVAL_S
        while not self._stopping.wait(interval_s):
            interval_s = min(2.0 * interval_s, SAMPLE_INTERVAL_S)
            now_s = self._elapsed_s()
            if now_s >= next_tree_s:
                tree = [pid, *descendants(pid)]
                if now_s > SAMPLE_INTERVAL_S:
                    next_tree_s = now_s + (self._elapsed_s() - now_s) / LARGEST_SCAN_SHARE
            self._sample(tree)
            now_s = self._elapsed_s()
            if now_s >= next_scan_s:
                self._others.scan({*tree, *process_tree(pid), *self._own_pids()})
                next_scan_s = now_s + max(SCAN_INTERVAL_S, (self._elapsed_s() - now_s) / LARGEST_SCAN_SHARE)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _sample(self, tree: Iterable[int]) -> None:
        resident_mib = 0.0
        running = 0
        for pid in tree:
            sizes = process_memory_mib(pid)
            if sizes is None:
                continue
            peak_mib, now_mib = sizes
            self._peaks_mib[pid] = max(peak_mib, self._peaks_mib.get(pid, 0.0))
            resident_mib += now_mib
            running += 1
        machine = machine_use()
        self._samples.append(
            {
                "t_s": round(self._elapsed_s(), 3),
                "processes": running,
                "rss_mib": round(resident_mib, 2),
                "machine_busy_s": round(machine.busy_s - self._machine.busy_s, 3),
                "steal_s": round(machine.steal_s - self._machine.steal_s, 3),
            }
        )


class OtherProcesses:
    """CPU time of processes that are not ours, by process, over repeated scans."""

    def __init__(self) -> None:
        self._first_s: dict[tuple[int, float], float] = {}
        self._last_s: dict[tuple[int, float], float] = {}
        self._names: dict[tuple[int, float], str] = {}
        self._ours = pids_never_listed()
        self._began = time.time()

    def scan(self, ours: set[int]) -> None:
        """Read every process's CPU time; what vanished between two scans is not seen."""
        self._ours |= ours
        for process in psutil.process_iter(["name", "cpu_times", "create_time"]):
            times = process.info["cpu_times"]
            if process.pid in self._ours or times is None:
                continue
            key = (process.pid, process.info["create_time"])
            used_s = times.user + times.system
            is_new = process.info["create_time"] > self._began
            self._first_s.setdefault(key, 0.0 if is_new else used_s)
            self._last_s[key] = used_s
            self._names[key] = process.info["name"] or "?"

    def worst(self, wall_s: float, cores: int) -> tuple[BusyProcess, ...]:
        """The processes that used most of ``cores`` over ``wall_s``, largest first; ours and the kernel's left out."""
        least_s = SMALLEST_LISTED_SHARE * wall_s * cores
        used = {key: self._last_s[key] - first_s for key, first_s in self._first_s.items()}
        shown = [
            key
            for key, seconds in used.items()
            if seconds >= least_s and key[0] not in self._ours and not is_kernel_thread(key[0])
        ]
        return tuple(
            BusyProcess(
                self._names[key],
                cpu_share=round(used[key] / (wall_s * cores), 4),
                pid=key[0],
                cpu_cores=round(used[key] / wall_s, 2),
            )
            for key in sorted(shown, key=lambda key: (-used[key], key))[:PROCESSES_NAMED]
        )


def descendants(pid: int) -> list[int]:
    """The processes below ``pid``, from the kernel's own lists: a look at every process takes too long to repeat."""
    if not _PROC.joinpath("self", "task", str(os.getpid()), "children").exists():
        return process_tree(pid)[1:]
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = _children(_PROC / str(waiting.pop()) / "task")
        waiting += below
        found += below
    return found


def _children(tasks: Path) -> list[int]:
    """The processes that the threads in ``tasks`` started; a process or thread may be gone at any moment."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in tasks.iterdir():
            with contextlib.suppress(OSError, ValueError):
                found += map(int, (thread / "children").read_text(encoding="ascii").split())
    return found


def process_memory_mib(pid: int) -> tuple[float, float] | None:
    """A process's peak and present resident memory in MiB; None once it is gone."""
    try:
        text = (_PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return _portable_memory_mib(pid)
    values = {
        line.split(":")[0]: line.split()[1] for line in text.splitlines() if line.startswith(("VmHWM:", "VmRSS:"))
    }
    if "VmHWM" not in values:
        return None
    return float(values["VmHWM"]) / 1024.0, float(values.get("VmRSS", 0)) / 1024.0


def _portable_memory_mib(pid: int) -> tuple[float, float] | None:
    """Where there is no ``/proc``: the present size stands in for the peak."""
    if _PROC.joinpath("self").exists():
        return None
    try:
        resident_mib = psutil.Process(pid).memory_info().rss / 2**20
    except psutil.Error:
        return None
    return resident_mib, resident_mib
