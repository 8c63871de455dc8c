"""Whether NVIDIA's driver is installed at all: known in a millisecond, where torch takes seconds to be imported."""

from __future__ import annotations

import ctypes

LIBRARY = "libcuda.so.1"


def has_cuda_driver() -> bool:
    """Whether the driver's library can be loaded; without it no process sees a CUDA device. Nothing is initialised."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True
