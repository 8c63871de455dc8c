"""Load, warm-up or request: what a slot was doing at a moment, by its own account.

``fuseproof generate`` writes ``phases`` into its perf dump, in seconds of the machine's monotonic clock; any program
may. Of sglang-diffusion only the request can be placed, from the time stamp of its log's last marker and the time that
it claims: stamps are whole seconds, so the phase is cut to what certainly lies inside. Anything else is untagged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fuseproof.harness.campaign.gpu_records import PHASES, UNTAGGED
from fuseproof.harness.campaign.sglang_log import LOG_FILES

LARGEST_DUMP_BYTES = 64 * 2**20
LARGEST_LOG_BYTES = 16 * 2**20
STAMP_STEP_S = 1.0
_MARKER = re.compile(
    r"(?P<stamp>\d\d-\d\d \d\d:\d\d:\d\d)[^\n]*Pixel data generated successfully in (?P<seconds>\d+\.\d+) seconds"
)


@dataclass(frozen=True)
class PhaseTime:
    """One stretch of a slot, in seconds of the monotonic clock."""

    phase: str
    started_s: float
    ended_s: float


@dataclass(frozen=True)
class SlotPhases:
    """The phases of one slot, and whether its dump or its log told them (None: nobody did)."""

    times: tuple[PhaseTime, ...] = ()
    source: str | None = None

    def at(self, monotonic_s: float) -> str:
        """The phase at a moment; of overlapping ones the last that began."""
        inside = [time for time in self.times if time.started_s <= monotonic_s <= time.ended_s]
        return max(inside, key=lambda time: time.started_s).phase if inside else UNTAGGED


def read_phases(
    folder: Path, perf_dump: Path, started: datetime, started_monotonic_s: float, ended_monotonic_s: float
) -> SlotPhases:
    """A slot's phases from its dump, else from its logs in ``folder``; nothing that lies outside the slot's own time.

    ``started`` and ``started_monotonic_s`` are the same moment on two clocks. Never raises: phases are a courtesy.
    """
    slot = (started_monotonic_s, ended_monotonic_s)
    times = _within(dump_phases(_dump(perf_dump)), slot)
    if times:
        return SlotPhases(times, "dump")
    text = "\n".join(_text(folder / name, LARGEST_LOG_BYTES) or "" for name in LOG_FILES)
    times = _within(log_phases(text, started, started_monotonic_s), slot)
    return SlotPhases(times, "log") if times else SlotPhases()


def dump_phases(dump: Mapping[str, Any]) -> tuple[PhaseTime, ...]:
    """The entries of a dump's ``phases`` that can be understood."""
    entries = dump.get("phases")
    found = []
    for entry in entries if isinstance(entries, Sequence) and not isinstance(entries, str) else ():
        if not isinstance(entry, Mapping) or entry.get("phase") not in PHASES:
            continue
        began_s, ended_s = _seconds(entry.get("started_monotonic_s")), _seconds(entry.get("ended_monotonic_s"))
        if began_s <= ended_s:
            found.append(PhaseTime(str(entry["phase"]), began_s, ended_s))
    return tuple(found)


def log_phases(text: str, started: datetime, started_monotonic_s: float) -> tuple[PhaseTime, ...]:
    """The request of an sglang log: it ends within the second of the stamp, and lasted as long as the line says."""
    markers = list(_MARKER.finditer(text))
    if not markers:
        return ()
    local = started.astimezone().replace(tzinfo=None)
    try:
        stamp = datetime.strptime(f"{local.year}-{markers[-1]['stamp']}", "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return ()
    stamp_s = started_monotonic_s + (stamp - local).total_seconds()
    began_s = stamp_s + STAMP_STEP_S - float(markers[-1]["seconds"])
    return (PhaseTime("request", began_s, stamp_s),) if began_s < stamp_s else ()


def _within(times: Sequence[PhaseTime], slot: tuple[float, float]) -> tuple[PhaseTime, ...]:
    return tuple(time for time in times if slot[0] <= time.started_s and time.ended_s <= slot[1])


def _seconds(value: object) -> float:
    """NaN for what is no number: no comparison holds with it."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _dump(path: Path) -> Mapping[str, Any]:
    text = _text(path, LARGEST_DUMP_BYTES)
    try:
        values = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, Mapping) else {}


def _text(path: Path, limit: int) -> str | None:
    """A regular file's beginning; what an arm left in its place is not waited for."""
    try:
        if path.is_symlink() or not path.is_file():
            return None
        with path.open("rb") as stream:
            return stream.read(limit).decode("utf-8", errors="replace")
    except OSError:
        return None
