"""What operations of a CPU usually take, so that one which lost its core does not look like a cost.

Another program that runs meanwhile takes milliseconds from whichever operation is under way, and a product of 128
numbers then looks as dear as a layer. The sums stay what was measured; beside them stands what the same calls take
where such a call counts as the median of its like. A GPU times its kernels itself: nothing of this applies there.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from fuseproof.pipelines.profiling.launches import Launch

TIMES_THE_MEDIAN = 5
LEAST_NANOSECONDS = 200_000
"""A call that took five times the median of its like, and 0.2 ms more, was interrupted."""
FEWEST_ALIKE = 3


def typical_nanoseconds(launches: Iterable[Launch]) -> Mapping[int, int]:
    """By ``id`` of a launch what it counts for; only those that took far longer than their like are in it.

    Its like are the calls of the same row; where those are fewer than three, or where they disagree and elsewhere the
    faster ones are the rule, the same operation on the same shapes anywhere in ``launches``, which are of one stage.
    """
    rows: dict[Hashable, list[Launch]] = {}
    anywhere: dict[Hashable, list[int]] = {}
    for one in launches:
        alike = (one.operation, one.kernel, one.key)
        rows.setdefault((alike, one.module, one.site, one.line), []).append(one)
        anywhere.setdefault(alike, []).append(one.nanoseconds)
    found: dict[int, int] = {}
    for (alike, *_), own in rows.items():  # type: ignore[misc]
        times = [one.nanoseconds for one in own]
        median, elsewhere = _median(times), _median(anywhere[alike])
        if len(times) < FEWEST_ALIKE or _is_interrupted(median, elsewhere) > _is_interrupted(min(times), elsewhere):
            median = elsewhere
        found |= {id(one): median for one in own if _is_interrupted(one.nanoseconds, median)}
    return found


def summed(launches: Iterable[Launch], typical: Mapping[int, int]) -> int:
    """The nanoseconds of ``launches``, interrupted ones as their like."""
    return sum(typical.get(id(one), one.nanoseconds) for one in launches)


def _median(times: Sequence[int]) -> int:
    return statistics.median_low(times)


def _is_interrupted(nanoseconds: int, median: int) -> bool:
    return nanoseconds > TIMES_THE_MEDIAN * median and nanoseconds - median >= LEAST_NANOSECONDS


def outliers(launches: Iterable[Launch], typical: Mapping[int, int]) -> dict[str, Any]:
    """``outlier_calls`` and ``outlier_us`` of a profile: how many were interrupted, and by how much in all."""
    beyond = [one.nanoseconds - typical[id(one)] for one in launches if id(one) in typical]
    return {"outlier_calls": len(beyond), "outlier_us": sum(beyond) / 1000}
