"""The pictures of ``figures/`` by their names, where a text cannot show them: a pull request has no such folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fuseproof.harness.number_format import count
from fuseproof.harness.report.document import Code, Details, Document, Paragraph, Part, Pictures, Section, Text

MOST_NAMED = 24


def with_named_figures(document: Document, names: Sequence[str]) -> Document:
    """The document with a line of names behind its pictures, or in an Output check that shows none.

    ``names`` are paths relative to the campaign folder.
    """
    sections = tuple(_with_names(section, names) for section in document.sections)
    return dataclasses.replace(document, sections=sections)


def _with_names(section: Section, names: Sequence[str]) -> Section:
    if section.title != "Output check":
        return section
    line = Paragraph(_line(names))
    parts = [_behind_pictures(part, line) for part in section.parts]
    if parts == list(section.parts):
        parts.append(Details("Pictures", (line,)))
    return dataclasses.replace(section, parts=tuple(parts))


def _behind_pictures(part: Part, line: Paragraph) -> Part:
    if isinstance(part, Details) and any(isinstance(own, Pictures) for own in part.parts):
        return dataclasses.replace(part, parts=(*part.parts, line))
    return part


def _line(names: Sequence[str]) -> Text:
    shown: list[str | Code] = []
    for name in names[:MOST_NAMED]:
        shown += [", " if shown else "", Code(name)]
    more = f" and {count(len(names) - MOST_NAMED, 'more file')}" if len(names) > MOST_NAMED else ""
    return ("Drawn from the outputs, in the campaign folder: ", *shown, f"{more}; report.html shows them.")
