"""Predicted against measured, in words: the gain that two profiles promise, and what a timed pair says of it.

Both are held against each other in one way: the measured time that is gone, and the predicted range of it
(:attr:`Prediction.range_us`), in the table and in the sentence.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuseproof.harness.number_format import count, number, percent
from fuseproof.harness.profiles.comparison import ProfileComparison
from fuseproof.harness.profiles.prediction import Prediction
from fuseproof.harness.profiles.timings import Timings
from fuseproof.harness.report.document import Bullets, Paragraph, Part, Table, Text

ARROW = "→"
WITHOUT_TIMES = "Measured: nothing, for no timed pair was given (--timings). Times under a profiler are no measurement."
CANNOT_TELL = "Predicted: these profiles cannot tell whether the request takes less device time."


def gain_parts(comparison: ProfileComparison, timings: Timings | None) -> Iterator[Part]:
    """What is predicted, or why nothing is; and, with ``timings``, what was measured."""
    found = comparison.prediction
    if found.can_tell:
        yield Paragraph(_predicted(comparison, found))
    else:
        yield Paragraph(CANNOT_TELL)
        yield Bullets(tuple(found.doubts))
        if comparison.main.has_scatter:
            yield Paragraph(f"By the scatter of the steps it may be {less_or_more(found.low_us, found.high_us)}.")
    if timings is None:
        yield Paragraph(WITHOUT_TIMES)
        return
    yield _gain_table(found, timings)
    yield Paragraph(_measured(found, timings))


def _predicted(comparison: ProfileComparison, found: Prediction) -> str:
    stages = ", ".join(stage.before.name for stage in comparison.stages)
    text = f"Predicted for the request, by {stages}: {less_or_more(found.gain_us, found.gain_us)} device time"
    text += f" ({less_or_more(found.low_us, found.high_us)} by the scatter of the steps)"
    if found.launches_us_at_most > 0:
        most = number(found.launches_us_at_most / 1e3, 1)
        text += f", and at most {most} ms for launches that are gone where the device waited"
    whole = [stage.before.name for stage in comparison.stages if not stage.has_scatter]
    if whole:
        text += f". Of {', '.join(whole)} one pass was profiled, whose scatter is not known"
    return f"{text}."


def less_or_more(low_us: float, high_us: float) -> str:
    """Time that is gone, from ``low_us`` to ``high_us``, in words without a sign: ``8.2 to 8.6 ms less``."""
    low, high = (number(abs(us) / 1e3, 1) for us in (low_us, high_us))
    if low_us < 0 < high_us:
        return f"anything from {low} ms more to {high} ms less"
    first, last = (low, high) if low_us >= 0 else (high, low)
    word = "less" if low_us >= 0 else "more"
    return f"{first} ms {word}" if first == last else f"{first} to {last} ms {word}"


def _gain_table(found: Prediction, timings: Timings) -> Table:
    rows = [_timed("Worker E2E", timings.worker_ms, found)]
    if timings.denoise_ms is not None:
        rows.append(_timed("Denoise", timings.denoise_ms, found))
    head = ("Timer", "before → after ms", "measured reduction", "predicted reduction")
    return Table(head, tuple(rows), range(1, 4))


def _timed(name: str, pair: tuple[float, float], found: Prediction) -> tuple[Text, ...]:
    before, after = pair
    low, high = (percent(us / 1e3 / before) for us in found.range_us)
    return (
        name,
        f"{number(before, 1)} {ARROW} {number(after, 1)}",
        percent((before - after) / before),
        (low if low == high else f"{low} to {high}") if found.can_tell else "cannot tell",
    )


def _measured(found: Prediction, timings: Timings) -> str:
    runs = f"{count(timings.runs[0], 'timed run')} before and {timings.runs[1]} after, {timings.label}"
    word = f"verdict {timings.word}" if timings.word is not None else "single runs, a description and no verdict"
    saved_us = 1e3 * timings.saved_ms
    told = f"Measured ({runs}; {word}): {less_or_more(saved_us, saved_us)} worker E2E"
    if not found.can_tell:
        return f"{told}, with nothing predicted to hold it against."
    low_us, high_us = found.range_us
    predicted = f"what the profiles predict ({less_or_more(low_us, high_us)})"
    if low_us <= saved_us <= high_us:
        return f"{told}, which lies within {predicted}."
    outside_us, side = (saved_us - high_us, "less") if saved_us > high_us else (low_us - saved_us, "more")
    return f"{told}, which lies {number(outside_us / 1e3, 1)} ms outside of {predicted}, on the side of {side} time."
