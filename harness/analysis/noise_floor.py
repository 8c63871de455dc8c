"""What an A/A campaign is for: how far apart this machine puts two runs of one and the same program, by its plan.

The floor is of this machine, this plan and this day. ``--plan-for 1.5% --from-campaign DIR`` plans with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
    from fuseproof.harness.analysis.metrics import MetricResult

FLOOR_SCHEMA = "fuseproof.floor/1"


def noise_floor(analysis: CampaignAnalysis) -> dict[str, Any] | None:
    """The floor as strict JSON values, by cell and timer, all as shares; None unless both arms are the same."""
    if not analysis.is_self_comparison:
        return None
    environment = analysis.campaign.environment
    gpus = environment.get("gpus")
    names = [gpu.get("name") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return {
        "schema": FLOOR_SCHEMA,
        "campaign": analysis.campaign.name,
        "created": analysis.campaign.created,
        "gpus": names,
        "min_effect": analysis.plan.min_effect,
        "cells": {cell.name: _timers(cell) for cell in analysis.cells},
    }


def _timers(cell: CellAnalysis) -> dict[str, Any]:
    return {metric.name: found for metric in cell.metrics if (found := _timer(metric)) is not None}


def _timer(metric: MetricResult) -> dict[str, Any] | None:
    comparison = metric.verdict.comparison if metric.verdict is not None else None
    if comparison is None:
        return None
    return {
        "word": metric.word,
        "blocks": len(comparison.blocks),
        "scatter_of_one_run": comparison.scatter,
        "largest_spread_of_one_arm": comparison.noise_floor,
        "median_spread_of_one_arm": comparison.noise_floor_median,
        "apparent_reduction": comparison.reduction,
        "interval": list(comparison.interval_used),
        "smallest_detectable_effect": comparison.smallest_detectable_effect,
    }
