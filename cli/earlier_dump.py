"""A failed run must not leave a dump that looks like success, and neither may the dump of the run before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError

SUFFIX = ".previous"


@contextmanager
def earlier_dump_set_aside(path: Path | None, on_kept: Callable[[Path], None]) -> Iterator[None]:
    """Rename a dump that stands at ``path`` to ``path.previous`` while a run is under way.

    When the run succeeds the earlier dump is dropped, as asked for by naming the same file. When it fails, nothing
    stands at ``path``, the earlier dump stays under its new name and ``on_kept`` hears of it. A usage error is no run:
    everything is put back.
    """
    if path is None or not path.is_file():
        yield
        return
    aside = path.with_name(path.name + SUFFIX)
    try:
        path.replace(aside)
    except OSError as error:
        raise FuseproofError(f"--perf-dump-path {path} cannot be replaced: {error.strerror or error}.") from error
    try:
        yield
    except UsageError:
        aside.replace(path)
        raise
    except BaseException:
        on_kept(aside)
        raise
    aside.unlink(missing_ok=True)
