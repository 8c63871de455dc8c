"""Writing a file whole or not at all: a temporary file in the same folder, then a rename."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError

SPECIAL_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
UNFINISHED_FILES = ".fuseproof-*.tmp"
"""As :func:`temporary_beside` names what has not got its own name yet."""
STANDARD_STREAMS = ("standard input", "standard output", "standard error")
"""By descriptor."""


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text, missing parent folders included, so that a reader sees all of it or none.

    See :func:`write_bytes_atomically`.
    """
    write_bytes_atomically(path, text.encode("utf-8", errors="surrogateescape"))


def write_bytes_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file, missing parent folders included, so that a reader sees all of it or none.

    A symbolic link stays one: the file that it names is written. Whatever else stands at ``path`` and is no regular
    file (a device, a pipe, a folder) is refused, because a rename would replace it.
    """
    target = regular_target(Path(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(target, content)
    except OSError as error:
        raise FuseproofError(
            f"Cannot write {target}: {error.strerror or error}.",
            next_step="Choose a folder that is writable and has space left.",
        ) from error


def replace_whole(target: Path, content: bytes) -> None:
    """Put ``content`` in place of the file ``target``; an :class:`OSError` leaves the old one and nothing else."""
    temporary = temporary_beside(target)
    try:
        with temporary.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(target)
    finally:
        _remove(temporary)


def temporary_beside(target: Path) -> Path:
    """A name in the folder of ``target`` that nobody else uses, to write to before a rename."""
    return target.parent / f".fuseproof-{os.getpid()}-{secrets.token_hex(4)}.tmp"


def special_kind(path: Path) -> str | None:
    """What stands at ``path``, links followed, that a rename must not replace: ``"a named pipe"``; None for all else.

    A regular file counts, too, where one of this program's own standard streams reads or writes it: what was printed
    would vanish with it. Raises :class:`OSError` for a name that the system cannot look up, :class:`ValueError` for one
    with a NUL byte.
    """
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind = next((kind for is_kind, kind in SPECIAL_KINDS if is_kind(found.st_mode)), None)
    return kind or _standard_stream(found)


def _standard_stream(found: os.stat_result) -> str | None:
    for descriptor, name in enumerate(STANDARD_STREAMS):
        try:
            if os.path.samestat(found, os.fstat(descriptor)):
                return f"this program's {name}"
        except OSError:
            continue  # closed
    return None


def regular_target(path: Path) -> Path:
    """The file that writing to ``path`` replaces, links followed; a :class:`UsageError` where something else stands."""
    try:
        kind = special_kind(path)
        target = path.resolve() if path.is_symlink() else path
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuseproofError(f"Cannot write {str(path)!r}: {reason}.", next_step="Choose another file name.") from error
    if kind is not None:
        raise UsageError(
            f"Cannot write {path}: it is {kind}, and a regular file was expected.", next_step="Choose another file."
        )
    return target


def _remove(temporary: Path) -> None:
    try:
        temporary.unlink(missing_ok=True)
    except OSError:
        return  # the folder itself is unreachable, so nothing was created there; the write has raised its own error
