"""glibc's heap on a CPU: freed memory is kept, so that timings measure arithmetic and not page faults.

By default glibc hands the top of the heap back to the kernel whenever enough of it is free, and every forward then
faults its activations in again, or not, depending on where a few small tensors happen to lie. Measured on 2 cores with
the embedded model: 14,100 or 77,544 faults in the same 12 forwards, 8 % apart in time, decided by two held kilobytes.
"""

from __future__ import annotations

import ctypes
import sys

# mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
TRIM_THRESHOLD_BYTES = 1 << 30
MMAP_THRESHOLD_BYTES = 32 << 20
"""The largest that glibc accepts on 64 bits; setting it also stops glibc from moving it by itself."""


def keep_freed_memory() -> dict[str, int] | None:
    """Tell glibc to keep freed memory, for this process and both backends alike; what was set, or None elsewhere."""
    if sys.platform != "linux":
        return None
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return None
    wanted = {_M_TRIM_THRESHOLD: TRIM_THRESHOLD_BYTES, _M_MMAP_THRESHOLD: MMAP_THRESHOLD_BYTES}
    if not all(mallopt(option, value) for option, value in wanted.items()):
        return None
    return {"trim_threshold_bytes": TRIM_THRESHOLD_BYTES, "mmap_threshold_bytes": MMAP_THRESHOLD_BYTES}
