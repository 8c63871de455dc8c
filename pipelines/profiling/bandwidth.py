"""How fast this device copies its own memory: what the floor of a chain is told by."""

from __future__ import annotations

import time

import torch

CUDA_BYTES = 1 << 30
CPU_BYTES = 1 << 25
REPEATS = 10


def copy_bandwidth_gb_s(device: torch.device) -> float | None:
    """Gigabytes (1e9) a second of a copy within ``device``, bytes read and written; the median of ten copies.

    None where the memory for it is not there.
    """
    size = CUDA_BYTES if device.type == "cuda" else CPU_BYTES
    try:
        source = torch.ones(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
    except torch.OutOfMemoryError:
        return None
    target.copy_(source)
    seconds = sorted(_seconds_of_copy(source, target) for _ in range(REPEATS))[REPEATS // 2]
    del source, target
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return 2 * size / seconds / 1e9 if seconds > 0 else None


def _seconds_of_copy(source: torch.Tensor, target: torch.Tensor) -> float:
    if source.device.type != "cuda":
        started = time.perf_counter()
        target.copy_(source)
        return time.perf_counter() - started
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    target.copy_(source)
    after.record()
    torch.cuda.synchronize(source.device)
    return before.elapsed_time(after) / 1e3
