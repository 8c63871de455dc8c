"""Reading a file that a user named: a pipe, a device or a folder is refused, never waited for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_regular(path: Path, largest_bytes: int) -> bytes:
    """All bytes of the regular file at ``path``, links followed; a :class:`ValueError` says shortly why not."""
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        _require_regular(os.fstat(descriptor).st_mode)
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(largest_bytes + 1)
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    if len(content) > largest_bytes:
        raise ValueError(f"it is larger than {largest_bytes >> 20} MiB")
    return content


def not_regular_reason(path: Path) -> str | None:
    """Why nothing can be read from ``path`` as from a file, in half a sentence; None for a regular file."""
    try:
        _require_regular(path.stat().st_mode)
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # a NUL byte in the name, or no regular file
        return str(error)
    return None


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in KINDS if is_kind(mode)), "a special file")
        raise ValueError(f"it is {kind}, and a regular file was expected")
