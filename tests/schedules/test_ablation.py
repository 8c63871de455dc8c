"""Which arms an ablation has, in which order they run, and plans whose arms are not those of their ablation."""

from __future__ import annotations

from typing import Any

import pytest

from fuseproof.errors import UsageError
from fuseproof.schedules.ablation import Ablation, arms_of, fastpaths_flag, without_fastpaths
from fuseproof.schedules.order import LETTERS, arms_in_order, orientation
from fuseproof.schedules.plan import Plan, plan_from

UNITS = {"blocks": ("blocks",), "norm": ("norm",), "vae": ("vae_a", "vae_b")}
NEEDS = {"norm": ("blocks",)}


def values(**changes: Any) -> dict[str, Any]:
    """The plan of an ablation by alone effects."""
    arms = arms_of(UNITS, NEEDS, "alone")
    keys = ["baseline", "candidate", *(name.replace(":", "-") for name in list(arms)[2:])]
    flags = [f"--seed=1 {fastpaths_flag(UNITS, own)}" for own in arms.values()]
    return {
        "name": "x",
        "arms": {key: {"name": name, "flags": own} for key, name, own in zip(keys, arms, flags, strict=True)},
        "cells": [{"name": "cell"}],
        "ablation": {
            "by": "alone",
            "units": UNITS,
            "needs": NEEDS,
            "arms": {key: sorted(own) for key, own in zip(keys, arms.values(), strict=True)},
        },
    } | changes


def test_arms_of_both_ways() -> None:
    assert {
        "no fast path": set(),
        "all fast paths": {"blocks", "norm", "vae"},
        "alone:blocks": {"blocks"},
        "alone:norm": {"blocks", "norm"},
        "alone:vae": {"vae"},
        "without:norm": {"blocks", "vae"},
    } == {name: set(own) for name, own in arms_of(UNITS, NEEDS, "both").items()}


def test_a_unit_that_needs_two_has_an_arm_of_just_those() -> None:
    arms = arms_of({name: (name,) for name in "abcd"}, {"c": ("a", "b")}, "alone")
    assert {"a", "b"} == arms["alone:a+b"]
    assert {"a", "b", "c"} == arms["alone:c"]


def test_flags_of_units() -> None:
    assert "--fastpaths=off" == fastpaths_flag(UNITS, frozenset())
    assert "--fastpaths=auto" == fastpaths_flag(UNITS, frozenset(UNITS))
    assert "--fastpaths=norm,vae_a,vae_b" == fastpaths_flag(UNITS, frozenset({"vae", "norm"}))
    assert ("--seed", "1", "--steps=2") == without_fastpaths("--seed 1 --fastpaths auto --steps=2 --fastpaths=off")


def test_a_plan_keeps_its_ablation() -> None:
    plan = plan_from(values(), "test")
    assert isinstance(plan.ablation, Ablation)
    assert plan == plan_from(plan.to_json(), "test")
    assert (2, 10) == (plan.blocks, plan.slots_per_block)
    assert ("blocks",) == plan.ablation.roots[:1] and "norm" not in plan.ablation.roots
    assert frozenset({"norm"}) == plan.ablation.needing("blocks")
    assert plan.against("C").ablation is None
    assert (
        "ablation"
        not in Plan.model_validate(values(ablation=None, arms=dict(list(values()["arms"].items())[:2]))).to_json()
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param({"units": UNITS | {"more": ("norm",)}}, "each of one unit alone (seen: norm)", id="twice"),
        pytest.param({"units": {"blocks": ("blocks",)}}, "two units or more", id="one-unit"),
        pytest.param({"needs": {"norm": ("other",)}}, "'other' is no unit", id="unknown"),
        pytest.param({"units": UNITS | {"vae": ("vae_a",)}}, "must hold --fastpaths=vae_a", id="flags"),
    ],
)
def test_an_ablation_that_is_not_that_of_the_arms(change: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan_from(values(ablation=values()["ablation"] | change), "test")
    assert told in refused.value.message


def test_other_arms_than_the_ablations() -> None:
    arms = values()["arms"] | {"more": {"name": "more", "flags": "--fastpaths=norm"}}
    with pytest.raises(UsageError, match="do not name the same arms"):
        plan_from(values(arms=arms), "test")


@pytest.mark.parametrize("arms", [9, 14, 25, 26])
def test_many_arms_are_palindromes_that_meet_every_place(arms: int) -> None:
    ways = [orientation(block, "mirrored", arms) for block in range(arms)]
    assert all(way == way[::-1] and sorted(way[:arms]) == list(LETTERS[:arms]) for way in ways)
    for letter in LETTERS[:arms]:
        assert set(range(arms)) == {arms_in_order(way).index(letter) for way in ways}
    moved = arms_in_order(ways[1]).index("A")
    assert arms / 4 <= moved <= 3 * arms / 4
