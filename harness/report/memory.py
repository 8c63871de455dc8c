"""The Memory section: peaks in GiB and what may be claimed."""

from __future__ import annotations

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
from fuseproof.harness.number_format import count, gib, gib_change
from fuseproof.harness.report.document import Bullets, Paragraph, Part, Section, Strong, Table, Text
from fuseproof.harness.report.layout import Layout

HEAD = ("Workload", "Peak, mean of the runs", "Baseline GiB", "Candidate GiB", "Change", "Spread in one arm, GiB")


def memory_section(analysis: CampaignAnalysis, layout: Layout) -> Section:
    """A table and a sentence a cell; a compact layout lists only the cells whose memory moved."""
    cells = [cell for cell in analysis.cells if cell.memory.rows]
    if not cells:
        return Section("Memory", (Paragraph("No cell with comparable runs recorded its memory in every run."),))
    moved = [cell for cell in cells if _has_moved(cell)]
    is_short = layout.shows_all_timers and len(cells) <= layout.rows
    shown = cells if is_short else moved[: layout.rows]
    rows = tuple(row for cell in shown for row in _rows(cell, is_short=is_short))
    parts: list[Part] = [Table(HEAD, rows, numeric=range(2, len(HEAD)))] if rows else []
    if is_short:
        parts.append(Bullets(tuple(_sentence(cell) for cell in shown)))
    else:
        rest = len(cells) - len(shown)
        still = len(cells) - len(moved)
        parts.append(Paragraph(f"Memory is unchanged in {still} of {count(len(cells), 'cell')}; {rest} not listed."))
    return Section("Memory", tuple(parts))


def _has_moved(cell: CellAnalysis) -> bool:
    return cell.memory.agreement not in ("unchanged", "unknown")


def _sentence(cell: CellAnalysis) -> Text:
    return (Strong(cell.name), f": {cell.memory.sentence.removeprefix('Memory: ')}")


def _rows(cell: CellAnalysis, *, is_short: bool) -> list[tuple[Text, ...]]:
    return [
        (
            cell.name,
            row.title if row.is_believable else f"{row.title}: not believable",
            gib(row.baseline_mib),
            gib(row.candidate_mib),
            gib_change(row.change_mib),
            gib(row.same_arm_spread_mib),
        )
        for row in (cell.memory.rows if is_short else cell.memory.rows[:1])
    ]
