"""Any document of paragraphs, lists and tables as plain text for a terminal; control characters are spelled out."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from fuseproof.harness.escape import visible
from fuseproof.harness.report.document import Bullets, Document, Paragraph, Part, Table, Text, spans

GAP = "  "
WIDEST_CELL = 44


def render_text(document: Document) -> str:
    """The document, ending in a newline."""
    lines = [_flat(document.title)]
    for section in document.sections:
        lines += ["", _flat(section.title)]
        for part in section.parts:
            lines += _part_lines(part)
    return "\n".join(lines) + "\n"


def _part_lines(part: Part) -> Iterator[str]:
    if isinstance(part, Paragraph):
        yield f"{GAP}{_plain(part.text)}"
    elif isinstance(part, Bullets):
        yield from (f"{GAP}{_plain(item)}" for item in part.items)
    elif isinstance(part, Table):
        yield from _table_lines(part)


def _table_lines(table: Table) -> Iterator[str]:
    rows = [table.head, *(_plain_row(row) for row in table.rows)]
    shown = [index for index in range(len(table.head)) if any(row[index] not in ("", "n/a") for row in rows[1:])]
    widths = {index: max(_width(row[index]) for row in rows) for index in shown}
    for row in rows:
        cells = (_padded(row[index], widths[index], is_number=index in table.numeric) for index in shown)
        yield (GAP + GAP.join(cells)).rstrip()


def _plain_row(row: tuple[Text, ...]) -> tuple[str, ...]:
    """Long names cut in all but the last column, behind which nothing stands."""
    *names, last = map(_plain, row)
    return (*map(_shortened, names), last)


def _padded(text: str, width: int, *, is_number: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if is_number else text + space


def _shortened(text: str) -> str:
    """A long name keeps its beginning and its end, which is where names differ."""
    if len(text) <= WIDEST_CELL:
        return text
    half = (WIDEST_CELL - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _plain(text: Text) -> str:
    return "".join(_flat(span if isinstance(span, str) else span.text) for span in spans(text))


def _flat(text: str) -> str:
    return visible(text.replace("\n", " ").replace("\r", " ").replace("\t", " "))


def _width(text: str) -> int:
    """Columns that a terminal gives a text."""
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)
