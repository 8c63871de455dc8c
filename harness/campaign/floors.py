"""An A/A campaign's noise floor (``aa.json``), named for a later campaign and kept in its folder.

The copy lies in ``floor/aa.json``, byte for byte as it was read, so that a report needs nothing from outside; like
every file it is in ``SHA256SUMS``. A campaign has one floor: another one is refused, because whoever may choose among
floors may choose the one that suits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.campaign.floor_files import FLOOR_SCHEMA, FloorFile, TimerFacts
from fuseproof.harness.number_format import shortened
from fuseproof.schedules.plan import first_problem

FLOOR_FILE = "aa.json"
"""In an A/A campaign's own folder."""
KEPT_FLOOR = "floor/aa.json"
"""In the folder of a campaign that is read beside it."""
LARGEST_BYTES = 8 * 2**20
LONGEST_PROBLEM = 300
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
    word: str | None = None
    """What the A/A campaign said of its own two arms; None where its file does not say it."""
    reasons: tuple[tuple[str, str], ...] | None = None
    """Code and detail of each reason why that is no better word; None where its file does not say it."""

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
    _refuse_link(directory)
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


def remove_floor(directory: Path) -> Floor:
    """Take the floor out of a campaign's folder and return it; :class:`UsageError` where the folder has none."""
    _refuse_link(directory)
    kept = kept_floor(directory)
    if kept is None:
        raise UsageError(f"{directory} holds no floor that could be removed.", next_step="Leave --floor none out.")
    file = directory / KEPT_FLOOR
    try:
        file.unlink()
        file.parent.rmdir()
    except OSError as error:
        if file.exists():
            raise FuseproofError(f"{file} could not be removed: {error.strerror or error}.") from error
    return kept


def _refuse_link(directory: Path) -> None:
    """Nothing is written to, or removed from, a place outside the folder."""
    for place in ((directory / KEPT_FLOOR).parent, directory / KEPT_FLOOR):
        if place.is_symlink():
            raise FuseproofError(
                f"{place} is a link, and a campaign's floor lies in its own folder.",
                next_step="Remove the link, or put the file itself in its place.",
            )


def _parsed(text: str, file: Path) -> Floor:
    try:
        values = _loaded(text)
        if not isinstance(values, dict) or values.get("schema") != FLOOR_SCHEMA:
            seen = values.get("schema") if isinstance(values, dict) else None
            raise ValueError(f"schema is {seen!r}, expected {FLOOR_SCHEMA!r}")
        facts = FloorFile.model_validate(values)
    except ValidationError as error:
        raise _no_floor(file, first_problem(error)) from error
    except (ValueError, RecursionError) as error:
        raise _no_floor(file, str(error) or type(error).__name__) from error
    return Floor(
        text=text,
        campaign=facts.campaign,
        created=facts.created,
        conditions=facts.conditions.model_dump(by_alias=True),
        workloads=facts.workloads,
        arm=facts.arm,
        cells={cell: {name: _timer(found) for name, found in timers.items()} for cell, timers in facts.cells.items()},
    )


def _loaded(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # Python's own words advise to change a limit of Python
        raise ValueError("a number in it has too many digits") from error


def _no_floor(file: Path, cause: str) -> UsageError:
    return UsageError(f"--floor: {file} is no noise floor: {shortened(cause, LONGEST_PROBLEM)}.", next_step=RENDER_STEP)


def _timer(facts: TimerFacts) -> TimerFloor:
    lower, upper = facts.interval
    return TimerFloor(
        blocks=facts.blocks,
        apparent_reduction=facts.apparent_reduction,
        interval=(lower, upper),
        level=facts.level,
        scatter=facts.scatter_of_one_run,
        word=facts.word,
        reasons=None if facts.reasons is None else tuple((reason.code, reason.detail) for reason in facts.reasons),
    )
