"""Times that a program only prints: the ``time_pattern`` of a command arm, found in its logs, made its perf dump.

The dump that is written for such a slot says which line of which log it was read from, and ``fuseproof verify`` reads
that log again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from fuseproof.harness.campaign.evidence import EvidenceError, is_plain_file
from fuseproof.harness.campaign.sglang_log import LARGEST_LOG_BYTES
from fuseproof.harness.perf.dump import write_perf_dump
from fuseproof.harness.perf.fields import LONGEST_MS, SHORTEST_MS
from fuseproof.schedules.arm_keys import TIME_UNITS

LOGS = ("stdout.log", "stderr.log")
LONGEST_LINE = 2000
"""Characters of a line that are searched: a log may hold a whole file on one."""


@dataclass(frozen=True)
class PrintedTime:
    """One time as it was printed. ``text`` is the number, ``unit`` ``s`` or ``ms``, ``line`` counts from 1."""

    pattern: str
    log: str
    line: int
    text: str
    unit: str

    @property
    def total_ms(self) -> float:
        """Milliseconds; the decimal number that was printed, rounded once."""
        return float(Decimal(self.text) * Decimal(TIME_UNITS[self.unit]))

    def to_dump(self) -> dict[str, Any]:
        """The smallest perf dump that says it, and where it comes from; without the moment at which it was written."""
        return {"total_duration_ms": self.total_ms, "printed_time": asdict(self)}


def printed_time(folder: Path, pattern: str) -> PrintedTime:
    """The one place in a slot's logs where ``pattern`` matches; ``folder`` is the slot's own.

    Raises :class:`EvidenceError` (``NO_TIME``) where nothing matches, where more than one place does, and where the
    group holds no number of milliseconds that a dump may have.
    """
    found = list(_found(folder, pattern))
    if len(found) != 1:
        where = (
            f"matches {len(found)} times in its logs, first {found[0].text!r}" if found else "matches no printed line"
        )
        raise EvidenceError("NO_TIME", f"time_pattern {pattern!r} {where}; it must match once")
    time = found[0]
    try:
        is_time = SHORTEST_MS <= time.total_ms <= LONGEST_MS
    except (InvalidOperation, OverflowError):
        is_time = False
    if not is_time:
        raise EvidenceError("NO_TIME", f"time_pattern {pattern!r} found {time.text!r}, which is no time in {time.unit}")
    return time


def write_printed_dump(folder: Path, perf_dump: Path, pattern: str, now: datetime) -> None:
    """Write the dump of a slot whose program prints its time; :class:`EvidenceError` as :func:`printed_time`.

    ``now`` (UTC) tells it from the dump of another slot that printed the same few digits, which is no copy.
    """
    write_perf_dump(perf_dump, {"timestamp": now.isoformat(), **printed_time(folder, pattern).to_dump()})


def _found(folder: Path, pattern: str) -> Iterator[PrintedTime]:
    expression = re.compile(pattern)
    (unit,) = expression.groupindex.keys() & TIME_UNITS.keys()
    for name in LOGS:
        for number, line in enumerate(_lines(folder / name), start=1):
            for match in expression.finditer(line[:LONGEST_LINE]):
                yield PrintedTime(pattern, name, number, (match[unit] or "").strip(), unit)


def _lines(log: Path) -> list[str]:
    if not is_plain_file(log):
        return []
    try:
        with log.open("rb") as stream:
            text = stream.read(LARGEST_LOG_BYTES).decode("utf-8", errors="replace")
    except OSError:
        return []
    return text.replace("\r", "\n").split("\n")
