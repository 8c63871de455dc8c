"""What a guard found, as lines and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from fuseproof.harness.kernel_times.guard import SMALLEST_CHANGE, Judged, Standing
from fuseproof.harness.kernel_times.record import Time

RULE = (
    "slower: lowest round above the baseline's highest, alone and over eager, median up "
    f"{SMALLEST_CHANGE:.0%} or more, and again in a second look"
)
SHOWN = (Standing.DIFFERS, Standing.LOST, Standing.SLOWER, Standing.CARD, Standing.FASTER, Standing.NEW)
"""Rows that are printed, in this order; the others are counted."""
FAILING = (Standing.DIFFERS, Standing.LOST, Standing.SLOWER)


def lines_of(judged: Sequence[Judged], file: str) -> Iterator[str]:
    """The rule, every row that is not as before, and the count."""
    yield ""
    yield f"against {file} ({RULE})"
    for standing in SHOWN:
        for one in judged:
            if one.standing is standing:
                yield f"  {standing:<8} {_name(one)}: {_what(one)}"
    counts = Counter(one.standing for one in judged)
    yield "  " + (", ".join(f"{counts[standing]} {standing}" for standing in Standing if counts[standing]) or "no row")


def to_document(judged: Sequence[Judged], file: str) -> dict[str, Any]:
    """The ``guard`` of the JSON document."""
    return {
        "baseline": file,
        "rule": RULE,
        "rows": [
            {
                **dict(zip(("site", "kernel", "workload", "shapes"), one.key, strict=True)),
                "standing": str(one.standing),
                "change": one.change,
                "baseline_us": None if one.then is None or one.then.fused is None else one.then.fused.median_us,
                "now_us": None if one.now is None or one.now.fused is None else one.now.fused.median_us,
                "new_source": one.has_new_source,
            }
            for one in judged
        ],
        "passed": not any(one.standing in FAILING for one in judged),
    }


def _name(one: Judged) -> str:
    site, kernel, workload, shapes = one.key
    return f"{kernel if kernel == site else f'{site} ({kernel})'}, {workload}, {shapes}"


def _what(one: Judged) -> str:
    if one.standing is Standing.DIFFERS:
        return f"{one.now.reason if one.now else None}; no time is given for other bits"
    if one.standing is Standing.LOST:
        why = f"{one.now.bits}: {one.now.reason}" if one.now else "no call of it any more"
        return f"the baseline has a time, and now it is {why}"
    if one.standing is Standing.NEW or one.now is None or one.then is None:
        return "the baseline has no time of it"
    return (
        f"{_spread(one.then.fused)} -> {_spread(one.now.fused)} ({one.change:+.1%}), "
        f"eager {_spread(one.then.eager)} -> {_spread(one.now.eager)}"
        + ("; its source has changed" if one.has_new_source else "; its source is the same")
    )


def _spread(time: Time | None) -> str:
    return "-" if time is None else f"{time.median_us:.2f} us [{time.low_us:.2f}, {time.high_us:.2f}]"
