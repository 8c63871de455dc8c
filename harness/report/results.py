"""The Result section: verdicts, blocks in the form pull requests know, statistics, and which code ran."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
from fuseproof.harness.analysis.effects import interval_text, percent_text, point_doubt
from fuseproof.harness.analysis.metrics import TITLES, MetricResult
from fuseproof.harness.analysis.planning import plans_of
from fuseproof.harness.analysis.runs import ARMS
from fuseproof.harness.number_format import MISSING, count, number, percent, seconds
from fuseproof.harness.report.between_cells import between_cells_parts
from fuseproof.harness.report.document import (
    Details,
    Paragraph,
    Part,
    Section,
    Strong,
    Table,
    Text,
    bullets,
)
from fuseproof.harness.report.fastpaths import fastpath_parts
from fuseproof.harness.report.figures import slot_strip, stage_parts
from fuseproof.harness.report.floor import floor_parts
from fuseproof.harness.report.layout import Layout
from fuseproof.harness.report.overview import notable_cells
from fuseproof.harness.statistics.comparison import Comparison
from fuseproof.harness.statistics.reasons import share_of_log, share_of_scatter, signed_percent

LEGEND = (
    "Reduction = 1 − candidate/baseline: positive is less time, negative is more. Means and mean form are arithmetic, "
    "all runs kept; the verdict rests on the log-ratio form (geometric means) with its interval. Spread F: largest "
    "difference of two runs of one arm."
)
ASSUMPTION = (
    "Assumed: the effect does not change from block to block by more than the runs scatter; where it does, false "
    "verdicts are more frequent than 5 %."
)
GLOSSARY = (
    "Reduction: 1 − ratio of the geometric means. Interval: from the scatter of the runs; interval used: widened by "
    "the timer's step and where blocks differ; the verdict rests on it. df: degrees of freedom. Mean form: by "
    "arithmetic means. Pair median: from the median over all A×B pairs of a block, each a candidate/baseline ratio of "
    "two runs of that block, of all blocks together; their number is even, and the middle two are averaged "
    "geometrically. Median and minimum of arms: by each arm's median and fastest run. Scatter s: standard deviation "
    "of one run, in per cent of its time. F: largest difference of two runs of one arm in one block, as a share of "
    "their mean; F median: the median of them. Drift: by how much each slot takes longer (+) than the one before, "
    "least squares. Arms separated: one arm won every block without overlap. Smallest detectable: found in 80 % of "
    "such campaigns. The formulas are in fuseproof's docs/verdicts.md."
)
LEVEL = "95 %"
RESULT_HEAD = (
    "Workload",
    "Timer",
    "Baseline → candidate, s (mean reduction)",
    f"Reduction, {LEVEL} interval",
    "Pair median",
    "Spread F",
    "Verdict",
)
STATISTICS_HEAD = (
    "Workload",
    "Timer",
    "Reduction %",
    "Interval",
    "Interval used",
    "df",
    "Mean form",
    "Pair median",
    "Median of arms",
    "Minimum of arms",
    "Scatter s",
    "F",
    "F median",
    "Drift per slot, by block",
    "Arms separated",
    "Smallest detectable",
)
MOST_DRIFTS = 8
MOST_PLANNED_CELLS = 40
Entry = TypeVar("Entry")


def result_section(analysis: CampaignAnalysis, layout: Layout) -> Section:
    """The table of verdicts, primary timer first; blocks, statistics and fast paths below it."""
    cells = notable_cells(analysis)
    shown = cells[: layout.verdict_rows]
    parts: list[Part] = [_result_table(shown, layout)]
    if len(cells) > len(shown):
        parts.append(Paragraph(f"{count(len(cells) - len(shown), 'more cell')} in report.html and report.json."))
    blocks = _block_table(shown if layout.shows_blocks else analysis.cells)
    parts += blocks if layout.shows_blocks else []
    parts += bullets((Strong(cell.name), f": {cell.qualification.sentence}.") for cell in shown if _is_asked(cell))
    parts += floor_parts(cells, layout)
    parts += between_cells_parts(analysis, layout)
    parts.append(Paragraph(LEGEND))
    if layout.has_figures:
        parts += [strip for cell in shown if (strip := slot_strip(cell)) is not None]
        parts += stage_parts(shown)
    if layout.has_cell_details:
        folded = blocks and not layout.shows_blocks
        parts += [Details("Blocks", tuple(blocks))] if folded else []
        parts += statistics_details(analysis)
    parts += fastpath_parts(analysis, layout)
    return Section("Result", tuple(parts))


def _is_asked(cell: CellAnalysis) -> bool:
    return cell.qualification.is_asked


def _result_table(cells: Sequence[CellAnalysis], layout: Layout) -> Table:
    rows: list[tuple[Text, ...]] = []
    for cell in cells:
        if not cell.metrics:
            rows.append(_wordless_row(cell))
            continue
        metrics = cell.metrics if layout.shows_all_timers else cell.metrics[:1]
        rows += [_metric_row(cell, metric) for metric in metrics]
    return Table(_head(cells), tuple(rows), numeric=range(2, 6))


def _head(cells: Sequence[CellAnalysis]) -> tuple[str, ...]:
    """Of several candidates each interval has a level of its own, so that all of a cell hold together."""
    found = [cell.verdict.comparison for cell in cells if cell.verdict.comparison is not None]
    level = found[0].level_text if found and found[0].arm_count > len(ARMS) else LEVEL
    return tuple(title.replace(LEVEL, level) for title in RESULT_HEAD)


def _wordless_row(cell: CellAnalysis) -> tuple[Text, ...]:
    """A cell without a ratio: the codes say why."""
    codes = ", ".join(dict.fromkeys(reason.code for reason in cell.verdict.reasons))
    return (cell.name, *[MISSING] * (len(RESULT_HEAD) - 2), Strong(f"{cell.word.value} ({codes})"))


def _metric_row(cell: CellAnalysis, metric: MetricResult) -> tuple[Text, ...]:
    name = cell.name if metric.is_primary else ""
    title: Text = (Strong(metric.title), " (primary)") if metric.is_primary else metric.title
    if metric.verdict is None or metric.verdict.comparison is None:
        return (name, title, MISSING, MISSING, MISSING, MISSING, f"n/a: {metric.note}")
    comparison, word = metric.verdict.comparison, metric.word
    codes = f" ({metric.verdict.headline.code})" if metric.is_judged and metric.verdict.headline else ""
    return (
        name,
        title,
        _means(comparison.baseline.mean_s, comparison.candidate.mean_s, comparison.mean_reduction),
        f"{_point(cell, metric)} {_interval(cell, comparison)}",
        percent(comparison.pair_median_reduction),
        percent(comparison.noise_floor),
        Strong(f"{word}{codes}") if metric.is_primary else f"{word}{codes}",
    )


def _interval(cell: CellAnalysis, comparison: Comparison) -> str:
    """Of the runs' scatter; of an ablation the one that the verdict rests on, as in its summary."""
    bounds = comparison.interval_used if cell.is_ablation else comparison.interval
    return interval_text(comparison, bounds, is_ablation=cell.is_ablation)


def _point(cell: CellAnalysis, metric: MetricResult) -> str:
    """The point estimate, except where means and medians disagree: then only the interval is quoted."""
    verdict = metric.verdict
    if verdict is None or verdict.comparison is None:
        return MISSING
    if point_doubt(verdict, is_ablation=cell.is_ablation) is not None:
        return "not quoted,"
    return percent_text(verdict.comparison.reduction)


def _means(baseline_s: float, candidate_s: float, reduction: float) -> str:
    return f"{seconds(baseline_s)} → {seconds(candidate_s)} ({percent(reduction)})"


def _block_table(cells: Sequence[CellAnalysis]) -> list[Part]:
    """One row a block, one column a timer: the form pull requests know."""
    judged = [cell for cell in cells if cell.metrics]
    recorded = {metric.name for cell in judged for metric in cell.metrics if metric.verdict is not None}
    names = [name for name in TITLES if name in recorded]
    rows: list[tuple[Text, ...]] = []
    for cell in judged:
        comparisons = {metric.name: metric.verdict.comparison for metric in cell.metrics if metric.verdict is not None}
        for index, block in enumerate(cell.runs.blocks):
            times = [_block_cell(comparisons.get(name), index) for name in names]
            rows.append((f"{cell.name}-r{block.number}", block.orientation, *times))
    head = ("Workload / block", "Order", *(TITLES[name] for name in names))
    return [Table(head, tuple(rows), numeric=range(2, len(head)))] if rows else []


def _block_cell(comparison: Comparison | None, index: int) -> str:
    if comparison is None:
        return MISSING
    block = comparison.blocks[index]
    return _means(block.baseline_mean_s, block.candidate_mean_s, block.mean_reduction)


def statistics_details(analysis: CampaignAnalysis) -> list[Part]:
    """Every number behind the verdicts, folded away."""
    rows = [
        _statistics_row(cell, metric.title, metric.verdict.comparison)
        for cell in analysis.cells
        for metric in cell.metrics
        if metric.verdict is not None and metric.verdict.comparison is not None
    ]
    if not rows:
        return []
    head, shown = _without_repeated_interval(rows)
    table = Table(head, shown, numeric=range(2, len(head)))
    blocks = bullets(text for cell in analysis.cells[:MOST_PLANNED_CELLS] if (text := _to_resolve(cell)) is not None)
    return [Details("Statistics", (table, Paragraph(GLOSSARY), Paragraph(ASSUMPTION), *blocks))]


def _to_resolve(cell: CellAnalysis) -> Text | None:
    """``To resolve 1.5 %: 2 blocks, ...``, from the scatter of the cell's primary timer."""
    found = plans_of(cell.primary) if cell.primary is not None else ()
    if not found or cell.primary is None:
        return None
    texts = ", ".join(plan.text for plan in found)
    return (Strong(cell.name), f": to resolve ({cell.primary.title}, in 80 % of campaigns) {texts}.")


def _without_repeated_interval(
    rows: Sequence[tuple[Text, ...]],
) -> tuple[tuple[str, ...], tuple[tuple[Text, ...], ...]]:
    """Head and rows, without the interval used where it is the interval itself in every row."""
    printed, used = STATISTICS_HEAD.index("Interval"), STATISTICS_HEAD.index("Interval used")
    if any(row[printed] != row[used] for row in rows):
        return STATISTICS_HEAD, tuple(rows)
    return _without(STATISTICS_HEAD, used), tuple(_without(row, used) for row in rows)


def _without(row: tuple[Entry, ...], index: int) -> tuple[Entry, ...]:
    return row[:index] + row[index + 1 :]


def _statistics_row(cell: CellAnalysis, title: str, comparison: Comparison) -> tuple[Text, ...]:
    detectable = comparison.smallest_detectable_effect
    printed, used = (
        interval_text(comparison, bounds, 3, is_ablation=cell.is_ablation)
        for bounds in (comparison.interval, comparison.interval_used)
    )
    return (
        cell.name,
        title,
        number(100 * comparison.reduction, 3),
        printed,
        used,
        str(comparison.degrees_of_freedom),
        percent(comparison.mean_reduction, 3),
        percent(comparison.pair_median_reduction, 3),
        percent(comparison.median_reduction, 3),
        percent(comparison.minimum_reduction, 3),
        percent(share_of_scatter(comparison.scatter), 3),
        percent(comparison.noise_floor),
        percent(comparison.noise_floor_median),
        ", ".join(signed_percent(share_of_log(block.drift_per_slot), 3) for block in comparison.blocks[:MOST_DRIFTS]),
        "yes" if comparison.arms_are_separated else "no",
        "none" if detectable is not None and detectable >= 1 else percent(detectable),
    )
