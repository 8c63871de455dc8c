"""The Output check section: each arm against itself, the arms against each other, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
from fuseproof.harness.analysis.output_check import LevelCount, OutputCheck
from fuseproof.harness.analysis.runs import ARMS
from fuseproof.harness.analysis.sentences import evidence_text, pair_text, reason_text
from fuseproof.harness.media.decoding import VIDEO_SUFFIXES
from fuseproof.harness.number_format import count
from fuseproof.harness.report.document import (
    Code,
    Details,
    Figure,
    Paragraph,
    Part,
    PicturePair,
    Pictures,
    Section,
    Strong,
    Table,
    Text,
    bullets,
)
from fuseproof.harness.report.figure_files import NO_FIGURES, Figures
from fuseproof.harness.report.layout import Layout
from fuseproof.harness.report.output_matrix import output_matrix
from fuseproof.harness.report.overview import notable_cells

HEAD = ("Workload", "Baseline runs", "Candidate runs", "File", "Pixels", "Raw array", "Contract")
LEGEND = "Counts are outputs equal to the first baseline output of their request, over all runs of both arms."
MOST_VIOLATIONS = 4
MOST_OPEN_PICTURES = 8
MOST_OPEN_PICTURED_CELLS = 2
MOST_HASHES_OF_CELL = 8
MOST_HASHES = 200


def output_section(analysis: CampaignAnalysis, layout: Layout, figures: Figures = NO_FIGURES) -> Section:
    """Determinism within each arm first, then equality at three levels, then what differs.

    A compact layout of many cells lists only those with something to see.
    """
    compared = [cell for cell in notable_cells(analysis) if cell.outputs.decided_by is not None]
    if not compared:
        return Section("Output check", (Paragraph("No complete block with outputs: nothing to compare."),))
    lists_all = layout.shows_all_timers or len(compared) <= layout.verdict_rows
    listed = compared if lists_all else [cell for cell in compared if not _is_plain(cell.outputs)]
    shown = listed[: layout.verdict_rows]
    parts: list[Part] = [Table(HEAD, tuple(_row(cell) for cell in shown)), Paragraph(LEGEND)] if shown else []
    parts += bullets([problem for cell in shown for problem in _problems(cell)][: layout.rows + MOST_VIOLATIONS])
    parts += _rest(compared, shown)
    parts += _pictured(compared, figures) if layout.has_figures else _pictures(compared[: layout.rows], figures)
    if layout.has_cell_details:
        parts += [part for cell in compared[: layout.rows] for part in output_matrix(cell)]
        parts += _hashes(analysis)
    return Section("Output check", tuple(parts))


def _is_plain(outputs: OutputCheck) -> bool:
    return outputs.status == "identical" and outputs.keeps_contract


def _rest(compared: Sequence[CellAnalysis], shown: Sequence[CellAnalysis]) -> list[Part]:
    """The cells that are not listed, counted."""
    rest = [cell for cell in compared if cell not in shown]
    plain = sum(_is_plain(cell.outputs) for cell in rest)
    sentences = []
    if plain:
        sentences.append(f"{count(plain, 'more cell')}: both arms deterministic, outputs identical, contract holds.")
    if len(rest) > plain:
        sentences.append(f"{count(len(rest) - plain, 'more cell')} with differences in report.html and report.json.")
    return [Paragraph(" ".join(sentences))] if sentences else []


def _row(cell: CellAnalysis) -> tuple[Text, ...]:
    outputs = cell.outputs
    by_level = {found.level: found for found in outputs.levels}
    arms = [
        f"deterministic ({count(arm.runs, 'run')})"
        if arm.is_deterministic
        else Strong(f"NON-DETERMINISTIC ({arm.distinct} outputs in {count(arm.runs, 'run')})")
        for arm in outputs.determinism
    ]
    levels = [_level_text(by_level.get(level)) for level in ("file", "pixels", "raw")]
    return (cell.name, *arms, *levels, _contract_text(outputs))


def _contract_text(outputs: OutputCheck) -> Text:
    if outputs.degenerate:
        return Strong(f"{outputs.contract}: PROVES NOTHING")
    evidence = evidence_text(outputs)
    if outputs.keeps_contract and outputs.accepts_anything:
        return f"{outputs.contract}: accepts any picture, not judged"
    if outputs.keeps_contract:
        return f"{outputs.contract}: holds{evidence}"
    return Strong(f"{outputs.contract}: NOT MET{evidence}")


def _level_text(found: LevelCount | None) -> str:
    if found is None:
        return "not recorded"
    equal, total = found.baseline_equal + found.candidate_equal, found.baseline_total + found.candidate_total
    return f"{equal} of {total}"


def _problems(cell: CellAnalysis) -> list[Text]:
    outputs = cell.outputs
    found = list(outputs.violations[:MOST_VIOLATIONS])
    if len(outputs.violations) > MOST_VIOLATIONS:
        found.append(f"{len(outputs.violations) - MOST_VIOLATIONS} more ways in which the contract is not met")
    if outputs.worst is not None:
        found.append(f"worst case {pair_text(outputs.worst)}{_variant(outputs)}")
    if outputs.omitted_pairs:
        found.append(f"{outputs.omitted_pairs} further pairs were not compared")
    found += [reason_text(warning) for warning in outputs.warnings]
    return [(Strong(cell.name), f": {text}") for text in found]


def _variant(outputs: OutputCheck) -> str:
    """How SSIM was computed: without it the number cannot be compared with anyone else's."""
    comparison = outputs.worst.comparison if outputs.worst else None
    return f" (SSIM: {comparison.ssim_variant})" if comparison is not None and comparison.ssim_variant else ""


def _pictures(cells: Sequence[CellAnalysis], figures: Figures) -> list[Part]:
    """A pair of each cell, and what was drawn of it: the markdown shows a figure only where someone serves it."""
    pairs = tuple(pair for cell in cells if (pair := _picture_pair(cell)) is not None)
    drawn = tuple(part for cell in cells for part in figures.parts.get(cell.name, ()) if isinstance(part, Figure))
    shown: tuple[Part, ...] = (Pictures(pairs), *drawn) if pairs else drawn
    return [Details("Pictures", shown, is_open=len(pairs) <= MOST_OPEN_PICTURES)] if shown else []


def _pictured(cells: Sequence[CellAnalysis], figures: Figures) -> list[Part]:
    """Comparisons, differences and contact sheets of the cells that have them; one folded pair of each other cell."""
    parts: list[Part] = [
        Details(f"Pictures of {name}", parts, is_open=len(figures.parts) <= MOST_OPEN_PICTURED_CELLS)
        for name, parts in figures.parts.items()
    ]
    rest = [cell for cell in cells if cell.name not in figures.parts]
    if rest and figures.parts:
        text = (
            f"Drawn are {len(figures.parts)} of {count(len(cells), 'cell')}: those whose outputs differ first. "
            "The others have a pair each below."
        )
        parts.insert(0, Paragraph(text))
    pairs = tuple(pair for cell in rest if (pair := _picture_pair(cell)) is not None)
    return [*parts, Details("Pictures of the other cells", (Pictures(pairs),))] if pairs else parts


def _picture_pair(cell: CellAnalysis) -> PicturePair | None:
    """The worst differing pair, else the first output of each arm; None of videos, which no page shows as a picture."""
    pair = _shown_pair(cell)
    return None if pair is None or PurePosixPath(pair.baseline).suffix.lower() in VIDEO_SUFFIXES else pair


def _shown_pair(cell: CellAnalysis) -> PicturePair | None:
    if cell.outputs.worst is not None:
        return PicturePair(cell.name, cell.outputs.worst.baseline, cell.outputs.worst.candidate)
    firsts = [cell.runs.of_arm(arm)[0].record for arm in ARMS if cell.runs.of_arm(arm)]
    if len(firsts) < len(ARMS) or not all(record.outputs for record in firsts):
        return None
    baseline, candidate = (f"{record.directory}/{record.outputs[0].path}" for record in firsts)
    return PicturePair(cell.name, baseline, candidate)


def _hashes(analysis: CampaignAnalysis) -> list[Part]:
    rows: list[tuple[Text, ...]] = [
        (cell.name, str(index + 1), str(cell.outputs.decided_by), Code(hash_))
        for cell in analysis.cells
        for index, hash_ in enumerate(cell.outputs.hashes[:MOST_HASHES_OF_CELL])
    ]
    head = ("Workload", "Output", "Level", "SHA-256 of the first baseline run")
    return [Details("Hashes", (Table(head, tuple(rows[:MOST_HASHES])),))] if rows else []
