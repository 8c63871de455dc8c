"""Peak memory of this process at the checkpoints of a perf dump, in MiB (design contract 3).

Device numbers are the allocator's own. Host numbers are VmHWM, the kernel's high-water mark of resident memory;
``ru_maxrss`` would inherit the parent's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil
import torch

MIB = 1024 * 1024
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


def peak_host_rss_mib() -> float | None:
    """VmHWM in MiB, or None where the kernel does not tell."""
    if not _STATUS.exists():
        return None
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 2)
    return None


def checkpoint(device: torch.device) -> dict[str, float]:
    """Allocated, reserved and peak memory now; device keys are absent on a CPU, host keys where unknown."""
    numbers: dict[str, float] = {}
    if device.type == "cuda":
        numbers = {
            "allocated_mb": _mib(torch.cuda.memory_allocated(device)),
            "reserved_mb": _mib(torch.cuda.memory_reserved(device)),
            "peak_allocated_mb": _mib(torch.cuda.max_memory_allocated(device)),
            "peak_reserved_mb": _mib(torch.cuda.max_memory_reserved(device)),
        }
    host = peak_host_rss_mib()
    if host is not None:
        numbers["peak_host_rss_mb"] = host
    return numbers


def largest(checkpoints: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The largest of each number over all checkpoints."""
    whole: dict[str, float] = {}
    for numbers in checkpoints:
        for key, value in numbers.items():
            whole[key] = max(value, whole.get(key, 0.0))
    return whole


def free_bytes(device: torch.device) -> int:
    """How much can be allocated on ``device`` now: free memory of a GPU, else what the host has available."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)


def give_back_unused(device: torch.device) -> bool:
    """Return what the allocator holds and nobody uses; what CUDA graphs use stays. False where it holds nothing so."""
    if device.type != "cuda":
        return False
    torch.cuda.empty_cache()
    return True


def reset_peaks(device: torch.device) -> bool:
    """Forget earlier peaks, so that the next checkpoint speaks of what follows. False if the host's could not be."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def _mib(count: int) -> float:
    return round(count / MIB, 2)
