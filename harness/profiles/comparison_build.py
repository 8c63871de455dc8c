"""Before and after as a document: the table that a pull request needs, and what it predicts against what was timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuseproof.harness.number_format import MISSING, count, number, percent, shortened
from fuseproof.harness.profiles.build import EVERYTHING, MARKDOWN, TERMINAL, Length, request_text
from fuseproof.harness.profiles.comparison import Difference, ProfileComparison, StageDifference
from fuseproof.harness.profiles.profile import Profile
from fuseproof.harness.profiles.tables import LONGEST_NAME, class_title, code, launches, milliseconds
from fuseproof.harness.profiles.timings import Timings
from fuseproof.harness.report.document import (
    Bullets,
    Code,
    Document,
    Paragraph,
    Part,
    Section,
    Span,
    Strong,
    Table,
    Text,
)

__all__ = ["EVERYTHING", "MARKDOWN", "TERMINAL", "build_comparison"]

ARROW = "→"
WITHOUT_TIMES = "Measured: nothing, for no timed pair was given (--timings). Times under a profiler are no measurement."


def build_comparison(comparison: ProfileComparison, timings: Timings | None, length: Length) -> Document:
    """The sections, the seed of a pull request's table first."""
    sections = [Section("Kernels a step, before → after", tuple(_overview(comparison)))]
    stages = comparison.stages if length.has_all else comparison.stages[:1]
    for stage in stages:
        name = stage.before.name
        sections.append(Section(f"{name}: by class", (_class_table(stage, comparison.after),)))
        blocks = _place_table(stage.blocks, comparison.after, length.rows, "Block")
        sections.append(Section(f"{name}: by block", (blocks,)))
        places = _place_table(stage.places, comparison.after, length.rows, "Site or module")
        sections.append(Section(f"{name}: by site and module", (places,)))
    sections.append(Section("Predicted and measured gain", tuple(_gain(comparison, timings))))
    warnings = [*_labelled("before", comparison.before), *_labelled("after", comparison.after)]
    if warnings:
        sections.append(Section("Warnings", (Bullets(tuple(warnings)),)))
    title = f"Profiles of {shortened(comparison.after.request.model, LONGEST_NAME)}, before and after"
    return Document(title, tuple(sections))


def _labelled(name: str, profile: Profile) -> Iterator[Text]:
    yield from (f"{name}: {shortened(text, 500)}" for text in profile.warnings)


def _overview(comparison: ProfileComparison) -> Iterator[Part]:
    yield Bullets(
        (
            ("before: ", request_text(comparison.before.request), *_flags(comparison.before)),
            ("after: ", request_text(comparison.after.request), *_flags(comparison.after)),
        )
    )
    rows = tuple(_overview_row(stage) for stage in comparison.stages)
    word = comparison.after.kernels_word
    head = ("Stage", f"{word} a step", "launches by fused sites", "device ms a step", "change")
    yield Table(head, rows, range(1, 5))
    if comparison.fused_calls():
        yield _calls_table(comparison)
    if comparison.unpaired:
        yield Paragraph(f"Profiled on one side only, and left out: {', '.join(comparison.unpaired)}.")


def _flags(profile: Profile) -> tuple[Span, ...]:
    words = " ".join(profile.request.flags)
    return (" ", Code(shortened(words, 200))) if words else ()


def _overview_row(stage: StageDifference) -> tuple[Text, ...]:
    step = stage.step
    return (
        stage.before.name,
        Strong(_kernels(step)),
        number(stage.new_fused_kernels, 0, signed=True),
        Strong(_times(step)),
        _change(step),
    )


def _calls_table(comparison: ProfileComparison) -> Table:
    rows = tuple(
        (
            Code(shortened(one.site, LONGEST_NAME)),
            f"{_calls(one.before_a_step)} {ARROW} {_calls(one.after_a_step)}",
            f"{one.before} {ARROW} {one.after}",
        )
        for one in comparison.fused_calls()
    )
    return Table(("Site", "fused calls a step", "in the whole request"), rows, range(1, 3))


def _calls(value: float | None) -> str:
    return MISSING if value is None else launches(value)


def _class_table(stage: StageDifference, profile: Profile) -> Table:
    rows = [(class_title(row.name), _kernels(row), _times(row), _saved(row)) for row in stage.classes]
    rows.append(("all", _kernels(stage.step), _times(stage.step), _saved(stage.step)))
    return Table(("Class", f"{profile.kernels_word} a step", "ms a step", "saved ms"), tuple(rows), range(1, 4))


def _place_table(places: Sequence[Difference], profile: Profile, most: int, title: str) -> Table:
    rows: list[tuple[Text, ...]] = [
        (f"site {row.name}" if row.is_site else code(row.name), _kernels(row), _times(row), _saved(row))
        for row in places[:most]
    ]
    hidden = places[most:]
    if hidden:
        rest = _summed(hidden)
        rows.append((f"{len(hidden)} more", _kernels(rest), _times(rest), _saved(rest)))
    return Table((title, f"{profile.kernels_word} a step", "ms a step", "saved ms"), tuple(rows), range(1, 4))


def _summed(rows: Sequence[Difference]) -> Difference:
    kernels = sum(row.before_kernels or 0.0 for row in rows), sum(row.after_kernels or 0.0 for row in rows)
    times = sum(row.before_us or 0.0 for row in rows), sum(row.after_us or 0.0 for row in rows)
    return Difference("", False, *kernels, *times)


def _kernels(row: Difference) -> str:
    return f"{_launches(row.before_kernels)} {ARROW} {_launches(row.after_kernels)}"


def _launches(value: float | None) -> str:
    return "0" if value is None else launches(value)


def _times(row: Difference) -> str:
    return f"{milliseconds(row.before_us or 0.0)} {ARROW} {milliseconds(row.after_us or 0.0)}"


def _saved(row: Difference) -> str:
    return number(row.saved_us / 1e3, 3, signed=True)


def _change(row: Difference) -> str:
    return MISSING if not row.before_us else f"{number(-100 * row.saved_us / row.before_us, 2, signed=True)} %"


def _gain(comparison: ProfileComparison, timings: Timings | None) -> Iterator[Part]:
    device_ms, launch_ms = comparison.device_gain_us / 1e3, comparison.launch_gain_us / 1e3
    stages = ", ".join(stage.before.name for stage in comparison.stages)
    text = f"Predicted for the request, by {stages}: {number(device_ms, 1)} ms less device time"
    if launch_ms > 0:
        text += f", and at most {number(launch_ms, 1)} ms for launches that are gone where the device waited"
    yield Paragraph(f"{text}.")
    if timings is None:
        yield Paragraph(WITHOUT_TIMES)
        return
    yield _gain_table(device_ms, launch_ms, timings)
    yield Paragraph(_agreement(device_ms, launch_ms, timings))


def _gain_table(device_ms: float, launch_ms: float, timings: Timings) -> Table:
    rows = [_timed("Worker E2E", timings.worker_ms, device_ms, launch_ms)]
    if timings.denoise_ms is not None:
        rows.append(_timed("Denoise", timings.denoise_ms, device_ms, launch_ms))
    return Table(
        ("Timer", "before → after ms", "measured", "predicted by device time", "at most"), tuple(rows), range(1, 5)
    )


def _timed(name: str, pair: tuple[float, float], device_ms: float, launch_ms: float) -> tuple[Text, ...]:
    before, after = pair
    return (
        name,
        f"{number(before, 1)} {ARROW} {number(after, 1)}",
        percent((before - after) / before),
        percent(device_ms / before),
        percent((device_ms + launch_ms) / before),
    )


def _agreement(device_ms: float, launch_ms: float, timings: Timings) -> str:
    runs = f"{count(timings.runs[0], 'timed run')} before and {timings.runs[1]} after, {timings.label}"
    word = f"verdict {timings.word}" if timings.word is not None else "single runs, a description and no verdict"
    measured = timings.saved_ms
    low, high = sorted((device_ms, device_ms + launch_ms))
    if low <= measured <= high:
        told = "lies within what the profiles predict"
    elif measured > high:
        told = f"is {number(measured - high, 1)} ms more than the profiles predict"
    else:
        told = f"is {number(low - measured, 1)} ms less than the profiles predict"
    return f"Measured ({runs}; {word}): {number(measured, 1)} ms less worker E2E, which {told}."
