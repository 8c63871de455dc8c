"""Did two runs make the same outputs? Told from the hashes that their dumps hold; no file is opened.

Equality is looked for at the deepest level that both runs recorded for every output: raw arrays (before they become
8 bit), decoded pixels, bytes of the file. Where outputs differ there, the next level at which they still agree is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fuseproof.harness.number_format import count
from fuseproof.harness.perf.dump import PerfDump

Level = Literal["raw", "pixels", "file"]
Status = Literal["identical", "different", "not recorded"]

LEVELS: dict[Level, tuple[str, str]] = {
    "raw": ("raw_sha256", "raw arrays"),
    "pixels": ("pixels_sha256", "decoded pixels"),
    "file": ("file_sha256", "file bytes"),
}
"""Deepest first: key of the hash in a dump, and what it is called."""
MOST_REQUESTS = 8


@dataclass(frozen=True)
class DifferingOutput:
    """One output that differs at the deciding level; ``agrees_in`` is the deepest other level at which it does not."""

    request: int
    agrees_in: Level | None
    is_unpaired: bool = False
    """Only one of the runs made it."""


@dataclass(frozen=True)
class OutputsComparison:
    """The outputs of one run against the baseline run's. ``level`` decided; None when nothing could be compared."""

    label: str
    status: Status
    level: Level | None
    equal: int
    total: int
    differing: tuple[DifferingOutput, ...]
    degenerate: tuple[str, ...]
    """Outputs of which equality proves nothing: constant or non-finite ones."""
    is_one_sided: bool = False
    """Not compared although one of the runs, or each at another level, recorded something."""

    @property
    def sentence(self) -> str:
        """What may be said, without the run's name and a full stop; text of a dump in it is not escaped."""
        if self.level is None:
            return "not recorded by both runs, so not compared" if self.is_one_sided else "not recorded"
        title = LEVELS[self.level][1]
        doubt = f"; {', '.join(self.degenerate)}: agreement proves nothing" if self.degenerate else ""
        if self.status == "identical":
            return f"identical in {title} ({self.equal} of {self.total}){doubt}"
        return f"different: {self.equal} of {self.total} identical in {title}; {_differing_text(self.differing)}{doubt}"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self) | {"sentence": self.sentence}


def compare_outputs(baseline: PerfDump, other: PerfDump, label: str | None = None) -> OutputsComparison:
    """Compare the recorded hashes of two runs, output by output in the order they were made."""
    name = label or other.label
    pairs = list(zip(baseline.outputs, other.outputs, strict=False))
    recorded = [level for level in LEVELS if pairs and all(_hash(output, level) for pair in pairs for output in pair)]
    if not recorded:
        is_one_sided = any(_hash(output, level) for output in (*baseline.outputs, *other.outputs) for level in LEVELS)
        return OutputsComparison(name, "not recorded", None, 0, 0, (), (), is_one_sided)
    differing = [
        DifferingOutput(_request(pair[0], index), _agreement(*pair, recorded[1:]))
        for index, pair in enumerate(pairs)
        if _hash(pair[0], recorded[0]) != _hash(pair[1], recorded[0])
    ]
    equal = len(pairs) - len(differing)
    longer = max(baseline.outputs, other.outputs, key=len)
    differing += [
        DifferingOutput(_request(longer[index], index), None, is_unpaired=True)
        for index in range(len(pairs), len(longer))
    ]
    degenerate = [
        f"request {_request(output, index)} is degenerate ({output['degenerate']})"
        for index, output in enumerate(baseline.outputs)
        if output.get("degenerate")
    ]
    status: Status = "different" if differing else "identical"
    return OutputsComparison(name, status, recorded[0], equal, len(longer), tuple(differing), tuple(degenerate))


def outputs_lines(comparisons: Sequence[OutputsComparison], reference: str) -> list[str]:
    """Sentences for all runs that were compared with ``reference``; runs of which the same is true stand together."""
    labels_of: dict[str, list[str]] = {}
    for comparison in comparisons:
        labels_of.setdefault(comparison.sentence, []).append(comparison.label)
    if len(labels_of) == 1:
        runs = len(comparisons) + 1
        where = f" in each of {count(runs, 'run')}" if runs > 2 and comparisons[0].level else ""
        sentence = comparisons[0].sentence
        return [f"{sentence}{where}."]
    return [f"{', '.join(labels)} against {reference}: {sentence}." for sentence, labels in labels_of.items()]


def _differing_text(differing: Sequence[DifferingOutput]) -> str:
    groups: dict[str, list[str]] = {}
    for output in differing:
        groups.setdefault(_fate(output), []).append(str(output.request))
    phrases = []
    for fate, requests in groups.items():
        shown = ", ".join(requests[:MOST_REQUESTS])
        more = f" and {len(requests) - MOST_REQUESTS} more" if len(requests) > MOST_REQUESTS else ""
        phrases.append(f"{'request' if len(requests) == 1 else 'requests'} {shown}{more} {fate}")
    return "; ".join(phrases)


def _fate(output: DifferingOutput) -> str:
    if output.is_unpaired:
        return "made by one of the runs only"
    if output.agrees_in is None:
        return "identical at no recorded level"
    return f"still identical in {LEVELS[output.agrees_in][1]}"


def _agreement(before: Mapping[str, Any], after: Mapping[str, Any], levels: Sequence[Level]) -> Level | None:
    return next((level for level in levels if _hash(before, level) == _hash(after, level)), None)


def _hash(output: Mapping[str, Any], level: Level) -> str | None:
    value = output.get(LEVELS[level][0])
    return value if isinstance(value, str) and value else None


def _request(output: Mapping[str, Any], index: int) -> int:
    """The request's number as recorded (from 0), or else the output's place."""
    value = output.get("request")
    return value if isinstance(value, int) and not isinstance(value, bool) else index
