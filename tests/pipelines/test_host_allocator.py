"""Freed memory stays with the process: a large block, freed and asked for again, faults no page in."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, json, resource, sys
from fuseproof.pipelines.host_allocator import keep_freed_memory
settings = keep_freed_memory() if sys.argv[1] == "keep" else None
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def touch():
    block = libc.malloc(16 << 20)
    ctypes.memset(block, 1, 16 << 20)
    libc.free(block)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(json.dumps([settings, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before]))
"""


def run(mode: str) -> tuple[dict[str, int] | None, int]:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    settings, faults = json.loads(done.stdout)
    return settings, faults


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's mallopt")
def test_a_freed_block_is_kept():
    settings, faults = run("keep")
    assert {"trim_threshold_bytes": 1 << 30, "mmap_threshold_bytes": 32 << 20} == settings
    assert faults < 100
