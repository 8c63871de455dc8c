"""What two runs say about memory, in GiB: the table of checkpoints, and one sentence that claims no more than it may.

Allocated memory is what the tensors needed, reserved memory is what the process held; a change that lowers one and not
the other has saved nothing. A saving therefore needs both to fall, while a cost is said as soon as one of them grows;
whatever falls alone is "mixed". The request's own peak is the headline: load and warm-up peaks are shown beside it and
never instead of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fuseproof.harness.number_format import number
from fuseproof.harness.perf.dump import PerfDump

MIB_PER_GIB = 1024
NEGLIGIBLE_SHARE = 0.002
SMALLEST_SHOWN_GIB = 0.0005
"""Below 0.2 % a peak "hardly moves": allocators round to blocks, and the same run repeats to about this."""

Agreement = Literal["less", "more", "unchanged", "mixed", "unknown"]

CHECKPOINT_TITLES = {
    "after_forward": "request peak (after_forward)",
    "runtime_peak": "process peak (runtime_peak)",
    "warmup_peak": "warm-up peak (warmup_peak)",
    "load_peak": "load peak (load_peak)",
    "before_forward": "before the request (before_forward)",
}
REQUEST_CHECKPOINTS = ("after_forward", "runtime_peak")
"""Where the request's peak stands: allocator statistics are reset when the request starts."""

KINDS: dict[str, tuple[str, ...]] = {
    "allocated": ("peak_allocated_mb", "allocated_mb"),
    "reserved": ("peak_reserved_mb", "reserved_mb"),
    "host RSS": ("peak_host_rss_mb",),
    "host anonymous": ("peak_host_anon_mb",),
}
CLAIM_KINDS = ("reserved", "allocated")


@dataclass(frozen=True)
class MemoryRow:
    """One checkpoint and kind of memory, in GiB; None where a dump does not hold it."""

    checkpoint: str
    title: str
    kind: str
    baseline_gib: float | None
    candidates_gib: tuple[float | None, ...]


@dataclass(frozen=True)
class MemoryClaim:
    """What may be said about a candidate's request peak; ``differences_gib`` is candidate minus baseline by kind."""

    agreement: Agreement
    sentence: str
    differences_gib: dict[str, float]
    same_arm_spread_gib: dict[str, float] = field(default_factory=dict)
    """By kind, how far one arm's own runs lie apart, where several were given."""


@dataclass(frozen=True)
class MemoryTable:
    """All checkpoints, and one claim per candidate."""

    rows: tuple[MemoryRow, ...]
    claims: tuple[MemoryClaim, ...]

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self)


def memory_table(dumps: Sequence[PerfDump]) -> MemoryTable:
    """Compare the memory of ``dumps``; the first is the baseline."""
    rows = []
    for checkpoint in _checkpoints(dumps):
        title = CHECKPOINT_TITLES.get(checkpoint, checkpoint)
        for kind in KINDS:
            values = [_gib(dump.memory.get(checkpoint, {}), kind) for dump in dumps]
            if any(values):
                rows.append(MemoryRow(checkpoint, title, kind, values[0], tuple(values[1:])))
    baseline = request_peaks_gib(dumps[:1])
    return MemoryTable(
        rows=tuple(rows),
        claims=tuple(memory_claim(baseline, request_peaks_gib([dump])) for dump in dumps[1:]),
    )


def request_peaks_gib(dumps: Sequence[PerfDump]) -> dict[str, float]:
    """Kind → request peak in GiB, the mean over ``dumps``; a kind that one of them lacks is left out."""
    peaks = [_request_peaks_gib(dump) for dump in dumps]
    shared = [kind for kind in KINDS if all(kind in peak for peak in peaks)]
    return {kind: math.fsum(peak[kind] for peak in peaks) / len(peaks) for kind in shared}


def same_arm_spread_gib(arms: Sequence[Sequence[PerfDump]]) -> dict[str, float]:
    """Kind → the largest difference between the request peaks of two runs of one arm; only kinds that all recorded.

    Every entry of ``arms`` holds runs of one program.
    """
    peaks = [[_request_peaks_gib(dump) for dump in dumps] for dumps in arms]
    shared = [kind for kind in KINDS if all(kind in peak for arm in peaks for peak in arm)]
    values = {kind: [[peak[kind] for peak in arm] for arm in peaks] for kind in shared}
    return {kind: max(max(arm) - min(arm) for arm in by_arm) for kind, by_arm in values.items()}


def memory_claim(
    baseline_gib: Mapping[str, float],
    candidate_gib: Mapping[str, float],
    same_arm_spread_gib: Mapping[str, float] | None = None,
) -> MemoryClaim:
    """Put the change of the request peak into one sentence; "mixed" when only one of the kinds fell.

    A change within ``same_arm_spread_gib``, by which the runs of one arm differ among themselves, is no change.
    """
    kinds = [kind for kind in CLAIM_KINDS if kind in baseline_gib and kind in candidate_gib]
    if not kinds:
        kinds = [kind for kind in ("host RSS",) if kind in baseline_gib and kind in candidate_gib]
    if not kinds:
        return MemoryClaim("unknown", "Memory: not recorded in both dumps.", {})
    spreads = {kind: (same_arm_spread_gib or {}).get(kind, 0.0) for kind in kinds}
    pairs = {kind: (baseline_gib[kind], candidate_gib[kind], spreads[kind]) for kind in kinds}
    agreement = _agreement([_direction(*pair) for pair in pairs.values()])
    moved = [kind for kind in kinds if _direction(*pairs[kind]) != 0]
    phrases = [_phrase(kind, *pairs[kind]) for kind in [*moved, *(kind for kind in kinds if kind not in moved)]]
    return MemoryClaim(
        agreement=agreement,
        sentence=f"Memory: {'mixed, no saving: ' if agreement == 'mixed' else ''}{'; '.join(phrases)}.",
        differences_gib={kind: after - before for kind, (before, after, _) in pairs.items()},
        same_arm_spread_gib={} if same_arm_spread_gib is None else spreads,
    )


def format_gib(value: float) -> str:
    """Two decimals, three below 0.1 GiB."""
    return number(value, 2 if abs(value) >= 0.0995 else 3)


def _agreement(directions: Sequence[int]) -> Agreement:
    if min(directions) < 0:
        return "less" if max(directions) < 0 else "mixed"
    return "more" if max(directions) > 0 else "unchanged"


def _direction(before: float, after: float, spread: float) -> int:
    if abs(after - before) <= max(spread, NEGLIGIBLE_SHARE * max(before, after)):
        return 0
    return 1 if after > before else -1


def _phrase(kind: str, before: float, after: float, spread: float) -> str:
    name = kind if kind == "host RSS" else f"{kind} memory"
    change = f", {number((after / before - 1) * 100, signed=True)} %" if before else ""
    numbers = f"({format_gib(before)} → {format_gib(after)} GiB{change})"
    if after == before:
        return f"{name} does not move ({format_gib(before)} GiB)"
    if abs(after - before) <= spread:
        if spread < SMALLEST_SHOWN_GIB:
            return f"{name} unchanged to less than 0.001 GiB {numbers}"
        return f"{name} unchanged, within the {format_gib(spread)} GiB by which one arm's own runs differ {numbers}"
    direction = _direction(before, after, spread)
    if direction == 0:
        return f"{name} hardly moves {numbers}"
    return f"{format_gib(abs(after - before))} GiB {'more' if direction > 0 else 'less'} {name} {numbers}"


def _request_peaks_gib(dump: PerfDump) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for kind in KINDS:
        found = [_gib(dump.memory.get(name, {}), kind) for name in REQUEST_CHECKPOINTS]
        recorded = [value for value in found if value]
        if recorded:
            peaks[kind] = recorded[0]
    return peaks


def _checkpoints(dumps: Sequence[PerfDump]) -> list[str]:
    recorded = dict.fromkeys(name for dump in dumps for name in dump.memory)
    known = [name for name in CHECKPOINT_TITLES if name in recorded]
    return [*known, *(name for name in recorded if name not in CHECKPOINT_TITLES)]


def _gib(checkpoint: Mapping[str, float], kind: str) -> float | None:
    for key in KINDS[kind]:
        if key in checkpoint:
            return checkpoint[key] / MIB_PER_GIB
    return None
