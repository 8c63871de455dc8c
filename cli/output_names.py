"""Where an image goes: a safe name from the prompt, and a folder that is known to take it before any weight is read."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import special_kind

PROMPT_CHARACTERS = 100
LONGEST_NAME = 150
LONGEST_SUFFIX = ".previous-99"
"""What a dump's name must leave room for while an earlier one is set aside."""
NAME_SHOWN = 60


def default_file_name(prompt: str, identity: str, moment: datetime, suffix: str = ".png") -> str:
    """``<first 100 characters of the prompt>_<time>_<8 hex digits><suffix>``, ASCII only and at most 150 characters.

    ``identity`` is whatever tells this request from another one with the same prompt; it feeds the hash. Nothing in the
    prompt can become a folder, a hidden file or an option.
    """
    ascii_text = unicodedata.normalize("NFKD", prompt[:PROMPT_CHARACTERS]).encode("ascii", "ignore").decode()
    words = re.sub(r"[^A-Za-z0-9]+", "_", ascii_text)[:PROMPT_CHARACTERS].strip("_") or "image"
    digest = hashlib.sha256(f"{prompt}\0{identity}".encode()).hexdigest()[:8]
    return f"{words}_{moment:%Y%m%d-%H%M%S}_{digest}{suffix}"


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
            raise UsageError(
                f"{flag} {folder} cannot be a folder: {nearest} is a file.", next_step="Choose another folder."
            )
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
    """The same for a perf dump."""
    check_file(path, "--perf-dump-path", needed_bytes)


def check_file(path: Path, flag: str, needed_bytes: int = 0) -> None:
    """The same for a file, which must be a regular one or nothing yet, under a name that the system can hold."""
    check_file_name(path, flag)
    check_writable(path.resolve().parent if path.is_symlink() else path.parent, needed_bytes, f"{flag} in")


def check_file_name(path: Path, flag: str) -> None:
    """Raise :class:`UsageError` for a path that no regular file stands at and none can: a device, a name too long."""
    if path.name in ("", ".."):
        raise UsageError(f"{flag} {path} is a folder; it must be a file.", next_step="Add a file name to it.")
    try:
        kind = special_kind(path)
        special_kind(path.with_name(path.name + LONGEST_SUFFIX))
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError):
            return  # the folder itself is judged by check_writable
        raise _impossible_name(path, "a file", flag, error) from error
    if kind == "a folder":
        raise UsageError(f"{flag} {path} is a folder; it must be a file.", next_step="Add a file name to it.")
    if kind is not None:
        raise UsageError(
            f"{flag} {path} is {kind}; it must be a regular file of its own.", next_step="Choose another file."
        )


def check_folder_name(path: Path, flag: str) -> None:
    """Raise :class:`UsageError` for a path that the system cannot hold: a name too long, a NUL byte."""
    try:
        special_kind(path)
    except (OSError, ValueError) as error:
        if isinstance(error, PermissionError):
            return  # the folder itself is judged by check_writable
        raise _impossible_name(path, "a folder", flag, error) from error


def check_distinct(output: Path | None, flag: str, others: Mapping[str, Sequence[Path | None]]) -> None:
    """Refuse an ``output`` that is the same file as one of ``others``, whatever links and spellings lead there."""
    for other_flag, paths in others.items():
        for other in paths:
            if output is not None and other is not None and _is_same_file(output, other):
                raise UsageError(
                    f"{flag} {output} is the same file as {other_flag} {other}.", next_step="Give each its own file."
                )


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        if first.exists() and second.exists():
            return first.samefile(second)
        return first.resolve() == second.resolve()
    except (OSError, ValueError, RuntimeError):
        return False  # a path that cannot be looked up is refused by whoever reads or writes it


def create_folder(folder: Path, flag: str) -> None:
    """Make the folder and its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise cannot_write(folder, flag, error) from error


@contextmanager
def made_folder(folder: Path, flag: str) -> Iterator[None]:
    """Make the folder and its parents; what was made here goes again where the run fails and left it empty."""
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
    except (OSError, ValueError) as error:
        raise cannot_write(folder, flag, error) from error
    try:
        create_folder(folder, flag)
        yield
    except BaseException:
        with suppress(OSError):  # the first that is not empty ends it
            for path in made:
                path.rmdir()
        raise


def _impossible_name(path: Path, what: str, flag: str, error: Exception) -> UsageError:
    name = path.name if len(path.name) <= NAME_SHOWN else f"{path.name[:NAME_SHOWN]}…"
    reason = getattr(error, "strerror", None) or error
    return UsageError(f"{flag} {name!r} cannot name {what}: {reason}.", next_step="Choose another, shorter name.")


def cannot_write(folder: Path, flag: str, error: Exception) -> FuseproofError:
    """The sentence for a folder that the system does not let us write to."""
    reason = getattr(error, "strerror", None) or str(error)
    return FuseproofError(
        f"{flag} {os.fspath(folder)} cannot be written: {reason}.", next_step="Choose another folder."
    )
