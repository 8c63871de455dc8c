"""A report before it is markdown or HTML: sections of paragraphs, lists, tables, code and pictures.

Content is plain text; the two renderers escape all of it, so nothing that an arm or a prompt says can become markup.
Emphasis is a type, never a character.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Strong:
    """Emphasised text."""

    text: str
    kind: ClassVar[str] = "strong"


@dataclass(frozen=True)
class Code:
    """Inline code: names, flags, paths, prompts."""

    text: str
    kind: ClassVar[str] = "code"


Span = str | Strong | Code
Text = Span | tuple[Span, ...]


def spans(text: Text) -> tuple[Span, ...]:
    """Any text as a tuple of spans."""
    return text if isinstance(text, tuple) else (text,)


def span_kind(span: Span) -> str:
    """``plain``, ``strong`` or ``code``; how the templates choose."""
    return "plain" if isinstance(span, str) else span.kind


@dataclass(frozen=True)
class Paragraph:
    text: Text
    kind: ClassVar[str] = "paragraph"


@dataclass(frozen=True)
class Bullets:
    items: tuple[Text, ...]
    kind: ClassVar[str] = "bullets"


@dataclass(frozen=True)
class Table:
    """Rows of cells; the columns in ``numeric`` (from 0) are right-aligned."""

    head: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]
    numeric: range = range(0)
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class CodeBlock:
    text: str
    language: str = ""
    kind: ClassVar[str] = "code_block"


@dataclass(frozen=True)
class PicturePair:
    """A baseline and a candidate picture, as paths relative to the campaign folder."""

    title: str
    baseline: str
    candidate: str


@dataclass(frozen=True)
class Pictures:
    """``base_url`` is put before every path, as it is; empty for paths relative to the report."""

    pairs: tuple[PicturePair, ...]
    base_url: str = ""
    kind: ClassVar[str] = "pictures"


@dataclass(frozen=True)
class Side:
    """One picture of a :class:`Comparison`: whose it is, the file that is shown, and what else a reader must know."""

    label: str
    path: str
    caption: str


@dataclass(frozen=True)
class Comparison:
    """Pictures of two arms beside each other, or one where they are identical; HTML only.

    ``has_swipe``: both are the same size, so that one may be uncovered over the other.
    """

    title: str
    sides: tuple[Side, ...]
    has_swipe: bool = False
    kind: ClassVar[str] = "comparison"


@dataclass(frozen=True)
class Figure:
    """A picture that the report has drawn. In markdown only where ``base_url`` says who serves it."""

    title: str
    path: str
    caption: str
    base_url: str = ""
    kind: ClassVar[str] = "figure"


@dataclass(frozen=True)
class Mark:
    """One run in a :class:`Strip`: where it stands (0..1 both ways), its arm and its value in words."""

    x: float
    y: float
    arm: str
    title: str
    is_counted: bool = True
    """A hollow mark otherwise."""


@dataclass(frozen=True)
class Strip:
    """The runs of one cell in the order they ran, for the eye; HTML only, its numbers are in the raw table."""

    title: str
    marks: tuple[Mark, ...]
    low: str
    high: str
    separators: tuple[float, ...] = ()
    """Where one block ends and the next begins (0..1)."""
    kind: ClassVar[str] = "strip"


@dataclass(frozen=True)
class Bar:
    """One arm's time in one stage: its length (0..1) and its value in words."""

    name: str
    arm: str
    length: float
    value: str


@dataclass(frozen=True)
class Bars:
    """Stages by arm, a baseline and a candidate bar each, for the eye; HTML only, a table holds the numbers."""

    title: str
    bars: tuple[Bar, ...]
    kind: ClassVar[str] = "bars"


@dataclass(frozen=True)
class Stretch:
    """A part of a :class:`Trace`'s time, from 0 to 1."""

    begin: float
    end: float


@dataclass(frozen=True)
class Trace:
    """One quantity over the time of one slot, for the eye; HTML only, its numbers are in the slot's folder.

    ``points`` are (time, value), 0..1 both ways; ``request`` is where the timed request lies, if that is known.
    """

    title: str
    points: tuple[tuple[float, float], ...]
    low: str
    high: str
    request: Stretch | None = None
    kind: ClassVar[str] = "trace"


@dataclass(frozen=True)
class Details:
    """Parts that are folded away until asked for."""

    summary: str
    parts: tuple[Part, ...]
    is_open: bool = False
    """Unfolded where there is room: in HTML. In markdown details are always folded."""
    kind: ClassVar[str] = "details"


Part = Paragraph | Bullets | Table | CodeBlock | Pictures | Comparison | Figure | Strip | Bars | Trace | Details


@dataclass(frozen=True)
class Section:
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Document:
    title: str
    sections: tuple[Section, ...]
    word: str = ""
    """The campaign's word, for the colour of the HTML banner; never the only carrier of it."""


def bullets(items: Iterable[Text]) -> tuple[Part, ...]:
    """A list, or nothing when there are no items."""
    found = tuple(items)
    return (Bullets(found),) if found else ()
