from __future__ import annotations

import numpy as np
import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.statistics.detectable import (
    estimated_scatter_factor,
    interval_power,
    plan_for,
    smallest_detectable_effect,
    unbalanced_factor,
)
from tests.harness.simulated_campaigns import candidate_sign, judge, shares, white

NOISES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 1, 1.5, 2, 5)


@pytest.mark.parametrize(
    ("min_effect", "blocks", "published"),
    [
        (1, 2, (1.06, 1.12, 1.20, 1.34, 1.56, 1.83, 2.27, 3.01, 4.48, 5.92, 14.2)),
        (1, 3, (1.06, 1.11, 1.17, 1.23, 1.30, 1.41, 1.64, 2.13, 3.17, 4.20, 10.2)),
        (1, 4, (1.05, 1.10, 1.15, 1.20, 1.25, 1.30, 1.42, 1.74, 2.56, 3.39, 8.27)),
        (1, 6, (1.04, 1.08, 1.13, 1.17, 1.21, 1.25, 1.31, 1.45, 2.00, 2.65, 6.50)),
        (1, 8, (1.04, 1.08, 1.12, 1.16, 1.20, 1.24, 1.30, 1.40, 1.76, 2.31, 5.67)),
        (0.5, 2, (0.56, 0.67, 0.92, 1.21, 1.52, 1.82, 2.26, 3.01)),
        (0.5, 4, (0.55, 0.60, 0.65, 0.74, 0.87, 1.03, 1.29, 1.71)),
        (1.5, 2, (1.56, 1.62, 1.68, 1.75, 1.85, 2.01, 2.33, 3.02)),
        (1.5, 4, (1.55, 1.60, 1.65, 1.70, 1.74, 1.79, 1.87, 2.01)),
    ],
)
def test_the_published_table_is_reproduced_to_its_last_digit(
    min_effect: float, blocks: int, published: tuple[float, ...]
) -> None:
    scatters = np.array(NOISES[: len(published)]) / 100
    found = 100 * smallest_detectable_effect(scatters, blocks, min_effect=min_effect / 100)
    for expected, percent in zip(published, found.tolist(), strict=True):
        unit = 0.01 if expected < 10 else 0.1
        assert expected == pytest.approx(percent, abs=0.5 * unit + 1e-3)


@pytest.mark.parametrize(
    ("effect", "published"),
    [
        (1.2, (2, 2, 2, 4, 8, 12, None, None, None, None, None)),
        (1.5, (2, 2, 2, 2, 4, 4, 4, 6, 12, None, None)),
        (2, (2, 2, 2, 2, 2, 2, 4, 4, 8, 12, None)),
        (3, (2, 2, 2, 2, 2, 2, 2, 4, 4, 6, None)),
        (5, (2, 2, 2, 2, 2, 2, 2, 2, 2, 4, 12)),
    ],
)
def test_the_published_plan_is_reproduced(effect: float, published: tuple[int | None, ...]) -> None:
    assert published == tuple(plan_for(effect / 100, noise / 100).blocks for noise in NOISES)


def test_a_plan_says_why_and_what_next() -> None:
    possible = plan_for(0.015, 0.005)
    assert 4 == possible.blocks
    assert "--blocks 4" in possible.next_step
    too_noisy = plan_for(0.012, 0.05)
    assert too_noisy.blocks is None
    assert "12 blocks" in too_noisy.reason
    assert "larger workload" in too_noisy.next_step
    at_minimum = plan_for(0.01, 0.001)
    assert at_minimum.blocks is None
    assert "at most half" in at_minimum.reason
    assert "--min-effect 0.5%" in at_minimum.next_step
    assert 2 == plan_for(0.01, 0.001, min_effect=0.005).blocks


@pytest.mark.parametrize(("effect", "scatter"), [(0.0, 0.01), (1.5, 0.01), (0.02, 0.0), (0.02, float("nan"))])
def test_a_plan_needs_shares(effect: float, scatter: float) -> None:
    with pytest.raises(UsageError, match="above 0 and below 1"):
        plan_for(effect, scatter)


def test_one_block_detects_nothing() -> None:
    with pytest.raises(ValueError, match="one block"):
        smallest_detectable_effect(0.01, 1)


def test_an_order_without_mirroring_costs() -> None:
    for blocks, factor in ((2, 1.05), (3, 1.15), (4, 1.25), (6, 1.5)):
        assert factor == unbalanced_factor(blocks)
        mirrored, unmirrored = (
            float(smallest_detectable_effect(0.02, blocks, is_balanced=balanced)) for balanced in (True, False)
        )
        assert factor * mirrored == pytest.approx(unmirrored)
    assert float(smallest_detectable_effect(5.0, 2, is_balanced=False)) == 1.0


def test_a_stricter_level_detects_less() -> None:
    assert smallest_detectable_effect(0.02, 4, alpha=0.01) > 1.1 * smallest_detectable_effect(0.02, 4)


@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_the_power_integral_is_the_share_of_simulated_intervals(blocks: int) -> None:
    cv, effect = 0.01, 0.025
    log_times = white(np.random.default_rng(blocks), blocks, cv) - effect * candidate_sign(blocks, "mirrored")
    _, summary = judge(log_times, "mirrored")
    found = -summary.effect > np.maximum(summary.resolution, -np.log1p(-0.01))
    assert float(interval_power(effect, cv, blocks)) == pytest.approx(found.mean(), abs=0.02)


# Published power of the whole verdict at the smallest detectable effect, per cent, over cv 0.1 to 5 %.
@pytest.mark.parametrize(
    ("blocks", "lowest", "highest"),
    [(2, 80.6, 80.9), (3, 80.1, 83.9), (4, 80.6, 84.0), (6, 81.0, 85.2), (8, 80.8, 86.9)],
)
def test_an_effect_said_to_be_detectable_is_detected_with_known_noise(
    blocks: int, lowest: float, highest: float
) -> None:
    for cv in (0.001, 0.003, 0.01, 0.05):
        effect = float(smallest_detectable_effect(cv, blocks))
        log_times = white(np.random.default_rng([blocks, int(cv * 1e4)]), blocks, cv)
        found = shares(log_times + np.log1p(-effect) * candidate_sign(blocks, "mirrored"), "mirrored").faster
        assert lowest - 1.5 <= found <= highest + 1.5, cv


@pytest.mark.parametrize("order", ["mirrored", "ABBA"])
@pytest.mark.parametrize("blocks", [2, 3, 4, 6])
def test_an_effect_that_a_campaign_prints_as_detectable_is_detected_by_the_next(blocks: int, order: str) -> None:
    """Campaign 1 prints the effect from its own scatter; campaign 2 has exactly that effect."""
    for cv in (0.001, 0.003, 0.01, 0.05) if order == "mirrored" else (0.003, 0.01):
        generator = np.random.default_rng([blocks, int(cv * 1e4), 2])
        _, summary = judge(white(generator, blocks, cv), order)
        printed = smallest_detectable_effect(
            estimated_scatter_factor(blocks) * summary.scatter, blocks, is_balanced=order == "mirrored"
        )
        effect = np.log1p(-np.minimum(printed, 0.99))[:, np.newaxis, np.newaxis]
        log_times = white(generator, blocks, cv) + effect * candidate_sign(blocks, order)
        assert shares(log_times, order).faster >= 80, cv


def test_the_estimated_scatter_alone_would_promise_too_much() -> None:
    """Without the allowance for an estimated scatter, two blocks find the printed effect too seldom."""
    generator = np.random.default_rng(3)
    _, summary = judge(white(generator, 2, 0.01), "mirrored")
    effect = np.log1p(-smallest_detectable_effect(summary.scatter, 2))[:, np.newaxis, np.newaxis]
    log_times = white(generator, 2, 0.01) + effect * candidate_sign(2, "mirrored")
    assert 66 <= shares(log_times, "mirrored").faster <= 79
