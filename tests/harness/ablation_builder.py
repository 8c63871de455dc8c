"""Ablations as campaign folders: levels by units in force, an interaction where one is told, a little jitter."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fuseproof.schedules.ablation import By, Units, arms_of, fastpaths_flag
from fuseproof.schedules.order import arms_in_order, letters_of, orientation
from tests.harness.campaign_builder import CampaignBuilder, Run

UNITS = {"blocks": ("blocks",), "norm": ("norm",), "vae": ("vae_norms", "vae_convolutions")}
NEEDS = {"norm": ("blocks",)}
SAVED_S = {"blocks": 1.0, "norm": 0.5, "vae": 0.25}
CALLS = 100
Level = Callable[[Units], float]


def additive(units: Units) -> float:
    """Seconds of an arm where every unit saves its own, in any company."""
    return 10.0 - sum(SAVED_S[unit] for unit in units)


def ablation_campaign(
    directory: Path,
    *,
    level: Level = additive,
    blocks: int = 2,
    by: By = "both",
    jitter: float = 0.001,
    units: Mapping[str, tuple[str, ...]] = UNITS,
    needs: Mapping[str, tuple[str, ...]] = NEEDS,
    changes: Callable[[str, Units], dict[str, Any]] = lambda name, units: {},
    drift: Callable[[float], float] = lambda place: 0.0,
) -> CampaignBuilder:
    """A whole campaign; ``changes`` are what an arm's runs have beside their time, by its name and units.

    ``drift`` are seconds more, by the place in the block from -1 to 1.
    """
    arms = arms_of(units, needs, by)
    flags = [fastpaths_flag(units, own) for own in arms.values()]
    keys = ["baseline", "candidate", *(name.replace(":", "-") for name in list(arms)[2:])]
    builder = CampaignBuilder(
        directory,
        blocks=blocks,
        baseline_flags=flags[0],
        candidate_flags=flags[1],
        further=dict(zip(keys[2:], flags[2:], strict=True)),
    )
    for key, name in zip(keys, arms, strict=True):
        builder.plan["arms"][key]["name"] = name
    builder.plan["ablation"] = {
        "by": by,
        "units": dict(units),
        "needs": dict(needs),
        "arms": {key: [unit for unit in units if unit in own] for key, own in zip(keys, arms.values(), strict=True)},
    }
    chance = random.Random(7)
    by_letter = dict(zip(letters_of(len(arms)), arms.items(), strict=True))
    for block in range(blocks):
        runs = []
        order = arms_in_order(orientation(block, "mirrored", len(arms)))
        for slot, letter in enumerate(order):
            name, own = by_letter[letter]
            wobble, drifted = chance.gauss(), drift(2 * slot / (len(order) - 1) - 1)
            told: dict[str, Any] = {
                "worker_s": level(own) * (1 + jitter * wobble) + drifted,
                "sites": sites(units, own),
            }
            runs.append(Run(**told | changes(name, own)))
        builder.block(runs, block=block + 1)
    return builder


def sites(units: Mapping[str, tuple[str, ...]], own: Units) -> dict[str, Any]:
    """What an arm reports of every site."""
    return {
        site: {
            "state": "fused" if unit in own else "off",
            "reason": None if unit in own else "not requested",
            "calls_fused": CALLS if unit in own else 0,
            "calls_eager": 0,
        }
        for unit, names in units.items()
        for site in names
    }
