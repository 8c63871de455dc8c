"""An A/A campaign's noise floor (``aa.json``), named for a later campaign and kept in its folder.

The copy lies in ``floor/aa.json``, byte for byte as it was read, so that a report needs nothing from outside; like
every file it is in ``SHA256SUMS``. A campaign has one floor: another one is refused, because whoever may choose among
floors may choose the one that suits.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import write_text_atomically

FLOOR_SCHEMA = "fuseproof.floor/1"
FLOOR_FILE = "aa.json"
"""In an A/A campaign's own folder."""
KEPT_FLOOR = "floor/aa.json"
"""In the folder of a campaign that is read beside it."""
LARGEST_BYTES = 8 * 2**20
RENDER_STEP = "Give the folder of an `abba --aa` campaign, rendered with `fuseproof report DIR`, or its aa.json."


@dataclass(frozen=True)
class TimerFloor:
    """One timer of one cell of the A/A campaign; reductions and scatter are shares, the interval (lower, upper)."""

    blocks: int
    apparent_reduction: float
    interval: tuple[float, float]
    level: float
    """0.95: of the interval."""
    scatter: float

    @property
    def reach(self) -> float:
        """How far from nothing the A/A interval goes: what two runs of one program may differ by."""
        return max(abs(bound) for bound in self.interval)


@dataclass(frozen=True)
class Floor:
    """``aa.json`` as read; :mod:`fuseproof.harness.analysis.noise_floor` says what ``conditions`` are."""

    text: str
    campaign: str
    created: str
    conditions: Mapping[str, Any]
    workloads: Mapping[str, str]
    """Cell → SHA-256 of its flags."""
    arm: str
    """SHA-256 of what ran as both arms, by the plan."""
    cells: Mapping[str, Mapping[str, TimerFloor]]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


def read_floor(path: Path | str) -> Floor:
    """The floor in an A/A campaign's folder, or in an ``aa.json``.

    Raises :class:`UsageError` naming the file and the key where there is none, or none that can be used.
    """
    file = Path(path)
    file = file / FLOOR_FILE if file.is_dir() else file
    try:
        if file.stat().st_size > LARGEST_BYTES:
            raise UsageError(f"{file} is no noise floor: it has more than 8 MiB.", next_step=RENDER_STEP)
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        cause = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UsageError(f"--floor: {file} cannot be read: {cause}.", next_step=RENDER_STEP) from error
    return _parsed(text, file)


def kept_floor(directory: Path) -> Floor | None:
    """The floor that a campaign's folder holds; None where it holds none.

    Raises :class:`FuseproofError` naming the key of a damaged one.
    """
    file = directory / KEPT_FLOOR
    if not file.is_file():
        return None
    try:
        return read_floor(file)
    except UsageError as error:
        raise FuseproofError(error.message, next_step="Restore the file from its original.") from error


def keep_floor(floor: Floor, directory: Path) -> None:
    """Copy a floor into a campaign's folder; :class:`UsageError` where that holds another one already."""
    kept = kept_floor(directory)
    if kept is not None and kept.sha256 != floor.sha256:
        raise UsageError(
            f"{directory} already holds the floor of {kept.campaign} of {kept.created}; a campaign keeps one.",
            next_step="Leave --floor out, or read the other floor beside a copy of the folder.",
        )
    if kept is not None:
        return
    file = directory / KEPT_FLOOR
    try:
        file.parent.mkdir(exist_ok=True)
        write_text_atomically(file, floor.text)
    except OSError as error:
        raise FuseproofError(f"{file} could not be written: {error.strerror or error}.") from error


def _parsed(text: str, file: Path) -> Floor:
    try:
        values = json.loads(text)
        if not isinstance(values, dict) or values.get("schema") != FLOOR_SCHEMA:
            seen = values.get("schema") if isinstance(values, dict) else None
            raise ValueError(f"schema is {seen!r}, expected {FLOOR_SCHEMA!r}")
        return Floor(
            text=text,
            campaign=str(values["campaign"]),
            created=str(values["created"]),
            conditions=dict(values["conditions"]),
            workloads={str(name): str(digest) for name, digest in dict(values["workloads"]).items()},
            arm=str(values["arm"]),
            cells={
                str(cell): {str(timer): _timer(facts) for timer, facts in dict(timers).items()}
                for cell, timers in dict(values["cells"]).items()
            },
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        cause = f"key {error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise UsageError(f"--floor: {file} is no noise floor: {cause}.", next_step=RENDER_STEP) from error


def _timer(facts: Mapping[str, Any]) -> TimerFloor:
    lower, upper = facts["interval"]
    found = TimerFloor(
        blocks=int(facts["blocks"]),
        apparent_reduction=float(facts["apparent_reduction"]),
        interval=(float(lower), float(upper)),
        level=float(facts["level"]),
        scatter=float(facts["scatter_of_one_run"]),
    )
    if not all(map(math.isfinite, (found.apparent_reduction, *found.interval, found.level, found.scatter))):
        raise ValueError("a number is not finite")
    return found
