"""The report's section on an ablation: each fast path alone and left out, and whether the parts are the whole."""

from __future__ import annotations

from collections.abc import Callable

from fuseproof.harness.analysis.ablation import ablations_of
from fuseproof.harness.analysis.ablation_effects import CellAblation, Effect, Total, UnitEffects
from fuseproof.harness.analysis.ablation_sentences import (
    MS,
    by_effect,
    milliseconds,
    note_texts,
    prediction_texts,
    share_text,
    sum_texts,
    unit_name,
    whole_text,
)
from fuseproof.harness.analysis.campaign import CampaignAnalysis
from fuseproof.harness.number_format import number
from fuseproof.harness.report.document import Bullets, Details, Paragraph, Part, Section, Strong, Table, Text
from fuseproof.harness.report.layout import Layout
from fuseproof.schedules.order import ArmLetter
from fuseproof.schedules.plan import Plan

MOST_NOTES = 8
Picked = Callable[[Total], Effect | None]
NOTE = (
    "Milliseconds saved, positive where time is saved, with 95 % intervals each by itself; % of the time without fast "
    "paths. Alone: with it and what it needs, against just what it needs. Left out: without it and what needs it, "
    "against all. Interaction: left out minus alone. Arms share their blocks, and the intervals of sums count a shared "
    "arm with its whole weight."
)
PREDICTED_NOTE = (
    "Predicted: microseconds saved a call on the device, by fastpaths bench, times the fused calls that a run counted."
)


def shown_letters(plan: Plan) -> tuple[ArmLetter, ...]:
    """The arms that the setup shows side by side: of an ablation no fast path and all, which say what all run."""
    return plan.letters if plan.ablation is None else plan.letters[:2]


def further_arms(plan: Plan) -> str:
    """The arms of an ablation that the setup does not show, by name; their flags are in Reproduce and campaign.json."""
    named = ", ".join(f"{letter} {plan.arm(letter).name}" for letter in plan.letters[len(shown_letters(plan)) :])
    return f"Arms beside those of the setup: {named}."


def ablation_section(analysis: CampaignAnalysis, layout: Layout) -> Section | None:
    """A table a workload with what it sums to; None for a campaign that is no ablation."""
    cells = ablations_of(analysis)
    if not cells:
        return None
    parts: list[Part] = []
    for cell in cells[: layout.rows]:
        parts += _cell_parts(cell, layout)
    if any(cell.units for cell in cells):
        has_predicted = any(unit.prediction for cell in cells for unit in cell.units)
        legend = f"{NOTE} {PREDICTED_NOTE}" if has_predicted else NOTE
        parts.append(Details("How to read it", (Paragraph(legend), Paragraph(further_arms(analysis.plan)))))
    return Section("Ablation", tuple(parts))


def _cell_parts(cell: CellAblation, layout: Layout) -> list[Part]:
    lead = Paragraph((Strong(cell.cell), f": {whole_text(cell)}"))
    if not cell.units:
        return [lead]
    sums = Bullets(tuple(sum_texts(cell)))
    table = _table(cell)
    notes = note_texts(cell)
    more: list[Text] = [*notes[:MOST_NOTES]]
    more += [f"{len(notes) - MOST_NOTES} more such notes in report.json."] if len(notes) > MOST_NOTES else []
    predicted = prediction_texts(cell)
    beside: list[Part] = [Bullets(tuple(more))] if more else []
    beside += [Bullets(tuple(predicted))] if predicted else []
    if layout.folds_ablation:
        return [lead, sums, Details(f"Fast paths of {cell.cell}, one by one", (table, *beside))]
    return [lead, sums, table, *beside]


def _table(cell: CellAblation) -> Table:
    columns = [
        *(["Alone, ms", "Alone, %"] if cell.alone else []),
        *(["Left out, ms", "Left out, %"] if cell.left_out else []),
        *(["Interaction, ms"] if cell.alone and cell.left_out else []),
        *(["Predicted, ms"] if cell.has_bench else []),
    ]
    rows = [_row(cell, unit) for unit in by_effect(cell)]
    rows.append(_total_row(cell, "Sum", lambda total: total.sum))
    rows.append(_total_row(cell, "The whole", lambda _: cell.whole))
    rows.append(_total_row(cell, "Sum − whole", lambda total: total.difference))
    return Table(("Fast path", *columns), tuple(rows), numeric=range(1, 1 + len(columns)))


def _row(cell: CellAblation, unit: UnitEffects) -> tuple[Text, ...]:
    return (
        unit_name(unit),
        *(_pair(unit.alone) if cell.alone else ()),
        *(_pair(unit.left_out) if cell.left_out else ()),
        *((milliseconds(unit.interaction),) if cell.alone and cell.left_out else ()),
        *((_predicted(unit),) if cell.has_bench else ()),
    )


def _pair(effect: Effect | None) -> tuple[str, str]:
    return milliseconds(effect), share_text(effect)


def _predicted(unit: UnitEffects) -> str:
    if unit.prediction is None:
        return ""
    low, high = (number(MS * value, 1) for value in unit.prediction.saved_s)
    return low if low == high else f"{low} to {high}"


def _total_row(cell: CellAblation, name: str, of: Picked) -> tuple[Text, ...]:
    row: list[Text] = [Strong(name)]
    for total in (cell.alone, cell.left_out):
        if total is not None:
            row += _pair(of(total))
    row += [""] * (bool(cell.alone and cell.left_out) + cell.has_bench)
    return tuple(row)
