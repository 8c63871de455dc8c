"""What torch's profiler says on stderr about itself, kept from a user who would take it for a fault.

Kineto remarks on every start and stop, torch on the first tensor given back that is older than the profiler; neither
can be switched off once torch is loaded. So what is written to the file of stderr is caught for just as long as the
profiler starts or stops, and all of it but those remarks is written there afterwards, also where an error ends it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDERR = 2
REMARKS = re.compile(
    rb"^USDT:.*\bprofiler_(start|stop)\s*$|Memory block of unknown size was allocated before the profiling started"
    rb"|^ERROR:.*\boutput_json\.cpp:\d+\] Failed to "  # the profile's own warning says it
)


@contextmanager
def without_remarks() -> Iterator[None]:
    """Within this context nothing reaches stderr; behind it, everything written meanwhile that is no known remark."""
    try:
        own = os.dup(STDERR)
    except OSError:  # a program without stderr
        yield
        return
    _flush()
    with tempfile.TemporaryFile() as caught:
        os.dup2(caught.fileno(), STDERR)
        try:
            yield
        finally:
            _flush()
            os.dup2(own, STDERR)
            os.close(own)
            caught.seek(0)
            _write(kept(caught.read()))


def kept(written: bytes) -> bytes:
    """``written`` without the lines that are remarks of the profiler about itself."""
    return b"".join(line for line in written.splitlines(keepends=True) if not REMARKS.search(line))


def _write(rest: bytes) -> None:
    with suppress(OSError):
        while rest:
            rest = rest[os.write(STDERR, rest) :]


def _flush() -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
