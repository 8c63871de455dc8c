"""What a verification says: checks with their counts, and findings that name file, place and both values."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuseproof.harness.escape import visible

VERIFICATION_SCHEMA = "fuseproof.verification/1"
LONGEST_VALUE = 160
SIGNATURE, SLOTS, HASHES, NUMBERS, METRICS, REPORT = "signature", "slots", "hashes", "numbers", "metrics", "report"
"""The checks, in the order in which they are made."""
_RANKS = {METRICS: 1, REPORT: 2, SIGNATURE: 3}
_LAST_RANK = 4


@dataclass(frozen=True)
class Finding:
    """Something that is not what it says it is.

    ``file`` is relative to the campaign folder. ``place`` is a JSON path or a line, ``stated`` what stands there and
    ``expected`` what ``source`` gives instead. A finding about a whole file has a ``problem`` only.
    """

    file: str
    problem: str | None = None
    place: str | None = None
    stated: Any = None
    expected: Any = None
    source: str = ""

    @property
    def text(self) -> str:
        """One sentence without its full stop."""
        if self.problem is not None:
            return f"{self.file} {self.problem}"
        return f"{self.file}: {self.place} is {_shown(self.stated)}, but {_shown(self.expected)} by {self.source}"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "file": self.file,
            "place": self.place,
            "stated": _strict(self.stated),
            "expected": _strict(self.expected),
            "source": self.source or None,
            "text": self.text,
        }


@dataclass(frozen=True)
class Check:
    """One kind of recomputation. ``counts`` says how many of what were checked, ``notes`` what could not be."""

    name: str
    counts: Mapping[str, int]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    recorded: Mapping[str, int] = field(default_factory=dict)
    """Hashes that stand as recorded, by what they are of (``raw arrays``), because that was not kept."""

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "name": self.name,
            "counts": dict(self.counts),
            "findings": [finding.to_json() for finding in self.findings],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Verification:
    """Every check of one campaign folder."""

    directory: Path
    checks: tuple[Check, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for check in self.checks for finding in check.findings)

    @property
    def is_verified(self) -> bool:
        return not self.findings

    @property
    def hashes_recomputed(self) -> int:
        return sum(check.counts.get("hashes recomputed", 0) for check in self.checks)

    @property
    def hashes_recorded(self) -> Mapping[str, int]:
        """:attr:`Check.recorded` of the check that hashes."""
        return next((check.recorded for check in self.checks if check.recorded), {})

    @property
    def first(self) -> Finding | None:
        """What to look at first: slots, then the report, which follows from them; a value before a whole file.

        Where the report is as it was signed and something else is not, that comes before the report.
        """
        changed = {finding.file for check in self.checks if check.name == SIGNATURE for finding in check.findings}

        def rank(check: Check, finding: Finding) -> tuple[int, bool]:
            is_consequence = check.name in (METRICS, REPORT) and changed and finding.file not in changed
            return _LAST_RANK if is_consequence else _RANKS.get(check.name, 0), finding.place is None

        ranked = [(rank(check, finding), finding) for check in self.checks for finding in check.findings]
        return min(ranked, key=lambda entry: entry[0])[1] if ranked else None

    @property
    def first_text(self) -> str:
        """:attr:`first` in words; where it speaks of a whole file, followed by the first value that is affected."""
        first = self.first
        if first is None:
            return ""
        named = next((finding.text for finding in self.findings if finding.place is not None), None)
        return first.text if first.place is not None or named is None else f"{first.text}; {named}"

    def totals(self) -> dict[str, int]:
        """How many records, hashes, metrics and numbers were checked, and lines of the report."""
        counts = defaultdict[str, Mapping[str, int]](dict, {check.name: check.counts for check in self.checks})
        hashes = ("hashes recomputed", "hashes recorded")
        return {
            "files": counts[SIGNATURE].get("files", 0),
            "records": counts[SLOTS].get("records", 0),
            "hashes": sum(counts[HASHES].get(name, 0) for name in hashes),
            "metrics": counts[METRICS].get("metrics", 0),
            "numbers": sum(counts[NUMBERS].values()) + counts[REPORT].get("numbers", 0),
            "lines": counts[REPORT].get("lines", 0),
        }

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        first = self.first
        return {
            "schema": VERIFICATION_SCHEMA,
            "is_verified": self.is_verified,
            "audited": self.totals(),
            "first": None if first is None else first.to_json(),
            "checks": [check.to_json() for check in self.checks],
        }


@dataclass
class Tally:
    """Counts and findings while they are collected."""

    counts: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def count(self, what: str, amount: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + amount

    def add(self, found: Iterable[Finding]) -> None:
        self.findings += found


def _shown(value: Any) -> str:
    """A value on one line, its white space as it is: a difference may be nothing else."""
    if value is None:
        return "nothing"
    text = f'"{visible(value)}"' if isinstance(value, str) else visible(_spelled(value))
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def shortened(value: Any) -> str:
    """Any value on one line, cut where it is long."""
    return _shown(value)


def _spelled(value: Any) -> str:
    """``repr``, also of an integer with more digits than Python spells out."""
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


def _strict(value: Any) -> Any:
    """Plain JSON as it is; what strict JSON cannot hold (half characters, numbers that are none) spelled out."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {str(_strict(key)): _strict(entry) for key, entry in value.items()}
    return [_strict(entry) for entry in value] if isinstance(value, list | tuple) else value
