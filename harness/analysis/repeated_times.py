"""Dumps whose times are another dump's: a file may be copied and touched up, but two clocks never agree by chance.

Only times finer than a microsecond tell: coarse clocks do repeat themselves, and so does a timer that ticks. Two runs
of a fine clock share a few of their times at most; a copy shares most of them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

FEWEST_SHARED = 4
SMALLEST_SHARE = 0.6
FINEST_COARSE_MS = 1e-3
"""Multiples of a microsecond are not looked at."""
MOST_TIMES = 500
"""Of one dump; more tell nothing more."""


def precise_times(content: bytes) -> dict[str, float]:
    """The fine times of a dump by their place: stages and steps, in milliseconds; equal ones of one dump once."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    found: dict[str, float] = {}
    known: set[float] = set()
    for place, value in _times(values) if isinstance(values, dict) else ():
        if value not in known and len(found) < MOST_TIMES and _is_fine(value):
            known.add(value)
            found[place] = value
    return found


def repeated_times(times: Mapping[str, Mapping[str, float]]) -> dict[str, tuple[str, int]]:
    """Name → another name whose times are mostly the same at the same places, and how many of them are."""
    holders: dict[tuple[str, float], list[str]] = defaultdict(list)
    for name, own in times.items():
        for entry in own.items():
            holders[entry].append(name)
    shared: dict[str, Counter[str]] = defaultdict(Counter)
    for names in holders.values():
        for name in names if len(names) > 1 else ():
            shared[name].update(other for other in names[:MOST_TIMES] if other != name)
    found = {}
    for name, others in shared.items():
        other, amount = others.most_common(1)[0]
        fewest = max(FEWEST_SHARED, SMALLEST_SHARE * min(len(times[name]), len(times[other])))
        if amount >= fewest:
            found[name] = (other, amount)
    return found


def _times(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    yield "total_duration_ms", values.get("total_duration_ms", 0.0)
    for key in ("steps", "denoise_steps_ms"):
        entries = values.get(key)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            yield f"{key}[{index}]", entry.get("duration_ms", 0.0) if isinstance(entry, dict) else entry
    timers = values.get("timers")
    yield from ((f"timers.{key}", value) for key, value in timers.items()) if isinstance(timers, dict) else ()


def _is_fine(value: object) -> bool:
    if not isinstance(value, float) or not 0 < value < 1e12:
        return False
    ticks = value / FINEST_COARSE_MS
    return abs(ticks - round(ticks)) > 1e-6 * max(1.0, ticks * 1e-9)
