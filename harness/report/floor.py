"""The A/A floor beside the results: what one program differs from itself by, cell by cell."""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.harness.analysis.campaign import CellAnalysis
from fuseproof.harness.report.document import Bullets, Details, Paragraph, Part, Strong, Text
from fuseproof.harness.report.layout import Layout

MOST_OPEN = 4
NOTE = "The floor describes: a verdict rests on the scatter of its own runs, and no word changes by the floor."


def floor_parts(cells: Sequence[CellAnalysis], layout: Layout) -> list[Part]:
    """A line a cell, folded where there are many or no room; nothing for a campaign without a floor."""
    lines: list[Text] = [(Strong(cell.name), f": {cell.floor.text}.") for cell in cells if cell.floor is not None]
    if not lines:
        return []
    parts = (Bullets(tuple(lines)), Paragraph(NOTE))
    is_open = layout.shows_all_timers and len(lines) <= MOST_OPEN
    return list(parts) if is_open else [Details("A/A floor by cell", parts)]
