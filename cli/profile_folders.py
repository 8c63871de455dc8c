"""Where profiles are written: never over another one."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli.output_names import check_writable
from fuseproof.errors import UsageError

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions

DEFAULT_FOLDER = "profile"
PROFILE_FILE = "profile.json"
SUFFIX = ".profile"
NEEDED_BYTES = 64 * 2**20
FLAG = "--output-path"


def free_folder(wanted: str | None, files: tuple[str, ...] = (PROFILE_FILE,)) -> Path:
    """The folder for new files: the one that is asked for, which must hold none yet, or the first free default."""
    if wanted is None:
        names = (DEFAULT_FOLDER if number == 1 else f"{DEFAULT_FOLDER}-{number}" for number in count(1))
        folder = next(Path(name) for name in names if not Path(name).exists())
    else:
        folder = Path(wanted)
        for name in files:
            _refuse_taken(folder, name)
    check_writable(folder, NEEDED_BYTES, FLAG)
    return folder


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
    present = folder / PROFILE_FILE
    if present.exists() and not (own.exists() and present.samefile(own)):
        raise UsageError(f"{FLAG} {folder} holds another profile.", next_step="Choose another folder.")
    check_writable(folder, NEEDED_BYTES, FLAG)


def _refuse_taken(folder: Path, name: str) -> None:
    if (folder / name).exists():
        raise UsageError(
            f"{FLAG} {folder} holds {name} already, and no profile replaces another.",
            next_step="Choose another folder, or remove it.",
        )
