"""Where profiles are written: never over another one, whole or not at all, by one run at a time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli.output_names import cannot_write, check_folder_name, check_writable, made_folder
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions

OUTPUTS = "outputs"
"""Where `generate` saves too; git and the code's state leave it out."""
DEFAULT_FOLDER = "profile"
PROFILE_FILE = "profile.json"
SUFFIX = ".profile"
WORKING_FOLDER = ".fuseproof-unfinished"
"""In the folder of a profile that is being made: its files so far. Whoever makes it has the folder."""
NEEDED_BYTES = 64 * 2**20
FLAG = "--output-path"


def free_folder(wanted: str | None, files: tuple[str, ...] = (PROFILE_FILE,)) -> Path:
    """The folder for new files: the one that is asked for, which must hold none yet, or the first free default."""
    if wanted is None:
        names = (DEFAULT_FOLDER if number == 1 else f"{DEFAULT_FOLDER}-{number}" for number in count(1))
        folder = next(folder for folder in (Path(OUTPUTS, name) for name in names) if not folder.exists())
    else:
        folder = Path(wanted)
        check_folder_name(folder, FLAG)
        _refuse_taken(folder, files)
    check_writable(folder, NEEDED_BYTES, FLAG)
    return folder


@contextmanager
def claimed(folder: Path, files: Sequence[str] = (PROFILE_FILE,)) -> Iterator[Path]:
    """Take ``folder``, which may not exist yet, for this run alone; the hidden folder in it that files are written to.

    They come into ``folder`` when the block ends, ``profile.json`` last. An error or an interrupt leaves none of them,
    and no folder that was made here. Raises :class:`UsageError` where one of ``files`` is there already or another run
    has the folder.
    """
    with made_folder(folder, FLAG):
        working = folder / WORKING_FOLDER
        try:
            working.mkdir()
        except FileExistsError as error:
            raise _claimed_by_another(folder) from error
        except OSError as error:
            raise cannot_write(folder, FLAG, error) from error
        try:
            _refuse_taken(folder, files)
            yield working
            _move_all(working, folder)
        finally:
            shutil.rmtree(working, ignore_errors=True)


def folder_beside(options: GenerateOptions, destination: Path | None) -> Path:
    """Where ``generate --profile`` writes: ``NAME.profile`` beside the output, ``profile`` where none is saved."""
    return options.output_folder / DEFAULT_FOLDER if destination is None else destination.with_suffix(SUFFIX)


def refuse_taken_beside(options: GenerateOptions) -> None:
    """Raise before anything is loaded where ``generate --profile`` would write over another profile."""
    name = options.fixed_file_name if options.saves_output else None
    if options.profile and (name is not None or not options.saves_output):
        free_folder(str(folder_beside(options, None if name is None else options.output_folder / name)))


def refuse_other_profile(folder: Path, own: Path) -> None:
    """Raise where ``folder`` holds another profile than ``own``, whose tables would be taken for that one's."""
    check_folder_name(folder, FLAG)
    present = folder / PROFILE_FILE
    if present.exists() and not (own.exists() and present.samefile(own)):
        raise UsageError(f"{FLAG} {folder} holds another profile.", next_step="Choose another folder.")
    check_writable(folder, NEEDED_BYTES, FLAG)


def _refuse_taken(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if (folder / name).exists():
            raise UsageError(
                f"{FLAG} {folder} holds {name} already, and no profile replaces another.",
                next_step="Choose another folder, or remove it.",
            )


def _claimed_by_another(folder: Path) -> UsageError:
    return UsageError(
        f"{FLAG} {folder} is being written to by another run, or one was killed there: it holds {WORKING_FOLDER}.",
        next_step=f"Choose another folder; remove {folder / WORKING_FOLDER} if no such run is left.",
    )


def _move_all(working: Path, folder: Path) -> None:
    """Move every file of ``working`` into ``folder``, ``profile.json`` last; all of them or none."""
    found = sorted(working.iterdir(), key=lambda path: (path.name == PROFILE_FILE, path.name))
    try:
        for path in found:
            path.replace(folder / path.name)
    except BaseException as error:
        for path in found:
            if not path.exists():  # it was moved
                (folder / path.name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise cannot_write(folder, FLAG, error) from error
        raise
