"""What an A/A campaign is for: how far apart this machine puts two runs of one and the same program, by its plan.

The floor is of this machine, this plan and this day. ``--plan-for 1.5% --from-campaign DIR`` plans with it, and
``--floor DIR`` prints it beside a later campaign (:mod:`fuseproof.harness.analysis.floor`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fuseproof.harness.campaign.floors import FLOOR_SCHEMA
from fuseproof.schedules.plan import Arm

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
    from fuseproof.harness.analysis.metrics import MetricResult

ARM_KEYS = ("flags", "command", "env", "ref", "setup", "python")
"""What decides what an arm runs."""


def noise_floor(analysis: CampaignAnalysis) -> dict[str, Any] | None:
    """The floor as strict JSON values, by cell and timer, all as shares; None unless both arms are the same."""
    if not analysis.is_self_comparison:
        return None
    cards = tuple(dict.fromkeys(card for cell in analysis.cells if cell.gpu for card in cell.gpu.cards))
    conditions = floor_conditions(analysis.campaign.environment, cards)
    return {
        "schema": FLOOR_SCHEMA,
        "campaign": analysis.campaign.name,
        "created": analysis.campaign.created,
        "gpus": conditions["card models"],
        "min_effect": analysis.plan.min_effect,
        "conditions": conditions,
        "arm": arm_sha256(analysis.plan.arm("A")),
        "workloads": {cell.name: text_sha256(cell.runs.cell.flags) for cell in analysis.cells},
        "cells": {cell.name: _timers(cell) for cell in analysis.cells},
    }


def floor_conditions(environment: Mapping[str, Any], cards: Sequence[str]) -> dict[str, Any]:
    """What two campaigns must share for one to be the other's floor, by key; JSON values.

    ``cards`` are the UUIDs that did the work; where they are not known, those that the session could see.
    """
    gpus = environment.get("gpus")
    known = [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list | tuple) else []
    uuids = list(cards) or [str(uuid) for uuid in environment.get("visible_gpu_uuids") or () if uuid]
    used = [gpu for gpu in known if not uuids or gpu.get("uuid") in uuids]
    processor = environment.get("processor")
    return {
        "cards": sorted(uuids),
        "card models": sorted(str(gpu.get("name")) for gpu in used),
        "driver": sorted({str(gpu["driver_version"]) for gpu in used if gpu.get("driver_version")}),
        "processor": processor.get("model") if isinstance(processor, Mapping) else environment.get("cpu"),
        "versions": _versions(environment),
    }


def arm_sha256(arm: Arm) -> str:
    """Of what an arm runs, without its name; a hash, because flags and variables may name private paths."""
    facts = {key: value for key in ARM_KEYS if (value := getattr(arm, key, None))}
    return text_sha256(json.dumps(facts, sort_keys=True))


def text_sha256(text: str) -> str:
    """Of a text's UTF-8 bytes."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _versions(environment: Mapping[str, Any]) -> dict[str, str]:
    python = environment.get("python")
    found = {"python": python.get("version") if isinstance(python, Mapping) else python}
    for key in ("libraries", "versions"):
        own = environment.get(key)
        found |= own if isinstance(own, Mapping) else {}
    return {str(name): str(version) for name, version in sorted(found.items()) if version is not None}


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
        "level": round(1 - comparison.alpha, 6),
        "smallest_detectable_effect": comparison.smallest_detectable_effect,
    }
