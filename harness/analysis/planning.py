"""How many blocks the next campaign needs: from the scatter that was measured, to the effect that somebody wants found.

The scatter of a report is an estimate from few runs, so it is inflated before planning with it
(:func:`fuseproof.harness.statistics.detectable.estimated_scatter_factor`); a scatter that is known is taken as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuseproof.errors import UsageError
from fuseproof.harness.analysis.metrics import MetricResult
from fuseproof.harness.number_format import percent
from fuseproof.harness.statistics.comparison import Comparison
from fuseproof.harness.statistics.detectable import (
    MOST_PLANNED_BLOCKS,
    estimated_scatter_factor,
    fewest_blocks,
    plan_for,
)
from fuseproof.harness.statistics.next_steps import without_campaign_flags

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis

FACTORS = (1.5, 2.0, 3.0, 5.0)
"""Effects that a report plans for, in minimum effects; just above one there is no answer but patience."""
LARGEST_SCATTER = 0.99
SMALLEST_EFFECT = 1e-6
"""A microsecond of a second."""
FALLBACK_EFFECTS = (0.005, 0.01, 0.02, 0.05)
"""Where the minimum effect is 0."""


@dataclass(frozen=True)
class EffectPlan:
    """One wanted effect (a share) and the even number of blocks that find it in 80 % of campaigns; None: none do."""

    effect: float
    blocks: int | None

    @property
    def text(self) -> str:
        """``1.5 %: 4 blocks``."""
        unplanned = f"more than {MOST_PLANNED_BLOCKS} blocks (use a larger workload)"
        return f"{100 * self.effect:g} %: {unplanned if self.blocks is None else f'{self.blocks} blocks'}"


def plans_of(metric: MetricResult) -> tuple[EffectPlan, ...]:
    """Blocks for a few effects, from the scatter of one timer; empty for a timer not judged or with one block."""
    comparison = metric.verdict.comparison if metric.verdict is not None and metric.is_judged else None
    if comparison is None or len(comparison.blocks) < 2:
        return ()
    scatter = planning_scatter(comparison)
    return tuple(
        EffectPlan(effect, fewest_blocks(effect, scatter, min_effect=comparison.min_effect, arms=comparison.arm_count))
        for effect in _effects(comparison.min_effect)
    )


def planning_scatter(comparison: Comparison) -> float:
    """The scatter of one run to plan with, as a share: the measured one, inflated because it is an estimate."""
    factor = estimated_scatter_factor(len(comparison.blocks), comparison.arm_count)
    return min(comparison.scatter * factor, LARGEST_SCATTER)


def plan_lines(analysis: CampaignAnalysis, effect: float, min_effect: float | None = None) -> list[str]:
    """``panda, Worker E2E: to resolve 1.5 %: 4 blocks find ...``, a line a cell, from each primary timer.

    ``effect`` is a share, ``min_effect`` that of the next campaign (None: of this one). Raises UsageError for an effect
    outside (0, 1).
    """
    lines = []
    for cell in analysis.cells:
        comparison, primary = cell.verdict.comparison, cell.primary
        if comparison is None or primary is None or len(comparison.blocks) < 2:
            lines.append(f"{cell.name}: no scatter to plan with; it takes two complete blocks")
            continue
        smallest = comparison.min_effect if min_effect is None else min_effect
        factor = estimated_scatter_factor(len(comparison.blocks), comparison.arm_count)
        how = (
            f"one run scatters by {percent(comparison.scatter, 3).replace('%', ' %')}, taken × {factor:g} because few "
            "runs estimate it"
        )
        text = plan_line(effect, planning_scatter(comparison), smallest, comparison.arm_count)
        text = text if analysis.campaign.origin is None else without_campaign_flags(text)
        lines.append(f"{cell.name}, {primary.title} ({how}): {text}")
    return lines


def plan_line(effect: float, scatter: float, min_effect: float, arms: int = 2) -> str:
    """``to resolve 1.5 %: 4 blocks find 1.25 % in 80 % of campaigns ... Run --blocks 4.``"""
    if 0 < effect < SMALLEST_EFFECT:
        raise UsageError(
            f"An effect of {100 * effect:g} % is smaller than any clock tells; the smallest to plan for is "
            f"{100 * SMALLEST_EFFECT:g} %.",
            next_step="Name the effect that matters: --plan-for 1%.",
        )
    plan = plan_for(effect, scatter, min_effect=min_effect, arms=arms)
    return f"to resolve {100 * effect:g} %: {plan.reason}. {plan.next_step}"


def _effects(min_effect: float) -> tuple[float, ...]:
    if min_effect <= 0:
        return FALLBACK_EFFECTS
    return tuple(round(factor * min_effect, 10) for factor in FACTORS if factor * min_effect < 1)
