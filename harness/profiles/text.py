"""Any document of paragraphs, lists and tables as plain text for a terminal; control characters are spelled out."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from fuseproof.harness.escape import visible
from fuseproof.harness.report.document import Bullets, Document, Paragraph, Part, Table, Text, spans

GAP = "  "
WIDEST_CELL = 44
NARROWEST_CELL = 8
"""Columns of text are cut no further than this where a terminal is narrow."""


def render_text(document: Document, width: int | None = None) -> str:
    """The document, ending in a newline; with ``width`` in columns, wrapped and cut to it as far as that can be."""
    lines = [_flat(document.title)]
    for section in document.sections:
        lines += ["", _flat(section.title)]
        for part in section.parts:
            lines += _part_lines(part, width)
    return "\n".join(lines) + "\n"


def _part_lines(part: Part, width: int | None) -> Iterator[str]:
    if isinstance(part, Paragraph):
        yield from _wrapped(_plain(part.text), width, GAP)
    elif isinstance(part, Bullets):
        for item in part.items:
            yield from _wrapped(_plain(item), width, GAP + GAP)
    elif isinstance(part, Table):
        yield from _table_lines(part, width)


def _wrapped(text: str, width: int | None, indent: str) -> list[str]:
    """One line, or several of at most ``width`` columns whose continuations are indented."""
    if width is None or _width(text) + len(GAP) <= width:
        return [f"{GAP}{text}"]
    columns = max(width, 3 * NARROWEST_CELL)
    return textwrap.wrap(
        text, columns, initial_indent=GAP, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _table_lines(table: Table, width: int | None) -> Iterator[str]:
    body = [tuple(map(_plain, row)) for row in table.rows]
    shown = [index for index in range(len(table.head)) if any(row[index] not in ("", "n/a") for row in body)]
    most = _column_widths(table, body, shown, width)
    heads = {index: _head_lines(table.head[index], most[index], is_cut=width is not None) for index in shown}
    deepest = max(map(len, heads.values()), default=0)
    rows = [tuple((["", *[""] * deepest, *heads[index]])[-deepest:][at] for index in shown) for at in range(deepest)]
    rows += [tuple(_shortened(row[index], most[index]) for index in shown) for row in body]
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            _padded(text, columns, is_number=index in table.numeric)
            for index, text, columns in zip(shown, row, widths, strict=True)
        )
        yield (GAP + GAP.join(cells)).rstrip()


def _column_widths(
    table: Table, body: Sequence[tuple[str, ...]], shown: Sequence[int], width: int | None
) -> dict[int, int]:
    """Columns for each cell: names are cut to :data:`WIDEST_CELL` but in the last column, behind which nothing stands;
    where the table is wider than ``width``, first the heads are broken, then the widest texts are cut further.
    """
    last = len(table.head) - 1
    most = {}
    for index in shown:
        own = max((_width(row[index]) for row in body), default=0)
        most[index] = own if index == last or index in table.numeric else min(own, WIDEST_CELL)
    if width is None:
        return {index: max(columns, _width(table.head[index])) for index, columns in most.items()}
    for index in shown:
        most[index] = max(most[index], max(map(_width, table.head[index].split()), default=0))
    texts = [index for index in shown if index not in table.numeric]
    while texts and _total(most) > width:
        widest = max(texts, key=lambda index: most[index])
        if most[widest] <= NARROWEST_CELL:
            break
        most[widest] -= 1
    for index in shown:  # a head that fits stays whole
        spare = width - _total(most)
        most[index] += max(0, min(spare, _width(table.head[index]) - most[index]))
    return most


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * len(widths)


def _head_lines(text: str, columns: int, *, is_cut: bool) -> list[str]:
    text = _flat(text)
    return textwrap.wrap(text, max(columns, 1), break_long_words=False) if is_cut else [text]


def _padded(text: str, width: int, *, is_number: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if is_number else text + space


def _shortened(text: str, columns: int) -> str:
    """A long name keeps its beginning and its end, which is where names differ."""
    if len(text) <= columns:
        return text
    half = (columns - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def _plain(text: Text) -> str:
    return "".join(_flat(span if isinstance(span, str) else span.text) for span in spans(text))


def _flat(text: str) -> str:
    return visible(text.replace("\n", " ").replace("\r", " ").replace("\t", " "))


def _width(text: str) -> int:
    """Columns that a terminal gives a text."""
    return sum(0 if unicodedata.combining(one) else 1 + (unicodedata.east_asian_width(one) in "WF") for one in text)
