"""What a packed folder may lack, and what it says of it: ``SHA256SUMS`` and ``left-out.txt``.

``fuseproof pack`` may leave behind logs that no number rests on, outputs, kept raw arrays, and what is drawn from them.
``SHA256SUMS`` stays as it was signed, so the hash of every file that is gone is still known; ``left-out.txt`` repeats
those lines and was never signed itself. Nothing else may be missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.folder import OUTPUTS_FOLDER

SUMS_FILE = "SHA256SUMS"
LEFT_OUT_FILE = "left-out.txt"
LOG_NAMES = frozenset({"stdout.log", "stderr.log"})
HTML_FILE = "report.html"
"""Holds or links the pictures, so it goes where they go."""
FIGURES = "figures/"
_SLOT_MEDIA = re.compile(rf"slots/[^/]+/[^/]+/(?:{OUTPUTS_FOLDER}|raw)/.+")
_LINE = re.compile(r"\\?[0-9a-f]{64}  (?P<name>.+)")


def noted_lines(directory: Path) -> dict[str, str]:
    """The lines of the folder's ``SHA256SUMS``, by the name as it is written there; empty where there is no such file.

    Raises :class:`FuseproofError` when it cannot be read.
    """
    try:
        text = (directory / SUMS_FILE).read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise FuseproofError(f"{directory / SUMS_FILE} cannot be read: {error.strerror or error}.") from error
    return {found["name"]: line for line in text.split("\n") if (found := _LINE.fullmatch(line))}


def is_log(name: str) -> bool:
    """Whether this path, relative to the campaign folder, is a slot's log."""
    return PurePosixPath(name).name in LOG_NAMES


def is_medium(name: str) -> bool:
    """Whether this path is an output, a raw array, or a file that is drawn from outputs."""
    return name == HTML_FILE or name.startswith(FIGURES) or _SLOT_MEDIA.fullmatch(name) is not None


def left_out_lines(directory: Path, noted: Mapping[str, str] | None = None) -> dict[str, str]:
    """The lines of ``SHA256SUMS`` for what was left out when the folder was packed, by name.

    Empty unless the folder has an unsigned ``left-out.txt``: what is missing elsewhere is missing. ``noted`` are
    :func:`noted_lines`, where they are known.
    """
    if not os.path.lexists(directory / LEFT_OUT_FILE):
        return {}
    lines = noted_lines(directory) if noted is None else noted
    if LEFT_OUT_FILE in lines:
        return {}
    allowed = ((name, line) for name, line in lines.items() if is_log(name) or is_medium(name))
    return {name: line for name, line in allowed if not os.path.lexists(directory / name)}


def hash_of(line: str) -> str:
    """The SHA-256 that a line of ``SHA256SUMS`` states."""
    return line.removeprefix("\\")[:64]
