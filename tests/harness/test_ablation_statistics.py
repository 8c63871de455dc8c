"""Contrasts between arms: exact under drift, covered as often as they say under noise."""

from __future__ import annotations

import numpy as np
import pytest

from fuseproof.harness.statistics.ablation import arm_levels
from fuseproof.harness.statistics.detectable import plan_for
from fuseproof.schedules.order import letters_of, orientation

LARGEST_STANDARD_ERRORS = 3.3


def blocks(
    arms: int, number: int, scatter: float, drift_s: float, chance: np.random.Generator
) -> list[tuple[str, list[float]]]:
    """Arm i takes 10 - i/10 s; a slot takes ``drift_s`` longer than the one before."""
    letters = letters_of(arms)
    found = []
    for block in range(number):
        way = orientation(block, "mirrored", arms)
        levels = [10 - letters.index(arm) / 10 for arm in way]
        found.append(
            (way, [level * (1 + scatter * chance.normal()) + drift_s * slot for slot, level in enumerate(levels)])
        )
    return found


@pytest.mark.parametrize("arms", [3, 8, 14])
def test_linear_drift_moves_no_contrast(arms: int) -> None:
    levels = arm_levels(blocks(arms, 1, 0.0, 0.05, np.random.default_rng(1)))
    assert 0.1 == pytest.approx(levels.contrast({"A": 1, "B": -1}).seconds)
    assert 0.1 + 0.2 == pytest.approx(levels.contrast({"A": 2, "B": -1, "C": -1}).seconds)


def test_weights_must_cancel() -> None:
    levels = arm_levels(blocks(3, 2, 0.001, 0.0, np.random.default_rng(1)))
    with pytest.raises(ValueError, match="sum to 1, not to 0"):
        levels.contrast({"A": 1})


@pytest.mark.parametrize(("arms", "number"), [(6, 1), (8, 2), (14, 2), (6, 3)])
def test_intervals_hold_their_contrast(arms: int, number: int) -> None:
    """Of an effect and of a sum that shares an arm; 400 campaigns with 0.3 % scatter and a drift."""
    chance, campaigns = np.random.default_rng(7), 400
    letters = letters_of(arms)
    weights: dict[str, float] = {letters[0]: arms - 2.0, **dict.fromkeys(letters[2:], -1.0)}
    held = np.zeros(2)
    for _ in range(campaigns):
        levels = arm_levels(blocks(arms, number, 0.003, 0.01, chance))
        effect, total = levels.contrast({"A": 1, "B": -1}), levels.contrast(weights)
        truth = sum(index / 10 for index in range(2, arms))
        held += [effect.interval[0] < 0.1 < effect.interval[1], total.interval[0] < truth < total.interval[1]]
    error = (0.95 * 0.05 / campaigns) ** 0.5
    assert (held / campaigns > 0.95 - LARGEST_STANDARD_ERRORS * error - 0.01).all(), held / campaigns


def test_arms_that_change_from_block_to_block_widen_the_interval() -> None:
    steady = blocks(6, 3, 0.001, 0.0, np.random.default_rng(3))
    moved = [
        (way, [second * (1 + 0.02 * block * (arm == "C")) for arm, second in zip(way, seconds, strict=True)])
        for block, (way, seconds) in enumerate(steady)
    ]
    assert not arm_levels(steady).is_widened
    assert arm_levels(moved).is_widened
    weights = {"A": 1, "C": -1}
    assert arm_levels(moved).contrast(weights).half_width_s > 5 * arm_levels(steady).contrast(weights).half_width_s


@pytest.mark.parametrize("arms", [8, 9, 14, 26])
def test_blocks_are_planned_for_many_arms_too(arms: int) -> None:
    assert plan_for(0.03, 0.003, arms=arms).blocks in (2, 8)
    assert plan_for(0.02, 0.2, arms=arms).blocks is None
