"""How fast this device copies its own memory: what a floor is told by."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from fuseproof.pipelines.memory import free_bytes

CUDA_BYTES = 1 << 30
CPU_BYTES = 3 << 27
"""384 MiB, and as many again to copy them into: far more than any cache holds."""
CPU_PIECE_BYTES = 4 << 20
"""Copied in less than a system lets another program have the core for; a piece is cold when its turn comes again."""
SHARE_OF_FREE_MEMORY = 8
"""Both buffers take no more than this part of what is free."""
COPIES = 10
LONGEST_S = 2.0
FEWEST_COPIES = 3


@dataclass(frozen=True)
class CopyBandwidth:
    """The best of several copies: gigabytes (1e9) a second, read and written, and the bytes of the buffer."""

    gb_s: float | None
    buffer_bytes: int | None


UNKNOWN = CopyBandwidth(None, None)


def copy_bandwidth(device: torch.device) -> CopyBandwidth:
    """Copies of one large buffer within ``device``; the best counts, since what else runs only makes a copy slower.

    Unknown where the memory for it is not there.
    """
    size = buffer_bytes(device.type, free_bytes(device))
    try:
        source = torch.ones(size, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError):
        return UNKNOWN
    target.copy_(source)
    best_s = _best_of_copies(source, target)
    del source, target
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return CopyBandwidth(2 * size / best_s / 1e9, size) if best_s > 0 else UNKNOWN


def buffer_bytes(kind: str, free: int) -> int:
    """How large a buffer to copy where ``free`` bytes are left; a whole MiB at least."""
    wanted = CUDA_BYTES if kind == "cuda" else CPU_BYTES
    return max(min(wanted, free // SHARE_OF_FREE_MEMORY // 2), 1 << 20)


def _best_of_copies(source: torch.Tensor, target: torch.Tensor) -> float:
    """The shortest, in seconds, of ten copies, or of three and more where ten would take long.

    On a CPU each piece of the buffer has its own shortest: on a busy machine no whole copy keeps its core to the end.
    """
    piece = source.numel() if source.device.type == "cuda" else CPU_PIECE_BYTES
    pieces = list(zip(source.split(piece), target.split(piece), strict=True))
    best, copies, spent_s = [math.inf] * len(pieces), 0, 0.0
    while copies < FEWEST_COPIES or (copies < COPIES and spent_s < LONGEST_S):
        times = [_seconds_of_copy(*one) for one in pieces]
        best = [min(pair) for pair in zip(best, times, strict=True)]
        copies, spent_s = copies + 1, spent_s + sum(times)
    return math.fsum(best)


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
