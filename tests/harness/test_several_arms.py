"""Three and more arms: the formulas against least squares, the quantiles of their intervals, and two arms as one of
them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.statistics.comparison import Block, Thresholds, compare
from fuseproof.harness.statistics.contrasts import (
    degrees_of_freedom_of,
    each_alpha,
    monotone_drift_bound,
    summarise,
    t_quantile,
)
from fuseproof.harness.statistics.decision import drift_guard
from fuseproof.harness.statistics.several_arms import by_arms, distances, is_balanced, summarise_against
from fuseproof.harness.statistics.verdict import decide
from fuseproof.schedules.order import orientation
from tests.harness.simulated_arms import halves, slot_arms


def least_squares(logs: np.ndarray, arms: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Effects against arm 0, slope of each block and residual variance, by numpy's solver."""
    blocks, slots = logs.shape
    count = slots // 2
    rows = []
    for block, slot in itertools.product(range(blocks), range(slots)):
        intercepts, slopes, effects = np.zeros(blocks), np.zeros(blocks), np.zeros(count - 1)
        intercepts[block], slopes[block] = 1, slot - (slots - 1) / 2
        if arms[block, slot]:
            effects[arms[block, slot] - 1] = 1
        rows.append(np.concatenate([intercepts, slopes, effects]))
    design = np.array(rows)
    found, residuals, rank, _ = np.linalg.lstsq(design, logs.ravel(), rcond=None)
    return found[2 * blocks :], found[blocks : 2 * blocks], float(residuals[0]) / (design.shape[0] - rank)


@pytest.mark.parametrize("order", ["mirrored", "ABBA"])
@pytest.mark.parametrize(("arms", "blocks"), [(2, 1), (2, 3), (3, 2), (3, 3), (3, 5), (4, 2), (4, 4), (5, 3)])
def test_the_numbers_are_those_of_least_squares(arms: int, blocks: int, order: str) -> None:
    rows = halves(blocks, arms, order)
    logs = np.random.default_rng(arms * 10 + blocks).normal(0, 0.05, (blocks, 2 * arms))
    effects, slopes, variance = least_squares(logs, slot_arms(rows))
    for candidate in range(1, arms):
        if arms == 2:
            found = summarise(np.exp(logs), rows[:, 0] == 1, alpha=0.05, tick_s=0.0)
        else:
            found = summarise_against(np.exp(logs), rows, candidate, alpha=0.05, tick_s=0.0)
        assert effects[candidate - 1] == pytest.approx(float(found.effect), abs=1e-12)
        np.testing.assert_allclose(slopes, found.blocks.drift_per_slot, atol=1e-12)
        assert np.sqrt(variance) == pytest.approx(float(found.scatter_raw), rel=1e-9)
        assert 2 * blocks * arms - 2 * blocks - (arms - 1) == found.degrees_of_freedom


@pytest.mark.parametrize("blocks", [2, 3, 4])
def test_two_arms_are_a_case_of_several(blocks: int) -> None:
    rows = np.array([[0, 1], [1, 0], [1, 0], [0, 1]])[:blocks]
    seconds = np.exp(np.random.default_rng(blocks).normal(0, 0.05, (7, blocks, 4)))
    own = summarise(seconds, rows[:, 0] == 1, alpha=0.05, tick_s=0.01)
    times = by_arms(np.log(seconds), rows)
    assert (7, blocks, 2, 2) == times.shape
    np.testing.assert_allclose(own.blocks.effect, times[..., 1, :].mean(axis=-1) - times[..., 0, :].mean(axis=-1))


# (k - 1)(2n - 1) degrees of freedom and t of 1 - .025/(k - 1), by tables.
@pytest.mark.parametrize(
    ("arms", "blocks", "degrees", "quantile"),
    [
        pytest.param(2, 1, 1, 12.706, id="two arms, one block"),
        pytest.param(2, 2, 3, 3.182, id="two arms"),
        pytest.param(3, 2, 6, 2.969, id="three arms, two blocks"),
        pytest.param(3, 3, 10, 2.634, id="three arms"),
        pytest.param(4, 4, 21, 2.601, id="four arms"),
    ],
)
def test_intervals_hold_together(arms: int, blocks: int, degrees: int, quantile: float) -> None:
    assert degrees == degrees_of_freedom_of(blocks, arms)
    assert quantile == pytest.approx(t_quantile(each_alpha(0.05, arms), degrees), abs=0.0006)


@pytest.mark.parametrize(
    ("arms", "bound", "guard"), [(2, 5 / 3, 2.0), (3, 3.5, 4.2), (4, 6.0, 7.2)], ids=["two", "three", "four"]
)
def test_monotone_drift_in_a_block_moves_no_effect_by_more_than_the_bound(
    arms: int, bound: float, guard: float
) -> None:
    assert bound == pytest.approx(monotone_drift_bound(arms))
    assert guard == pytest.approx(drift_guard(arms))
    assert 2 * guard == pytest.approx(drift_guard(arms, is_balanced=False))
    generator = np.random.default_rng(arms)
    steps = generator.exponential(1.0, (4000, 1, 2 * arms)) * (generator.random((4000, 1, 2 * arms)) < 0.4)
    steps[: 2 * arms, 0] = np.eye(2 * arms)  # a level shift at every place: the extreme cases
    drifts = np.cumsum(steps, axis=-1) / 100
    worst = 0.0
    for candidate in range(1, arms):
        found = _against(drifts, arms, candidate)
        share = np.abs(found.effect) / np.maximum(np.abs(found.mean_drift), 1e-12)
        worst = max(worst, float(share.max()))
    assert worst <= bound + 1e-9
    assert worst == pytest.approx(bound, abs=1e-6)


def _against(logs: np.ndarray, arms: int, candidate: int):  # type: ignore[no-untyped-def]
    rows = halves(1, arms, "ABBA")
    if arms == 2:
        return summarise(np.exp(logs), np.array([False]), alpha=0.05, tick_s=0.0)
    return summarise_against(np.exp(logs), rows, candidate, alpha=0.05, tick_s=0.0)


@pytest.mark.parametrize(
    ("arms", "blocks", "order", "expected"),
    [
        pytest.param(3, 3, "mirrored", True, id="a Latin square"),
        pytest.param(3, 6, "mirrored", True, id="two of them"),
        pytest.param(4, 4, "mirrored", True, id="of four arms"),
        pytest.param(3, 2, "mirrored", False, id="two thirds of one"),
        pytest.param(3, 4, "mirrored", False, id="one block too many"),
        pytest.param(3, 3, "ABBA", False, id="one order repeated"),
    ],
)
def test_every_arm_must_have_every_place(arms: int, blocks: int, order: str, expected: bool) -> None:
    assert expected == is_balanced(halves(blocks, arms, order))


@pytest.mark.parametrize("candidate", [1, 2])
def test_a_latin_square_leaves_nothing_of_curved_drift(candidate: int) -> None:
    def effect(order: str) -> float:
        logs = (0.001 * np.arange(18) ** 2).reshape(1, 3, 6)
        return float(summarise_against(np.exp(logs), halves(3, 3, order), candidate, alpha=0.05, tick_s=0.0).effect[0])

    assert 0 == pytest.approx(effect("mirrored"), abs=1e-12)
    assert (-0.004, -0.006)[candidate - 1] == pytest.approx(effect("ABBA"), abs=1e-12)


def test_slot_distances_are_half_numbers() -> None:
    assert [[2.5, 1.5, 0.5], [0.5, 2.5, 1.5]] == distances(np.array([[0, 1, 2], [1, 2, 0]])).tolist()


def campaign(
    candidate: str, arms: int = 3, *, effects: dict[str, float], cv: float = 0.002, quiet: str = ""
) -> list[Block]:
    """As many blocks as arms around 10 s, each arm shifted by its log effect; runs of ``quiet`` arms do not scatter."""
    generator = np.random.default_rng(5)
    blocks = []
    for number in range(arms):
        order = orientation(number, "mirrored", arms)
        noise = generator.normal(0, cv, 2 * arms)
        logs = [effects.get(arm, 0.0) + (0 if arm in quiet else noise[slot]) for slot, arm in enumerate(order)]
        blocks.append(Block(order, tuple((10 * np.exp(logs)).tolist()), f"r{number + 1}", candidate))
    return blocks


def test_each_candidate_gets_its_own_word() -> None:
    effects = {"B": np.log(0.95)}
    assert ["FASTER", "SAME"] == [decide(campaign(arm, effects=effects)).word.value for arm in "BC"]


def test_a_comparison_says_how_many_arms_it_rests_on() -> None:
    found = compare(campaign("C", effects={}))
    assert (3, 10, True, "97.5 %") == (
        found.arm_count, found.degrees_of_freedom, found.is_balanced, found.level_text
    )  # fmt: skip
    assert {"arm_count", "arms_scatter_unevenly"} <= found.to_json().keys()
    two = compare([Block("ABBA", (10.0, 9.0, 9.1, 10.1)), Block("BAAB", (9.0, 10.0, 10.1, 9.1))])
    assert not {"arm_count", "arms_scatter_unevenly"} & two.to_json().keys()


def test_a_silent_arm_lends_no_calm_to_the_others() -> None:
    verdict = decide(campaign("B", 5, effects={}, cv=0.02, quiet="CDE"))
    assert "ARMS_SCATTER_UNEVENLY" in [warning.code for warning in verdict.warnings]
    comparison = verdict.comparison
    assert comparison is not None
    printed, used = (bounds[1] - bounds[0] for bounds in (comparison.interval, comparison.interval_used))
    assert used > 1.2 * printed


def test_an_order_without_balance_is_said() -> None:
    verdict = decide(campaign("B", effects={})[:2])
    reason = next(warning for warning in verdict.warnings if warning.code == "ORDER_NOT_MIRRORED")
    assert "ran ABCCBA BCAACB" in reason.detail
    assert reason.next_step.endswith("--order mirrored, --blocks 3.")


@pytest.mark.parametrize("order", ["ABCABC", "AABBCC", "BCCB", "ABCCB", "ABCBA", ""])
def test_no_palindrome_is_refused(order: str) -> None:
    with pytest.raises(UsageError, match="palindrome"):
        Block(order, tuple([1.0] * len(order)))


def test_one_block_of_three_arms_decides_nothing() -> None:
    headline = decide(campaign("B", effects={"B": -0.1})[:1], Thresholds()).headline
    assert headline is not None
    assert ("TOO_FEW_BLOCKS", True) == (headline.code, headline.next_step.endswith("--blocks 3."))
