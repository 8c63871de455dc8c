"""Before and after as a document: the table that a pull request needs, and what it predicts against what was timed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from fuseproof.harness.number_format import MISSING, number, shortened
from fuseproof.harness.profiles.build import EVERYTHING, MARKDOWN, TERMINAL, Length, request_text
from fuseproof.harness.profiles.comparison import Difference, ProfileComparison, StageDifference
from fuseproof.harness.profiles.gain import gain_parts
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


def build_comparison(comparison: ProfileComparison, timings: Timings | None, length: Length) -> Document:
    """The sections, the seed of a pull request's table first."""
    sections = []
    if comparison.warnings():
        items = tuple(shortened(text, 500) for text in comparison.warnings())
        sections.append(Section("Warnings", (Bullets(items),)))
    sections.append(Section("Kernels a step, before → after", tuple(_overview(comparison))))
    stages = comparison.stages if length.has_all else comparison.stages[:1]
    for stage in stages:
        name = stage.before.name
        sections.append(Section(f"{name}: by class", (_class_table(stage, comparison.after),)))
        blocks = _place_table(stage.blocks, comparison.after, length.rows, "Block")
        sections.append(Section(f"{name}: by block", (blocks,)))
        places = _place_table(stage.places, comparison.after, length.rows, "Site or module")
        sections.append(Section(f"{name}: by site and module", (places,)))
    sections.append(Section("Predicted and measured gain", tuple(gain_parts(comparison, timings))))
    title = f"Profiles of {shortened(comparison.after.request.model, LONGEST_NAME)}, before and after"
    return Document(title, tuple(sections))


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
    yield _scatter_table(comparison)
    if comparison.fused_calls():
        yield _calls_table(comparison)
    if comparison.unpaired:
        yield Paragraph(f"Profiled on one side only, and left out: {', '.join(comparison.unpaired)}.")


def _flags(profile: Profile) -> tuple[Span, ...]:
    words = shlex.join(profile.request.flags)
    return (" ", Code(shortened(words, 400))) if words else ()


def _overview_row(stage: StageDifference) -> tuple[Text, ...]:
    step = stage.step
    return (
        stage.before.name,
        Strong(_kernels(step)),
        number(stage.new_fused_kernels, 0, signed=True),
        Strong(_times(step)),
        _change(step) if stage.can_tell else f"{_change(step)}, cannot tell",
    )


def _scatter_table(comparison: ProfileComparison) -> Table:
    """Both sides of every stage: how far the profiled steps lie apart."""
    rows = tuple(
        (
            stage.before.name,
            side,
            str(found.steps) if found.is_known else "1, scatter not known",
            *(milliseconds(us) for us in (found.median_us, found.least_us, found.most_us)),
        )
        for stage in comparison.stages
        for side, found in zip(("before", "after"), stage.scatter, strict=True)
    )
    head = ("Device ms by step", "side", "steps", "median", "min", "max")
    return Table(head, rows, range(2, 6))


def _calls_table(comparison: ProfileComparison) -> Table:
    rows = tuple(
        (
            Code(shortened(one.site, LONGEST_NAME)),
            f"{_calls(one.before_a_step)} {ARROW} {_calls(one.after_a_step)}",
            f"{one.before} {ARROW} {one.after}",
        )
        for one in comparison.fused_calls()
    )
    return Table(("Site", "fused calls a profiled step", "in the whole request"), rows, range(1, 3))


def _calls(value: float | None) -> str:
    return "not known" if value is None else launches(value)


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
