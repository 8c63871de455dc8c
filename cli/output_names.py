"""Where an image goes: a safe name from the prompt, and a folder that is known to take it before any weight is read."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import unicodedata
from datetime import datetime
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError

PROMPT_CHARACTERS = 100
LONGEST_NAME = 150


def default_file_name(prompt: str, identity: str, moment: datetime) -> str:
    """``<first 100 characters of the prompt>_<time>_<8 hex digits>.png``, ASCII only and at most 150 characters.

    ``identity`` is whatever tells this request from another one with the same prompt; it feeds the hash. Nothing in the
    prompt can become a folder, a hidden file or an option.
    """
    ascii_text = unicodedata.normalize("NFKD", prompt[:PROMPT_CHARACTERS]).encode("ascii", "ignore").decode()
    words = re.sub(r"[^A-Za-z0-9]+", "_", ascii_text)[:PROMPT_CHARACTERS].strip("_") or "image"
    digest = hashlib.sha256(f"{prompt}\0{identity}".encode()).hexdigest()[:8]
    return f"{words}_{moment:%Y%m%d-%H%M%S}_{digest}.png"


def free_path(folder: Path, name: str) -> Path:
    """``folder / name``, or with ``-2``, ``-3``… before the ending where such a file exists already."""
    path = folder / name
    number = 1
    while path.exists() or path.is_symlink():
        number += 1
        path = folder / f"{Path(name).stem}-{number}{Path(name).suffix}"
    return path


def check_writable(folder: Path, needed_bytes: int, flag: str) -> None:
    """Find out, without leaving anything behind, whether files of ``needed_bytes`` can be written to ``folder``.

    The folder may not exist yet; then its nearest existing parent is asked. Raises :class:`UsageError` when a file is
    in the way, :class:`FuseproofError` when the system refuses or the disk is too full.
    """
    try:
        nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        if not nearest.is_dir():
            raise UsageError(f"{flag} {folder} cannot be a folder: {nearest} is a file.")
        with tempfile.TemporaryFile(dir=nearest):
            free_bytes = shutil.disk_usage(nearest).free
    except (OSError, ValueError) as error:
        raise cannot_write(folder, flag, error) from error
    if free_bytes < needed_bytes:
        raise FuseproofError(
            f"{flag} {folder}: the disk has {free_bytes / 2**20:.1f} MiB free, this run needs about "
            f"{needed_bytes / 2**20:.1f} MiB.",
            next_step="Free some space, or choose another folder.",
        )


def check_dump_path(path: Path, needed_bytes: int) -> None:
    """The same for a perf dump, which must not be an existing folder."""
    if path.is_dir():
        raise UsageError(f"--perf-dump-path {path} is a folder; it must be a file.", next_step=f"Use {path}/perf.json.")
    if path.name in ("", ".."):
        raise UsageError(f"--perf-dump-path {str(path)!r} is not a file name.")
    check_writable(path.parent, needed_bytes, "--perf-dump-path in")


def create_folder(folder: Path, flag: str) -> None:
    """Make the folder and its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(folder, flag, error) from error


def cannot_write(folder: Path, flag: str, error: Exception) -> FuseproofError:
    """The sentence for a folder that the system does not let us write to."""
    reason = getattr(error, "strerror", None) or str(error)
    return FuseproofError(
        f"{flag} {os.fspath(folder)} cannot be written: {reason}.", next_step="Choose another folder."
    )
