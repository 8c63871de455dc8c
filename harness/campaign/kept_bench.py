"""Times of single kernels (``fastpaths bench --json``), named for an ablation and kept in its folder.

The copy lies in ``ablation/bench.json``, byte for byte as it was read, so that a report needs nothing from outside;
like every file it is in ``SHA256SUMS``. A campaign keeps one: another is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import write_bytes_atomically
from fuseproof.harness.kernel_times.record import Record, read_record

KEPT_BENCH = "ablation/bench.json"


@dataclass(frozen=True)
class KeptBench:
    """The file's bytes, and what they say."""

    content: bytes
    record: Record

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


def read_bench(path: Path | str) -> KeptBench:
    """The times at ``path``; :class:`UsageError` naming what is wrong with the file."""
    file = Path(path)
    try:
        record = read_record(file)
        return KeptBench(file.read_bytes(), record)
    except (FuseproofError, OSError) as error:
        message = error.message if isinstance(error, FuseproofError) else f"{file} cannot be read: {error.strerror}."
        raise UsageError(
            f"--bench: {message}",
            next_step="Give what `fuseproof fastpaths bench --model MODEL --json` printed on this card.",
        ) from error


def kept_bench(directory: Path) -> KeptBench | None:
    """The times that a campaign's folder holds, None where it holds none; FuseproofError for a damaged file."""
    file = directory / KEPT_BENCH
    if not file.is_file():
        return None
    try:
        return read_bench(file)
    except UsageError as error:
        raise FuseproofError(
            error.message.removeprefix("--bench: "), next_step="Restore the file from its original."
        ) from error


def keep_bench(bench: KeptBench, directory: Path) -> bool:
    """Copy the times into a campaign's folder; whether they were not there yet.

    :class:`UsageError` where that holds other ones already.
    """
    file = directory / KEPT_BENCH
    for place in (file.parent, file):
        if place.is_symlink():
            raise FuseproofError(
                f"{place} is a link, and what a report rests on lies in the campaign's own folder.",
                next_step="Remove the link, or put the file itself in its place.",
            )
    kept = kept_bench(directory)
    if kept is not None and kept.sha256 != bench.sha256:
        raise UsageError(
            f"{directory} already holds other times of single kernels ({KEPT_BENCH}); a campaign keeps one file.",
            next_step="Leave --bench out, or read the other times beside a copy of the folder.",
        )
    if kept is not None:
        return False
    try:
        file.parent.mkdir(exist_ok=True)
        write_bytes_atomically(file, bench.content)
    except OSError as error:
        raise FuseproofError(f"{file} could not be written: {error.strerror or error}.") from error
    return True


def take_out_bench(directory: Path) -> None:
    """Remove the times that :func:`keep_bench` has just put there, where no report could be made with them."""
    file = directory / KEPT_BENCH
    file.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        file.parent.rmdir()  # stays where anything else lies in it
