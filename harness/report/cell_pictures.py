"""What a report shows of a cell's outputs: the worst pair of the arms, its difference, and the contact sheet.

The parts go into ``report.html``, the files into the campaign's ``figures/``. Everything is drawn from the outputs that
lie in the folder; an output that cannot be read is named in the place where its picture would stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from fuseproof.errors import FuseproofError
from fuseproof.harness.analysis.campaign import CellAnalysis
from fuseproof.harness.analysis.output_pairs import ComparedPair
from fuseproof.harness.analysis.runs import ARM_WORDS
from fuseproof.harness.media.clip_comparison import ClipComparison
from fuseproof.harness.number_format import count
from fuseproof.harness.report.canvas import Pixels, scale_text, scaled, step_of
from fuseproof.harness.report.contact_sheet import contact_sheet, sheet_rows
from fuseproof.harness.report.difference_pictures import difference_picture
from fuseproof.harness.report.document import Comparison, Figure, Paragraph, Part, Side
from fuseproof.harness.report.frame_plots import frame_plots
from fuseproof.harness.report.shown_outputs import BROWSER_SUFFIXES, OutputReader, ShownOutput

FIGURES = "figures/"
LONGEST_SIDE = 512
LARGEST_ORIGINAL_BYTES = 400_000
MOST_PROBLEMS = 4


@dataclass(frozen=True)
class CellPictures:
    """``parts`` in the order they are read; ``drawn`` are the pictures by path relative to the campaign folder."""

    parts: tuple[Part, ...]
    drawn: dict[str, Pixels]


def cell_pictures(cell: CellAnalysis, reader: OutputReader) -> CellPictures:
    """Draw everything of one cell; nothing for one whose runs wrote no outputs."""
    drawn: dict[str, Pixels] = {}
    parts = [*_comparisons(cell, reader, drawn), *_sheet(cell, reader, drawn)]
    return CellPictures(tuple(parts), drawn)


def difference_path(cell: CellAnalysis) -> str:
    """Where the difference of the cell's worst pair is drawn, if it is, relative to the campaign folder."""
    return f"{FIGURES}{cell.runs.cell.name}-difference-{cell.runs.candidate}.png"


def _comparisons(cell: CellAnalysis, reader: OutputReader, drawn: dict[str, Pixels]) -> Iterator[Part]:
    worst = cell.outputs.worst
    if worst is not None:
        yield from _pair_parts(cell, cell.runs.candidate, worst, reader, drawn)
    elif len({row.keys for row in sheet_rows(cell.runs)}) == 1:
        yield from _identical(cell, reader, drawn)


def _identical(cell: CellAnalysis, reader: OutputReader, drawn: dict[str, Pixels]) -> Iterator[Part]:
    """One picture stands for all: a second one would look the same, and a difference would be black."""
    first = sheet_rows(cell.runs)[0]
    arms = sorted({run.record.arm for run in cell.runs.runs})
    output = reader.read(first.paths[0])
    if output.picture is None:
        yield Paragraph(f"{cell.name}: {output.problem}.")
        return
    outputs = count(len(first.paths), "output")
    words = f"identical: the {outputs} of all {count(len(cell.runs.runs), 'run')} of {_listed(arms)} have equal pixels"
    more = "; output 1 is shown" if len(first.paths) > 1 else ""
    side = _side("pair-A-A", "identical", output, cell, reader, drawn)
    yield Comparison(f"{cell.name}: {words}{more}", (side,))


def _listed(arms: Sequence[str]) -> str:
    return arms[0] if len(arms) == 1 else f"{', '.join(arms[:-1])} and {arms[-1]}"


def _pair_parts(
    cell: CellAnalysis, arm: str, pair: ComparedPair, reader: OutputReader, drawn: dict[str, Pixels]
) -> Iterator[Part]:
    clips = pair.comparison if isinstance(pair.comparison, ClipComparison) else None
    frame = None if clips is None else clips.worst_frame
    shown = "" if frame is None else f", frame {frame}"
    title = f"{cell.name}, output {pair.request + 1}{shown}: the worst pair of A and {arm}"
    baseline, candidate = reader.read(pair.baseline, frame), reader.read(pair.candidate, frame)
    sides = tuple(
        _side(f"pair-{arm}-{letter}", ARM_WORDS[letter], output, cell, reader, drawn)
        for letter, output in (("A", baseline), (arm, candidate))
        if output.picture is not None
    )
    for output in (baseline, candidate):
        if output.problem is not None:
            yield Paragraph(f"{cell.name}, output {pair.request + 1}: {output.problem}.")
    if baseline.picture is None or candidate.picture is None:
        if sides:
            yield Comparison(title, sides)
        return
    yield Comparison(title, sides, has_swipe=baseline.picture.pixels.shape[:2] == candidate.picture.pixels.shape[:2])
    data_range = None if pair.comparison is None else pair.comparison.data_range
    try:
        difference = difference_picture(baseline.picture, candidate.picture, data_range=data_range, names=("A", arm))
    except FuseproofError:
        reason = pair.comparison.mismatch if pair.comparison is not None else None
        yield Paragraph(
            f"{title}: no difference is drawn: {reason or 'the two differ in size, channels or bit depth'}."
        )
        return
    path = difference_path(cell)
    drawn[path] = difference.pixels
    yield Figure(f"{title}, difference", path, difference.words)
    if clips is not None:
        yield from frame_plots(f"{cell.name}, output {pair.request + 1}", clips)


def _side(
    name: str,
    label: str,
    output: ShownOutput,
    cell: CellAnalysis,
    reader: OutputReader,
    drawn: dict[str, Pixels],
) -> Side:
    """The output's own file where a browser shows it and it is small, else a copy drawn smaller."""
    file = reader.directory / output.path
    suffix = PurePosixPath(output.path).suffix.lower()
    if suffix in BROWSER_SUFFIXES and file.stat().st_size <= LARGEST_ORIGINAL_BYTES:
        return Side(label, output.path, output.path)
    pixels = output.pixels
    assert pixels is not None  # the callers name an output without a picture instead
    step = min(1, step_of(pixels.shape[1], pixels.shape[0], LONGEST_SIDE))
    path = f"{FIGURES}{cell.runs.cell.name}-{name}.png"
    drawn[path] = scaled(pixels, step)
    return Side(label, path, f"{output.name} (shown {scale_text(step)})")


def _sheet(cell: CellAnalysis, reader: OutputReader, drawn: dict[str, Pixels]) -> Iterator[Part]:
    sheet = contact_sheet(cell, reader)
    if sheet is None:
        return
    path = f"{FIGURES}{cell.runs.cell.name}-sheet{'' if cell.runs.whole is None else f'-{cell.runs.candidate}'}.png"
    drawn[path] = sheet.pixels
    yield Figure(f"{cell.name}, contact sheet", path, sheet.words)
    for problem in sheet.problems[:MOST_PROBLEMS]:
        yield Paragraph(f"{cell.name}, contact sheet: {problem}.")
    if len(sheet.problems) > MOST_PROBLEMS:
        yield Paragraph(f"{cell.name}, contact sheet: {len(sheet.problems) - MOST_PROBLEMS} more outputs not shown.")
