"""A quick run as text: numbers with their intervals, and never a word for them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fuseproof.harness.analysis.effects import interval_text, means_text, percent_text
from fuseproof.harness.analysis.metrics import MetricResult
from fuseproof.harness.analysis.quick import HOST_MEMORY, NO_EVIDENCE, QuickCell
from fuseproof.harness.analysis.sentences import outputs_line
from fuseproof.harness.number_format import count, number

if TYPE_CHECKING:
    from fuseproof.cli.abba_quick import QuickResult

WIDTH = 100


def quick_lines(result: QuickResult) -> Iterator[str]:
    """The whole result as lines of plain text, not escaped."""
    loads = " + ".join(f"{number(load_ms / 1e3, 1)} s" for load_ms in result.loads_ms) or "not reached"
    title = result.plan.title or result.plan.name
    yield f"EXPLORATORY, no verdict: {title}"
    yield f"one process, {count(len(result.loads_ms), 'model load')} ({loads}), fast paths mounted anew for every slot"
    for cell in result.cells:
        yield from _cell_lines(cell)
    if result.status != "complete":
        how = "interrupted" if result.is_interrupted else "ended by a slot that failed"
        yield f"the run was {how}; a block that was cut short does not count, and later cells did not run"
    yield from textwrap.wrap(NO_EVIDENCE, WIDTH)
    yield f"  next: {result.evidence_command}  (fresh processes, a verdict, a folder to hand over)"


def _cell_lines(cell: QuickCell) -> Iterator[str]:
    blocks = cell.runs.blocks
    orders = f" ({' '.join(block.orientation for block in blocks)})" if blocks else ""
    yield f"{cell.name}: {len(blocks)} of {count(cell.runs.planned_blocks, 'block')}{orders}"
    for reason in cell.objections:
        yield f"  INVALID, no ratio: {reason.code}: {reason.detail}"
    if not blocks:
        yield "  no whole block ran, so there is no number"
    for metric in cell.metrics:
        yield f"  {_metric_line(metric)}"
    if blocks:
        yield f"  {outputs_line(cell.outputs)}"
        yield f"  {HOST_MEMORY if cell.memory is None else cell.memory.sentence}"
        yield f"  Fused calls: {cell.fastpaths.fused_calls('A')} in the baseline, {_candidate_calls(cell)}."
    kept_out = "; ".join(entry.sentence for entry in cell.kept_out if entry.slots)
    yield from [f"  Kept out of the times: {kept_out}."] if kept_out else []
    yield f"  Arms differ only in: {'; '.join(cell.treatment) or 'nothing (A/A)'}."
    for text in cell.warnings:
        yield f"  warning: {text}"


def _metric_line(metric: MetricResult) -> str:
    comparison = None if metric.verdict is None else metric.verdict.comparison
    if comparison is None:
        return f"{metric.title}: n/a ({metric.note})"
    bounds = interval_text(comparison, comparison.interval_used)
    bounds = bounds if bounds.endswith("%") else f"{bounds} %"
    return (
        f"{metric.title}: reduction {percent_text(comparison.reduction)}, "
        f"{100 * (1 - comparison.alpha):g} % interval {bounds}, spread F {percent_text(comparison.noise_floor)}, "
        f"{means_text(comparison)}"
    )


def _candidate_calls(cell: QuickCell) -> str:
    sites = cell.fastpaths.fused_sites("B")
    return f"{cell.fastpaths.fused_calls('B')} in the candidate at {count(sites, 'site')}"
