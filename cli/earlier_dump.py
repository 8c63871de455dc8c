"""A failed run must not leave a dump that looks like success, and neither may the dump of the run before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.perf.fields import read_json_object

SUFFIX = ".previous"


@contextmanager
def earlier_dump_set_aside(path: Path | None, on_kept: Callable[[Path], None]) -> Iterator[None]:
    """Rename a dump that stands at ``path`` to ``path.previous`` while a run is under way.

    Where that name is taken it becomes ``.previous-2``, and so on: nothing is ever overwritten. When the run succeeds
    the earlier dump is dropped, as asked for by naming the same file. When it fails, nothing stands at ``path``, the
    earlier dump stays under its new name and ``on_kept`` hears of it. A usage error is no run: everything is put back.
    A file that is no perf dump is not ours to replace, and a :class:`UsageError`.
    """
    if path is None or not path.is_file():
        yield
        return
    path = path.resolve() if path.is_symlink() else path
    _refuse_other_files(path)
    try:
        aside = _reserved_name(path)
        try:
            path.replace(aside)
        except OSError:
            aside.unlink()
            raise
        identity = _identity(aside)
    except OSError as error:
        raise FuseproofError(
            f"--perf-dump-path {path} cannot be replaced: {error.strerror or error}.",
            next_step="Choose another file, or move the earlier dump away.",
        ) from error
    try:
        yield
    except UsageError:
        _put_back(aside, path, on_kept)
        raise
    except BaseException:
        on_kept(aside)
        raise
    if _identity(aside) == identity:
        aside.unlink(missing_ok=True)


def _refuse_other_files(path: Path) -> None:
    try:
        is_dump = path.stat().st_size == 0 or "total_duration_ms" in read_json_object(path)
    except (FuseproofError, OSError):
        is_dump = False
    if not is_dump:
        raise UsageError(
            f"--perf-dump-path {path} exists and is not a perf dump, so it is not replaced.",
            next_step="Choose another file, or move that one away.",
        )


def _reserved_name(path: Path) -> Path:
    """A name beside ``path`` that was free and is now held by an empty file of ours."""
    number = 1
    while True:
        aside = path.with_name(path.name + SUFFIX + (f"-{number}" if number > 1 else ""))
        try:
            aside.touch(exist_ok=False)
        except FileExistsError:
            number += 1
        else:
            return aside


def _put_back(aside: Path, path: Path, on_kept: Callable[[Path], None]) -> None:
    if os.path.lexists(path):  # somebody else wrote there meanwhile
        on_kept(aside)
    else:
        aside.replace(path)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
