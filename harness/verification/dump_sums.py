"""A perf dump of ours says most numbers twice: the first request on top, and sums over requests in ``timers``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from fuseproof.harness.analysis.soundness import LARGEST_NUMBER
from fuseproof.harness.perf.dump import SCHEMA, PerfDump
from fuseproof.harness.verification.findings import Finding, Tally, shortened

SUMMED_TIMERS = ("worker_ms", "denoise_ms", "save_ms", "client_ms", "unattributed_ms")
TOLERANCE_MS = 1e-6
"""Sums of milliseconds in another order: a nanosecond, far below any digit of a timer that matters."""


def dump_findings(dump: PerfDump, file: str, tally: Tally) -> Iterator[Finding]:
    """Where a dump contradicts itself. Dumps of other programs say every number once and are left alone."""
    requests = dump.raw.get("requests")
    if dump.schema != SCHEMA or not isinstance(requests, list) or not all(isinstance(item, dict) for item in requests):
        return
    yield from _first_request(dump.raw, requests, file, tally)
    yield from _sums(dump.timers, requests, file, tally)
    for index, request in enumerate(requests):
        yield from _unattributed(request, index, file, tally)


def _first_request(
    raw: Mapping[str, Any], requests: list[dict[str, Any]], file: str, tally: Tally
) -> Iterator[Finding]:
    first = requests[0] if requests else {}
    for own, key in (("total_duration_ms", "worker_ms"), ("steps", "steps"), ("denoise_steps_ms", "denoise_steps_ms")):
        if key in first:
            yield from _equal(raw.get(own), first[key], own, f"requests[0].{key}", file, tally)


def _equal(top: Any, first: Any, place: str, source: str, file: str, tally: Tally) -> Iterator[Finding]:
    """Two copies of one value, compared leaf by leaf."""
    if isinstance(top, list) and isinstance(first, list) and len(top) == len(first):
        for index, (one, other) in enumerate(zip(top, first, strict=True)):
            yield from _equal(one, other, f"{place}[{index}]", f"{source}[{index}]", file, tally)
    elif isinstance(top, dict) and isinstance(first, dict) and top.keys() == first.keys():
        for key, value in top.items():
            yield from _equal(value, first[key], f"{place}.{key}", f"{source}.{key}", file, tally)
    else:
        tally.count("numbers stated twice", isinstance(top, int | float))
        if top != first:
            yield Finding(file, None, place, top, first, source)


def _sums(timers: Mapping[str, float], requests: list[dict[str, Any]], file: str, tally: Tally) -> Iterator[Finding]:
    for name in SUMMED_TIMERS:
        values = [request.get(name) for request in requests]
        numbers = [value for value in values if is_number(value)]
        yield from _unusable(values, f"requests[].{name}", file)
        if name not in timers or not numbers or len(numbers) != len(values):
            continue
        tally.count("sums")
        if not math.isclose(timers[name], math.fsum(numbers), rel_tol=0.0, abs_tol=TOLERANCE_MS):
            yield Finding(
                file, None, f"timers.{name}", timers[name], math.fsum(numbers), f"the sum of requests[].{name}"
            )


def _unattributed(request: Mapping[str, Any], index: int, file: str, tally: Tally) -> Iterator[Finding]:
    """Worker time less its stages: one changed digit of any stage breaks it."""
    stages, stated, worker = request.get("steps"), request.get("unattributed_ms"), request.get("worker_ms")
    if not isinstance(stages, list):
        return
    durations = [stage.get("duration_ms") if isinstance(stage, dict) else None for stage in stages]
    yield from _unusable(durations, f"requests[{index}].steps[].duration_ms", file)
    if not is_number(stated) or not is_number(worker):
        return
    numbers = [duration for duration in durations if is_number(duration)]
    if len(numbers) != len(durations):
        return
    tally.count("sums")
    expected = worker - math.fsum(numbers)
    if not math.isclose(stated, expected, rel_tol=0.0, abs_tol=TOLERANCE_MS):
        place = f"requests[{index}].unattributed_ms"
        yield Finding(file, None, place, stated, expected, f"requests[{index}].worker_ms less its steps")


def is_number(value: object) -> TypeGuard[float]:
    """A number that sums can hold: finite, no boolean, and below every overflow."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_NUMBER


def _unusable(values: Sequence[Any], place: str, file: str) -> Iterator[Finding]:
    """Numbers that no sum can hold; what is no number at all is left to the reader of the dump."""
    for value in values:
        if isinstance(value, int | float) and not is_number(value):
            yield Finding(file, f"holds a {place} that is no time: {shortened(value)}")
            return
