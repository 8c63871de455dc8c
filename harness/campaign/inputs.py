"""The files that an arm's flags name: there before anything runs, hashed, and kept with the campaign where small.

A campaign folder is read on other machines, where ``kernels.py`` or ``cat.jpg`` is not. Slots still read the named
files; the copies are for whoever repeats a run.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign.arms import generate_words, shared_words, takes_flags
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.files import file_sha256
from fuseproof.schedules.plan import Arm, Cell, Plan

INPUTS_FOLDER = "inputs"
INPUT_FLAGS = (
    "--fastpaths-from",
    "--image-path",
    "--image-paths",
    "--prompt-path",
    "--fixed-prompt-path",
    "--certificate",
    "--config",
)
LARGEST_COPY_BYTES = 8 * 2**20
NO_FILES = ("", "auto", "off")
"""Values of these flags that name no file."""
_ODD = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class InputFile:
    """One file as it was when the campaign began.

    ``argument`` is how the slots' commands name it; ``copy`` is relative to the campaign folder, None for a file of
    more than :data:`LARGEST_COPY_BYTES`.
    """

    argument: str
    sha256: str
    size_bytes: int
    copy: str | None


def flag_values(words: Sequence[str], flags: Sequence[str] = INPUT_FLAGS) -> Iterator[tuple[str, str]]:
    """Flag and value wherever one of ``flags`` is given, as ``--flag value`` or ``--flag=value``."""
    for index, word in enumerate(words):
        flag, separator, value = word.partition("=")
        if flag not in flags:
            continue
        if separator:
            yield flag, value
        elif index + 1 < len(words):
            yield flag, words[index + 1]


def refuse_missing_inputs(plan: Plan, working_directory: Path) -> None:
    """Raise :class:`UsageError` naming cell, arm and flag for a file that is not there; URLs are not looked up."""
    for cell in plan.cells:
        for role, arm in plan.arms.by_key.items():
            for flag, value in flag_values(_words_of(arm, cell)):
                if _is_file_name(value) and not (working_directory / value).is_file():
                    raise UsageError(
                        f"Cell {cell.name}, {role}: {flag} {value} is no file.",
                        next_step=f"Check the path; it is looked up from {working_directory}.",
                    )


def keep_inputs(plan: Plan, working_directory: Path, campaign_directory: Path) -> tuple[InputFile, ...]:
    """Hash every file that the plan's flags name, and copy the small ones into the campaign folder.

    Raises :class:`FuseproofError` naming a file that cannot be read or copied.
    """
    named = {
        value: None
        for cell in plan.cells
        for arm in plan.arms.all
        for _, value in flag_values(_words_of(arm, cell))
        if _is_file_name(value)
    }
    return tuple(_kept(value, working_directory / value, campaign_directory) for value in named)


def _words_of(arm: Arm, cell: Cell) -> tuple[str, ...]:
    """The flags of an arm as far as they are known: a command's are the cell's, and only in the present folder."""
    if arm.command is None:
        return generate_words(arm, cell, Path("perf.json"), Path("outputs"))
    words = shared_words(cell.flags) if takes_flags(arm) else ()
    if arm.ref is None:
        return words
    return tuple(word for flag, value in flag_values(words) if Path(value).is_absolute() for word in (flag, value))


def _is_file_name(value: str) -> bool:
    return value not in NO_FILES and "://" not in value


def _kept(argument: str, file: Path, campaign_directory: Path) -> InputFile:
    try:
        size_bytes, sha256 = file.stat().st_size, file_sha256(file)
        copy = None
        if size_bytes <= LARGEST_COPY_BYTES:
            copy = f"{INPUTS_FOLDER}/{sha256[:12]}-{_ODD.sub('_', file.name)}"
            (campaign_directory / INPUTS_FOLDER).mkdir(exist_ok=True)
            shutil.copyfile(file, campaign_directory / copy)
    except OSError as error:
        raise FuseproofError(
            f"The input {argument} cannot be kept with the campaign: {error.strerror or error}.",
            next_step="Check that the file can be read and that there is space for the campaign folder.",
        ) from error
    return InputFile(redact(argument), sha256, size_bytes, copy)
