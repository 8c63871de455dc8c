"""The Result section's table of cells against the cells they name as reference: speed and pictures, unpaired."""

from __future__ import annotations

from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.analysis.cell_references import CellPair, TimerBetween
from fuseproof.harness.analysis.sentences import psnr_text, ssim_text
from fuseproof.harness.number_format import MISSING, interval, percent, seconds
from fuseproof.harness.report.document import Details, Paragraph, Part, Table, Text
from fuseproof.harness.report.layout import Layout

HEAD = ("Workload against", "Timer", "Reference → workload, s", "Reduction, 95 % Welch", "Outputs")
NOTE = (
    "Cells against their reference, candidate against candidate: unpaired runs of cells that ran one after the other, "
    "drift between them included. Descriptive; no verdict."
)


def between_cells_parts(analysis: CampaignAnalysis, layout: Layout) -> list[Part]:
    """One row a timer of each cell that names a reference; folded where the main part is short of room."""
    if not analysis.between_cells:
        return []
    rows = [row for pair in analysis.between_cells for row in _rows(pair)]
    parts = (Table(HEAD, tuple(rows), numeric=range(2, 4)), Paragraph(NOTE))
    if layout.shows_all_timers:
        return list(parts)
    return [Details("Cells against their reference", parts)]


def _rows(pair: CellPair) -> list[tuple[Text, ...]]:
    name = f"{pair.cell} against {pair.reference}"
    if not pair.timers:
        return [(name, MISSING, MISSING, f"no ratio: {pair.no_ratio or 'no timer in both'}", outputs_text(pair))]
    return [
        (name if index == 0 else "", timer.title, *_numbers(timer), outputs_text(pair) if index == 0 else "")
        for index, timer in enumerate(pair.timers)
    ]


def _numbers(timer: TimerBetween) -> tuple[str, str]:
    bounds = f"({timer.no_interval})" if timer.interval is None else interval(*timer.interval)
    reduction = f"{percent(timer.reduction).replace('%', ' %')} {bounds}"
    return f"{seconds(timer.reference_s)} → {seconds(timer.cell_s)}", reduction


def outputs_text(pair: CellPair) -> str:
    """``identical in raw arrays``, or the worst pair's SSIM and PSNR; and whether they say anything of quality."""
    evidence = f" ({pair.no_evidence})" if pair.no_evidence else ""
    if pair.no_outputs is not None:
        return pair.no_outputs
    if pair.same_level is not None:
        return f"identical in {pair.same_level}"
    if pair.worst is None:
        return "pixels identical, raw arrays differ"
    if pair.worst.comparison is None:
        return f"not compared: {pair.worst.error}"
    if pair.worst.comparison.mismatch is not None:
        return f"not compared: {pair.worst.comparison.mismatch}"
    return f"differ: SSIM {ssim_text(pair.worst)}, PSNR {psnr_text(pair.worst)}{evidence}"
