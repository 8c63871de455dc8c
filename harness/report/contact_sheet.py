"""A contact sheet: every output of a cell, arms in rows, prompts and seeds in columns, the worst pair framed.

Of videos the columns are frames of one output.

Runs of an arm whose outputs all have the same pixels share a row, so that a row is a result and not a repetition; how
many runs it stands for is written beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuseproof.harness.analysis.campaign import CellAnalysis
from fuseproof.harness.analysis.runs import CellRuns, Run
from fuseproof.harness.number_format import count
from fuseproof.harness.report.canvas import (
    CHARACTER_PIXELS,
    LINE_PIXELS,
    Pixels,
    scale_text,
    scaled,
    step_of,
    written,
)
from fuseproof.harness.report.sheet_columns import chosen, sheet_columns
from fuseproof.harness.report.shown_outputs import OutputReader, ShownOutput

MOST_ROWS = 8
MOST_COLUMNS = 6
THUMBNAIL = 128
GAP = 8
FRAME = 4
LABEL_WIDTH = 14 * CHARACTER_PIXELS
WORST_COLOUR = (200, 0, 110)
_INK = (20, 20, 20)
_PAPER = (255, 255, 255)
_NO_PICTURE = (205, 205, 205)


@dataclass(frozen=True)
class Row:
    """The runs of one arm that gave the same pixels for every request; ``paths`` are the first run's, by request."""

    arm: str
    runs: tuple[Run, ...]
    paths: tuple[str, ...]
    keys: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.arm}, {count(len(self.runs), 'run')}"

    @property
    def first(self) -> str:
        """The place of the run that is shown: block, attempt and position."""
        return self.runs[0].record.id.rpartition("/")[2]


@dataclass(frozen=True)
class ContactSheet:
    """The picture, and what must be said beside it; ``problems`` are outputs that could not be shown."""

    pixels: Pixels
    words: str
    problems: tuple[str, ...]


def sheet_rows(cell: CellRuns) -> tuple[Row, ...]:
    """Arms in order of their letters, the results of each in the order in which they first came."""
    groups: dict[tuple[str, tuple[str, ...]], list[Run]] = {}
    for run in sorted(cell.runs, key=lambda run: run.record.arm):
        keys = tuple(output.pixels_sha256 or output.file_sha256 for output in run.record.outputs)
        groups.setdefault((run.record.arm, keys), []).append(run)
    return tuple(
        Row(arm, tuple(runs), tuple(f"{runs[0].record.directory}/{o.path}" for o in runs[0].record.outputs), keys)
        for (arm, keys), runs in groups.items()
    )


def contact_sheet(cell: CellAnalysis, reader: OutputReader) -> ContactSheet | None:
    """The sheet of a cell's counting runs of all arms, its worst pair framed; None where they wrote nothing."""
    rows = sheet_rows(cell.runs.everything)
    requests = max((len(row.paths) for row in rows), default=0)
    if not requests:
        return None
    worst = cell.outputs.worst
    framed = set() if worst is None else {(path, worst.request) for path in (worst.baseline, worst.candidate)}
    shown_rows = chosen(
        [not framed.isdisjoint(zip(row.paths, range(requests), strict=False)) for row in rows], MOST_ROWS
    )
    columns = sheet_columns(cell, requests, MOST_COLUMNS)
    steps: dict[int, None] = {}
    problems: list[str] = []
    canvas = np.full((*_size(len(shown_rows), len(columns.shown)), 3), _PAPER, dtype=np.uint8)
    texts = [(_left(place), 2, column.title) for place, column in enumerate(columns.shown)]
    marks: list[tuple[int, int, str]] = []
    for line, row in enumerate(rows[index] for index in shown_rows):
        middle = _top(line) + THUMBNAIL // 2
        texts += [(GAP, middle - LINE_PIXELS, row.label), (GAP, middle, row.first)]
        for place, column in enumerate(columns.shown):
            if column.request >= len(row.paths):
                continue
            path = row.paths[column.request]
            if (path, column.request) in framed and columns.is_worst(column):
                _frame(canvas, _top(line), _left(place))
                marks.append((_left(place), _top(line) + THUMBNAIL + FRAME, "worst pair"))
            problems += _put(canvas, reader.read(path, column.frame), (_top(line), _left(place)), steps)
    canvas = written(written(canvas, texts, _INK), marks, WORST_COLOUR)
    return ContactSheet(canvas, _words(rows, shown_rows, columns.rest, list(steps)), tuple(problems))


def _size(rows: int, columns: int) -> tuple[int, int]:
    return _top(rows), _left(columns)


def _top(line: int) -> int:
    return LINE_PIXELS + GAP + line * (THUMBNAIL + LINE_PIXELS + GAP)


def _left(place: int) -> int:
    return LABEL_WIDTH + GAP * 2 + place * (THUMBNAIL + GAP * 2)


def _frame(canvas: Pixels, top: int, left: int) -> None:
    canvas[top - FRAME : top + THUMBNAIL + FRAME, left - FRAME : left + THUMBNAIL + FRAME] = WORST_COLOUR
    canvas[top : top + THUMBNAIL, left : left + THUMBNAIL] = _PAPER


def _put(canvas: Pixels, output: ShownOutput, corner: tuple[int, int], steps: dict[int, None]) -> tuple[str, ...]:
    """Draw one thumbnail in the middle of its place; the sentence about one that cannot be drawn."""
    top, left = corner
    pixels = output.pixels
    if pixels is None:
        canvas[top : top + THUMBNAIL, left : left + THUMBNAIL] = _NO_PICTURE
        canvas[top : top + THUMBNAIL, left : left + THUMBNAIL] = written(
            canvas[top : top + THUMBNAIL, left : left + THUMBNAIL], [(GAP, THUMBNAIL // 2, "not shown")], _INK
        )
        return (output.problem or "",)
    step = step_of(pixels.shape[1], pixels.shape[0], THUMBNAIL)
    steps[step] = None
    small = scaled(pixels, step)
    top += (THUMBNAIL - small.shape[0]) // 2
    left += (THUMBNAIL - small.shape[1]) // 2
    canvas[top : top + small.shape[0], left : left + small.shape[1]] = small
    return ()


def _words(rows: Sequence[Row], shown_rows: Sequence[int], rest: str, steps: Sequence[int]) -> str:
    runs = sum(len(row.runs) for row in rows)
    parts = [f"{count(runs, 'run')}, of each arm those with the same pixels in one row that names the first of them"]
    if steps:
        parts.append(f"drawn {', '.join(map(scale_text, steps))}")
    if len(shown_rows) < len(rows):
        parts.append(f"{count(len(rows) - len(shown_rows), 'more row')} not drawn")
    return "; ".join([*parts, rest] if rest else parts)
