from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from fuseproof.errors import FuseproofError, InvalidMeasurementError, UsageError
from fuseproof.harness.statistics.comparison import Block, Thresholds, compare, contrasts, stack
from tests.harness.simulated_campaigns import MIRRORED_ORDER, is_mirrored


def block(orientation: Any, *log_times: float, label: str = "") -> Block:
    first, second, third, fourth = (math.exp(value) for value in log_times)
    return Block(orientation, (first, second, third, fourth), label)


@pytest.mark.parametrize(
    ("orientation", "log_times", "effect", "drift", "residual"),
    [
        pytest.param("ABBA", (0.0, -0.05, -0.05, 0.0), -0.05, 0.0, 0.0, id="ABBA effect"),
        pytest.param("BAAB", (-0.05, 0.0, 0.0, -0.05), -0.05, 0.0, 0.0, id="BAAB effect"),
        pytest.param("ABBA", (0.0, 0.01, 0.02, 0.03), 0.0, 0.01, 0.0, id="ABBA drift"),
        pytest.param("BAAB", (0.0, 0.01, 0.02, 0.03), 0.0, 0.01, 0.0, id="BAAB drift"),
        pytest.param("ABBA", (0.0, 0.01, 0.04, 0.09), -0.02, 0.03, 0.0, id="ABBA curvature looks like an effect"),
        pytest.param("BAAB", (0.0, 0.01, 0.04, 0.09), 0.02, 0.03, 0.0, id="BAAB curvature has the other sign"),
        pytest.param("ABBA", (-0.01, 0.03, -0.03, 0.01), 0.0, 0.0, 0.2 / math.sqrt(20), id="cubic is residual"),
    ],
)
def test_each_contrast_sees_its_own_shape(
    orientation: str, log_times: tuple[float, ...], effect: float, drift: float, residual: float
) -> None:
    found = contrasts(*stack([block(orientation, *log_times)]))
    assert effect == pytest.approx(found.effect[0], abs=1e-12)
    assert drift == pytest.approx(found.drift_per_slot[0], abs=1e-12)
    assert residual == pytest.approx(found.residual[0], abs=1e-12)


@pytest.mark.parametrize(
    ("orientations", "bias"),
    [
        pytest.param(["ABBA"], -2.0, id="ABBA"),
        pytest.param(["ABBA", "BAAB"], 0.0, id="ABBA BAAB"),
        pytest.param(["ABBA", "BAAB", "ABBA"], -2 / 3, id="ABBA BAAB ABBA"),
        pytest.param(list(MIRRORED_ORDER[:4]), 0.0, id="Thue-Morse 4"),
    ],
)
def test_what_curvature_leaves_in_the_effect(orientations: list[str], bias: float) -> None:
    unit = 1e-4
    blocks = [
        block(orientation, *(unit * slot**2 for slot in range(4 * index, 4 * index + 4)))
        for index, orientation in enumerate(orientations)
    ]
    assert bias == pytest.approx(compare(blocks).log_effect / unit, abs=1e-9)


def test_monotone_drift_moves_a_block_by_at_most_five_thirds_of_its_slope() -> None:
    steps = np.random.default_rng(5).exponential(size=(20_000, 3)) ** 3
    steps[:3] = np.eye(3)
    log_times = np.concatenate([np.zeros((len(steps), 1)), steps.cumsum(axis=1)], axis=1)
    log_times *= 0.01 / log_times[:, 3:]
    found = contrasts(np.exp(log_times)[:, np.newaxis, :], np.array([False]))
    ratio = np.abs(found.effect) / np.abs(found.drift_per_slot)
    assert 5 / 3 == pytest.approx(ratio.max(), rel=1e-9)


@pytest.mark.parametrize("order", ["mirrored", "ABBA"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_the_pooled_fit_is_ordinary_least_squares(count: int, order: str) -> None:
    """One intercept and one slope per block, one effect: 4n observations, 2n - 1 degrees of freedom."""
    mirrored = is_mirrored(count, order)
    log_times = np.random.default_rng(count).normal(1.0, 0.02, (count, 4))
    design = np.zeros((4 * count, 2 * count + 1))
    for index in range(count):
        rows = slice(4 * index, 4 * index + 4)
        design[rows, 2 * index] = 1
        design[rows, 2 * index + 1] = range(4)
        design[rows, -1] = [1, 0, 0, 1] if mirrored[index] else [0, 1, 1, 0]
    solution, squares, _, _ = np.linalg.lstsq(design, log_times.ravel(), rcond=None)
    blocks = [
        block("BAAB" if flipped else "ABBA", *times)
        for flipped, times in zip(mirrored.tolist(), log_times.tolist(), strict=True)
    ]
    found = compare(blocks)
    assert 2 * count - 1 == found.degrees_of_freedom
    assert solution[-1] == pytest.approx(found.log_effect, rel=1e-9)
    assert math.sqrt(squares[0] / (2 * count - 1)) == pytest.approx(found.scatter_raw, rel=1e-9)
    assert solution[1:-1:2] == pytest.approx([one.drift_per_slot for one in found.blocks], rel=1e-9)


@pytest.mark.parametrize(
    ("count", "alpha", "quantile"),
    [
        (1, 0.05, 12.7062),
        (2, 0.05, 3.1824),
        (3, 0.05, 2.5706),
        (4, 0.05, 2.3646),
        (2, 0.025, 4.1765),
        (4, 0.01, 3.4995),
    ],
)
def test_the_interval_uses_student_t(count: int, alpha: float, quantile: float) -> None:
    blocks = [block(MIRRORED_ORDER[index], 0.001, 0.003, -0.002, 0.0) for index in range(count)]
    found = compare(blocks, Thresholds(alpha=alpha))
    half_width = quantile * found.scatter_raw / math.sqrt(count)
    assert half_width == pytest.approx(found.interval_resolution, rel=1e-4)
    assert -math.expm1(found.log_effect + half_width) == pytest.approx(found.interval[0], rel=1e-4)
    assert -math.expm1(found.log_effect - half_width) == pytest.approx(found.interval[1], rel=1e-4)


def test_the_scatter_has_a_floor_that_the_printed_interval_ignores() -> None:
    found = compare([Block("ABBA", (2.0, 1.9, 1.9, 2.0)), Block("BAAB", (1.9, 2.0, 2.0, 1.9))])
    assert 0 == pytest.approx(found.scatter_raw, abs=1e-12)
    assert 1e-4 == found.scatter
    assert (0.05, 0.05) == pytest.approx(found.interval, abs=1e-9)
    assert 3.1824 * 1e-4 / math.sqrt(2) == pytest.approx(found.half_width, rel=1e-4)


def test_the_timer_widens_the_interval_used_by_its_tick() -> None:
    blocks = [Block("ABBA", (2.01, 1.9, 1.92, 2.0)), Block("BAAB", (1.9, 2.0, 2.0, 1.91))]
    fine, coarse = compare(blocks), compare(blocks, Thresholds(tick_s=0.01))
    assert 0.01 / 1.955 == pytest.approx(coarse.half_width - fine.half_width, rel=1e-9)
    assert fine.interval == coarse.interval


@pytest.mark.parametrize(
    ("effects", "differ", "widened"),
    [
        pytest.param((-0.050, -0.012), True, False, id="two blocks: a code, no wider interval"),
        pytest.param((-0.050, -0.050, -0.020), True, True, id="three blocks: wider"),
        pytest.param((-0.050, -0.052, -0.048), False, False, id="blocks agree"),
    ],
)
def test_blocks_that_differ_widen_the_interval(effects: tuple[float, ...], differ: bool, widened: bool) -> None:
    blocks = [
        block("ABBA", 0.001, effect + 0.002, effect - 0.001, 0.0)
        if index % 2 == 0
        else block("ABBA", 0, effect, effect, 0)
        for index, effect in enumerate(effects)
    ]
    found = compare(blocks)
    assert (differ, widened) == (found.blocks_differ, found.is_widened)
    if widened:
        block_effects = [one.log_effect for one in found.blocks]
        expected = 4.3027 * np.std(block_effects, ddof=1) / math.sqrt(3)
        assert expected == pytest.approx(found.half_width, rel=1e-4)
    else:
        assert found.interval_resolution == pytest.approx(found.half_width)


def test_the_f_test_stands_at_its_critical_value() -> None:
    """F(.95; 2, 3) = 9.5521: just below it the blocks agree, just above they differ."""
    residual = 0.01
    for factor, differ in ((0.999, False), (1.001, True)):
        spread = residual * math.sqrt(factor * 9.55209)
        shape = np.array([-1, 3, -3, 1]) / math.sqrt(20) * residual
        blocks = [block("ABBA", *(shape + np.array([0, shift, shift, 0]))) for shift in (-spread, 0, spread)]
        assert differ is compare(blocks).blocks_differ


def test_the_companions_by_hand() -> None:
    found = compare([Block("ABBA", (10.0, 9.0, 9.2, 10.4), "r1"), Block("BAAB", (8.9, 10.1, 10.0, 9.5), "r2")])
    baseline, candidate = [10.0, 10.4, 10.1, 10.0], [9.0, 9.2, 8.9, 9.5]
    assert 10.125 == pytest.approx(found.baseline.mean_s)
    assert 9.15 == pytest.approx(found.candidate.mean_s)
    assert (10.05, 9.1) == pytest.approx((found.baseline.median_s, found.candidate.median_s))
    assert (10.0, 8.9) == (found.baseline.minimum_s, found.candidate.minimum_s)
    assert 1 - sum(candidate) / sum(baseline) == pytest.approx(found.mean_reduction)
    assert 1 - 9.1 / 10.05 == pytest.approx(found.median_reduction)
    assert 1 - 8.9 / 10.0 == pytest.approx(found.minimum_reduction)
    pairs = [9.0 / 10, 9.2 / 10, 9.0 / 10.4, 9.2 / 10.4, 8.9 / 10.1, 9.5 / 10.1, 8.9 / 10, 9.5 / 10]
    assert 1 - math.exp(np.median(np.log(pairs))) == pytest.approx(found.pair_median_reduction)
    spreads = [0.4 / 10.2, 0.2 / 9.1, 0.1 / 10.05, 0.6 / 9.2]
    assert max(spreads) == pytest.approx(found.noise_floor)
    assert np.median(spreads) == pytest.approx(found.noise_floor_median)
    assert found.arms_are_separated
    assert (1 - 18.2 / 20.4, 1 - 18.4 / 20.1) == pytest.approx([one.mean_reduction for one in found.blocks])
    assert [("r1", "ABBA"), ("r2", "BAAB")] == [(one.label, one.orientation) for one in found.blocks]
    assert math.exp(-found.log_effect) == pytest.approx(found.speedup)
    assert 1 - 1 / found.speedup == pytest.approx(found.reduction)


def test_the_pair_median_is_free_of_drift_where_the_median_and_minimum_of_arms_are_not() -> None:
    drifting = [block("ABBA", 0, 0.01, 0.02, 0.03), block("BAAB", 0.04, 0.05, 0.06, 0.07)]
    found = compare(drifting)
    assert 0 == pytest.approx(found.pair_median_reduction, abs=1e-12)
    assert 0 == pytest.approx(found.reduction, abs=1e-12)
    assert 0.01 == pytest.approx(abs(found.median_reduction), abs=2e-4)
    assert 0.01 == pytest.approx(abs(found.minimum_reduction), abs=2e-4)


@pytest.mark.parametrize(
    ("orientations", "balanced", "aliases"),
    [
        pytest.param(("ABBA",), False, True, id="one block is never balanced"),
        pytest.param(("ABBA", "ABBA"), False, True, id="ABBA ABBA"),
        pytest.param(("ABBA", "BAAB"), True, False, id="ABBA BAAB"),
        pytest.param(("BAAB", "BAAB", "ABBA"), True, False, id="off by one"),
        pytest.param(("ABBA", "ABBA", "ABBA", "BAAB"), False, True, id="off by two"),
    ],
)
def test_balance(orientations: tuple[str, ...], balanced: bool, aliases: bool) -> None:
    found = compare([block(orientation, 0, 0.01, 0.02, 0.03) for orientation in orientations])
    assert balanced is found.is_balanced
    assert 0.01 == pytest.approx(found.mean_drift_per_slot)
    assert (5 / 3 * 0.01 if aliases else 0) == pytest.approx(found.drift_alias)


@pytest.mark.parametrize(
    ("effects", "p"),
    [
        pytest.param((-0.1, -0.1), None, id="two blocks: no test"),
        pytest.param((-0.1, -0.11, -0.12), 0.25, id="three agreeing"),
        pytest.param((-0.1, -0.11, -0.12, -0.13), 0.125, id="four agreeing"),
        pytest.param((-0.1, -0.11, -0.12, 0.05), 0.25, id="four, the smallest opposing"),
        pytest.param((-0.1,) * 17, None, id="too many to enumerate"),
    ],
)
def test_the_permutation_p_swaps_whole_blocks(effects: tuple[float, ...], p: float | None) -> None:
    assert p == compare([block("ABBA", 0, effect, effect, 0) for effect in effects]).permutation_p


def test_overlapping_arms_are_not_separated() -> None:
    winning = Block("ABBA", (10.0, 9.0, 9.2, 10.4))
    assert not compare([winning, Block("BAAB", (10.1, 9.9, 10.0, 9.5))]).arms_are_separated
    assert not compare([winning, Block("ABBA", (9.0, 10.0, 10.4, 9.2))]).arms_are_separated
    assert compare([Block("ABBA", (9.0, 10.0, 10.4, 9.2))]).arms_are_separated


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_cannot_be_is_named(seconds: float) -> None:
    with pytest.raises(InvalidMeasurementError, match=r"slot 2 \(A1\) in block r7") as caught:
        Block("BAAB", (1.0, seconds, 1.0, 1.0), "r7")
    assert repr(seconds) in caught.value.message
    assert caught.value.next_step


def test_blocks_are_whole_and_know_their_order() -> None:
    with pytest.raises(UsageError, match="has 3 times"):
        Block("ABBA", (1.0, 1.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'AABB'"):
        Block("AABB", (1.0, 1.0, 1.0, 1.0))  # type: ignore[arg-type]
    with pytest.raises(FuseproofError, match="no complete block"):
        compare([])


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_effect": 1.0},
        {"min_effect": -0.01},
        {"alpha": 0.0},
        {"alpha": 1.0},
        {"tick_s": -1.0},
        {"tick_s": math.nan},
    ],
)
def test_thresholds_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=str(next(iter(wrong.values())))):
        Thresholds(**wrong)


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param([Block("ABBA", (1.0, 1.0, 1.0, 1.0))], id="all equal"),
        pytest.param([Block("ABBA", (1e-9, 1e9, 1.0, 1e-9))], id="absurd spread"),
        pytest.param([Block("ABBA", (10.0, 9.0, 9.0, 10.0))] * 3, id="three blocks"),
    ],
)
def test_numbers_survive_strict_json(blocks: list[Block]) -> None:
    numbers = json.loads(json.dumps(compare(blocks).to_json(), allow_nan=False))
    assert len(blocks) == len(numbers["blocks"])


def test_inputs_are_not_changed() -> None:
    seconds = np.array([[2.0, 1.9, 1.9, 2.0]])
    contrasts(seconds, np.array([True]))
    assert [2.0, 1.9, 1.9, 2.0] == seconds[0].tolist()
