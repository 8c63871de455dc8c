"""What an A/A campaign is for: how far apart this machine puts two runs of one and the same program, by its plan.

The floor is of this machine, this plan and this day. ``--plan-for 1.5% --from-campaign DIR`` plans with it, and
``--floor DIR`` prints it beside a later campaign (:mod:`fuseproof.harness.analysis.floor`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fuseproof.harness.campaign.floor_files import FLOOR_SCHEMA
from fuseproof.harness.number_format import count, number, shortened
from fuseproof.schedules.plan import Arm

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
    from fuseproof.harness.analysis.metrics import MetricResult

MOST_NOISE_TEXTS = 4
LONGEST_REASON = 300
ARM_KEYS = ("flags", "command", "env", "ref", "setup", "python", "time_pattern")
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
        "in_words": {cell.name: text for cell in analysis.cells if (text := noise_text(cell)) is not None},
    }


def noise_texts(analysis: CampaignAnalysis) -> list[str]:
    """``this machine (panda, Worker E2E): two runs of one program differ by ...``, a line a cell, a few cells."""
    found = [text for cell in analysis.cells if (text := noise_text(cell)) is not None]
    more = len(found) - MOST_NOISE_TEXTS
    return [*found[:MOST_NOISE_TEXTS], *([f"this machine: {more} more cells in aa.json"] if more > 0 else [])]


def noise_text(cell: CellAnalysis) -> str | None:
    """How noisy this machine is by one cell's primary timer; None where two blocks have not told it."""
    comparison, primary = cell.verdict.comparison, cell.primary
    if comparison is None or primary is None or comparison.smallest_detectable_effect is None:
        return None
    reach = max(abs(bound) for bound in comparison.interval_used)
    smallest = comparison.smallest_detectable_effect
    blocks = count(len(comparison.blocks), "block")
    found = f"an effect that {blocks} find in 80 % of campaigns is {_percent(smallest)} or more"
    return (
        f"this machine ({cell.name}, {primary.title}): two runs of one program differ by "
        f"{_percent(comparison.noise_floor_median)} as a rule and by {_percent(comparison.noise_floor)} at most; an "
        f"effect below {_percent(reach)} cannot be told from noise here; "
        f"{found if smallest < 1 else f'{blocks} find no effect reliably'}"
    )


def _percent(share: float) -> str:
    return f"{number(100 * share, 2)} %"


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


def _reasons(metric: MetricResult) -> list[dict[str, str]]:
    """Why the A/A has no better word for the timer: who reads the floor must know that others used the machine."""
    if metric.verdict is None or not metric.is_judged:
        return []
    return [
        {"code": reason.code, "detail": shortened(reason.detail, LONGEST_REASON)} for reason in metric.verdict.reasons
    ]


def _timer(metric: MetricResult) -> dict[str, Any] | None:
    comparison = metric.verdict.comparison if metric.verdict is not None else None
    if comparison is None:
        return None
    return {
        "word": metric.word,
        "reasons": _reasons(metric),
        "blocks": len(comparison.blocks),
        "scatter_of_one_run": comparison.scatter,
        "largest_spread_of_one_arm": comparison.noise_floor,
        "median_spread_of_one_arm": comparison.noise_floor_median,
        "apparent_reduction": comparison.reduction,
        "interval": list(comparison.interval_used),
        "level": round(1 - comparison.alpha, 6),
        "smallest_detectable_effect": comparison.smallest_detectable_effect,
    }
