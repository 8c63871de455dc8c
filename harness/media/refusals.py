"""Why a picture or a video cannot be compared, and the limits above which neither is decoded."""

from __future__ import annotations

from pathlib import Path

from fuseproof.errors import FuseproofError
from fuseproof.harness.media.files import os_reason, printable

MAX_PIXELS = 8192 * 8192
"""Of a picture or a frame. Above this a comparison would need more than about 5 GiB of memory."""

MAX_CLIP_PIXELS = 128 * MAX_PIXELS
"""Of all frames of a video together: about 20,000 frames of 832 x 480."""

MAX_FILE_BYTES = 4 * 1024**3


def unreadable(path: Path, reason: str, next_step: str = "make the file again, or name another one") -> FuseproofError:
    """The error for a file of which ``reason`` is true."""
    return FuseproofError(f"{printable(path)} cannot be compared: {reason}.", next_step=next_step)


def too_large(path: Path, detail: str, limit: int = MAX_PIXELS) -> FuseproofError:
    """The error for a file whose header promises more pixels than ``limit``."""
    return unreadable(path, f"it would be a decompression bomb ({one_line(detail)}; the limit is {limit:,})")


def check_pixel_count(path: Path, width: int, height: int, frames: int = 1) -> None:
    """Raise :class:`FuseproofError` for more pixels than are ever decoded."""
    if width * height > MAX_PIXELS:
        raise too_large(path, f"{width}x{height} is {width * height:,} pixels")
    if width * height * frames > MAX_CLIP_PIXELS:
        pixels = f"{frames} frames of {width}x{height} are {width * height * frames:,} pixels"
        raise too_large(path, pixels, MAX_CLIP_PIXELS)


def check_regular_file(path: Path, most_bytes: int = MAX_FILE_BYTES) -> None:
    """Raise :class:`FuseproofError` for what is missing, empty, larger than ``most_bytes``, a folder or a pipe."""
    try:
        if path.is_dir():
            raise unreadable(path, "it is a folder")
        # A pipe or device may never end.
        if path.exists() and not path.is_file():
            raise unreadable(path, "it is not a regular file")
        size = path.stat().st_size
    except OSError as error:
        raise unreadable(path, os_reason(error)) from error
    if size > most_bytes:
        raise unreadable(path, f"it has {size:,} bytes, the limit is {most_bytes:,}")
    if size == 0:
        raise unreadable(path, "it is empty (0 bytes)")


def one_line(error: object) -> str:
    """A library's words, printable and short."""
    text = " ".join(str(error).split()) or type(error).__name__
    return printable(text[:160])
