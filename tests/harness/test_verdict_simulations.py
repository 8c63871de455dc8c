"""The verdict on ten thousand campaigns whose truth is known, and the published rates of the rule reproduced."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fuseproof.harness.statistics.comparison import Block, Thresholds
from fuseproof.harness.statistics.contrasts import summarise
from fuseproof.harness.statistics.decision import check, words
from fuseproof.harness.statistics.verdict import decide
from tests.harness import simulated_campaigns as simulated
from tests.harness.simulated_campaigns import CAMPAIGNS, Scenario, Shares, candidate_sign, judge, shares

NOISES = (0.003, 0.01, 0.02, 0.05)
ORDERS = ("mirrored", "ABBA")
ALLOWED_FALSE_PERCENT = 5.0 + 0.5

NULL_SCENARIOS: dict[str, Scenario] = {
    "white": simulated.white,
    "linear 0.2% a slot": simulated.linear(0.002),
    "linear 1% a slot": simulated.linear(0.01),
    "quadratic 0.1%": simulated.quadratic(0.001),
    "quadratic 0.5%": simulated.quadratic(0.005),
    "settles 10% over 2 slots": simulated.settling(0.10, 2),
    "campaign starts 1% cold": simulated.cold_campaign(0.01),
    "campaign starts 3% cold": simulated.cold_campaign(0.03),
    "campaign starts 5% cold": simulated.cold_campaign(0.05),
    "every block starts 1% cold": simulated.cold_blocks(0.01),
    "every block starts 3% cold": simulated.cold_blocks(0.03),
    "every block starts 5% cold": simulated.cold_blocks(0.05),
    "2% of runs have a tail": simulated.tails(0.02, 0.2, 1.5),
    "autoregressive 0.5": simulated.autoregressive(0.5),
}


def seeded(*key: object) -> np.random.Generator:
    return np.random.default_rng(list(repr(key).encode()))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NULL_SCENARIOS)
def test_identical_arms_are_seldom_called_different(name: str, order: str) -> None:
    for blocks in (2, 4):
        for cv in NOISES:
            log_times = NULL_SCENARIOS[name](seeded(name, blocks, cv), blocks, cv)
            assert shares(log_times, order).directional <= ALLOWED_FALSE_PERCENT, (blocks, cv)


# Published rates, 10,000 campaigns each: directional in ABBA-only order with 2, 3, 4 blocks; directional in mirrored
# order with 2, 3, 4, 6 blocks; SAME in mirrored order with 2, 3, 4 blocks. Per cent.
Row = tuple[Callable[[str], Scenario], float, tuple[float, ...], tuple[float, ...], tuple[float, ...]]


def either_order(scenario: Scenario) -> Callable[[str], Scenario]:
    return lambda order: scenario


PUBLISHED_NULL_RATES: dict[str, Row] = {
    "white 0.1%": (either_order(simulated.white), 0.001, (0, 0, 0), (0, 0, 0, 0), (100, 100, 100)),
    "white 0.3%": (either_order(simulated.white), 0.003, (0, 0, 0), (0, 0, 0, 0), (77, 96, 99)),
    "white 0.5%": (either_order(simulated.white), 0.005, (0.2, 0, 0), (0.2, 0.1, 0, 0), (28, 58, 82)),
    "white 1%": (either_order(simulated.white), 0.01, (1.8, 1.4, 0.9), (3.1, 2.9, 2.4, 1.3), (3, 5, 9)),
    "white 2%": (either_order(simulated.white), 0.02, (2.3, 1.7, 1.1), (3.9, 3.4, 3.8, 3.5), (0, 0, 0)),
    "white 5%": (either_order(simulated.white), 0.05, (2.0, 1.8, 1.0), (4.2, 3.4, 3.6, 3.5), (0, 0, 0)),
    "linear 1%, 1%": (either_order(simulated.linear(0.01)), 0.01, (0.1, 0, 0), (0.7, 0.3, 0.1, 0), (2, 5, 9)),
    "linear 1%, 2%": (either_order(simulated.linear(0.01)), 0.02, (0.9, 0.5, 0.2), (2.8, 2.5, 1.9, 1.0), (0, 0, 0)),
    "quadratic .05%, 1%": (
        either_order(simulated.quadratic(0.0005)),
        0.01,
        (1.3, 0.2, 0),
        (2.9, 1.3, 0.3, 0),
        (3, 5, 9),
    ),
    "quadratic .1%, .3%": (either_order(simulated.quadratic(0.001)), 0.003, (0, 0, 0), (0, 0, 0, 0), (67, 90, 96)),
    "quadratic .25%, .1%": (either_order(simulated.quadratic(0.0025)), 0.001, (0, 0, 0), (0, 0, 0, 0), (53, 2, 63)),
    "quadratic .5%, .3%": (either_order(simulated.quadratic(0.005)), 0.003, (0, 0, 0), (0, 0, 0, 0), (0, 1, 4)),
    "settles 3%, .1%": (either_order(simulated.settling(0.03, 1)), 0.001, (0, 0, 0), (0, 0, 0, 0), (7, 30, 91)),
    "settles 10%, .3%": (either_order(simulated.settling(0.1, 4)), 0.003, (0, 0, 0), (0, 0, 0, 0), (51, 85, 95)),
    "heats 5%, .1%": (either_order(simulated.settling(-0.05, 2)), 0.001, (0, 0, 0), (0, 0, 0, 0), (63, 36, 100)),
    "cold campaign 3%, .1%": (either_order(simulated.cold_campaign(0.03)), 0.001, (0, 0, 0), (0, 0, 0, 0), (0, 0, 26)),
    "cold campaign 3%, 1%": (
        either_order(simulated.cold_campaign(0.03)),
        0.01,
        (1.6, 1.3, 0.6),
        (4.4, 4.0, 3.7, 2.3),
        (1, 1, 4),
    ),
    "cold campaign 5%, 1%": (
        either_order(simulated.cold_campaign(0.05)),
        0.01,
        (0.6, 0.4, 0.2),
        (3.7, 3.7, 3.3, 2.4),
        (0, 0, 1),
    ),
    "cold blocks 1%, .3%": (
        either_order(simulated.cold_blocks(0.01)),
        0.003,
        (0.3, 0.1, 0),
        (0, 0, 0, 0),
        (21, 54, 78),
    ),
    "cold blocks 3%, 1%": (
        either_order(simulated.cold_blocks(0.03)),
        0.01,
        (3.2, 2.5, 1.4),
        (0.1, 0.5, 0.1, 0),
        (0, 0, 0),
    ),
    "cold blocks 5%, discard": (
        either_order(simulated.decaying_blocks(0.05, 1)),
        0.003,
        (0, 0, 0),
        (0, 0, 0, 0),
        (24, 53, 68),
    ),
    "tails 2%, .1%": (either_order(simulated.tails(0.02, 0.2, 1.5)), 0.001, (0, 0, 0), (0, 0, 0, 0), (85, 78, 73)),
    "tails 2%, 2%": (
        either_order(simulated.tails(0.02, 0.2, 1.5)),
        0.02,
        (1.9, 1.2, 1.0),
        (3.5, 3.2, 2.5, 2.3),
        (0, 0, 0),
    ),
    "tails 20%, .3%": (
        either_order(simulated.tails(0.2, 0.02, 0.1)),
        0.003,
        (0.4, 0.2, 0.2),
        (0.9, 1.1, 1.7, 1.1),
        (13, 7, 4),
    ),
    "log-normal, 5%": (
        either_order(simulated.log_normal(1)),
        0.05,
        (1.0, 0.7, 0.6),
        (2.3, 2.4, 2.5, 2.5),
        (0, 0, 0),
    ),
    "AR .5, 1%": (
        either_order(simulated.autoregressive(0.5)),
        0.01,
        (1.2, 0.6, 0.2),
        (2.1, 1.3, 0.6, 0.1),
        (10, 23, 40),
    ),
    "AR .8, 2%": (
        either_order(simulated.autoregressive(0.8)),
        0.02,
        (1.2, 0.6, 0.3),
        (3.2, 2.2, 1.7, 0.4),
        (6, 10, 21),
    ),
    "walk 1%, .3%": (
        either_order(simulated.random_walk(0.01)),
        0.003,
        (0.8, 0.3, 0.1),
        (2.0, 1.1, 0.4, 0.1),
        (11, 22, 39),
    ),
    "bimodal .5, .1%": (
        either_order(simulated.bimodal(0.03, 0.5)),
        0.001,
        (3.8, 2.1, 1.8),
        (4.2, 3.6, 3.4, 2.4),
        (1, 1, 0),
    ),
    "arm x block 1%, .3%": (
        lambda order: simulated.arm_by_block(0.01, order),
        0.003,
        (10.8, 4.5, 2.4),
        (10.8, 4.6, 2.2, 1.3),
        (16, 18, 19),
    ),
    "arm x block 5%, .3%": (
        lambda order: simulated.arm_by_block(0.05, order),
        0.003,
        (30.2, 5.6, 4.9),
        (29.9, 5.8, 5.1, 4.7),
        (1, 0, 0),
    ),
    "one bad block 3%, 1%": (
        lambda order: simulated.one_bad_block(0.03, order),
        0.01,
        (6.9, 4.6, 4.0),
        (7.8, 6.8, 5.9, 5.0),
        (0, 0, 0),
    ),
}


def tolerance(percent: float, printed_step: float) -> float:
    """Four standard errors of the difference of two simulated rates, and half the last printed digit."""
    share = min(max(percent / 100, 0.002), 0.998)
    return 4 * 100 * float(np.sqrt(2 * share * (1 - share) / CAMPAIGNS)) + printed_step / 2


@pytest.mark.parametrize("name", PUBLISHED_NULL_RATES)
def test_published_rates_on_identical_arms_are_reproduced(name: str) -> None:
    scenario, cv, unmirrored, mirrored, same = PUBLISHED_NULL_RATES[name]

    def rates(order: str, counts: Sequence[int]) -> list[Shares]:
        return [shares(scenario(order)(seeded(name, order, blocks), blocks, cv), order) for blocks in counts]

    for expected, found in zip(unmirrored, rates("ABBA", (2, 3, 4)), strict=True):
        assert expected == pytest.approx(found.directional, abs=tolerance(expected, 0.1))
    in_mirrored_order = rates("mirrored", (2, 3, 4, 6))
    for expected, found in zip(mirrored, in_mirrored_order, strict=True):
        assert expected == pytest.approx(found.directional, abs=tolerance(expected, 0.1))
    for expected, found in zip(same, in_mirrored_order[:3], strict=True):
        assert expected == pytest.approx(found.same, abs=tolerance(expected, 1))


# A cold start always favours the candidate, so it hides a true slowdown more easily than a true gain.
@pytest.mark.parametrize("name", NULL_SCENARIOS)
@pytest.mark.parametrize(
    ("order", "slowdown", "allowed_percent"),
    [
        pytest.param("mirrored", -0.01, 5.5, id="mirrored, 1 % faster"),
        pytest.param("mirrored", 0.01, 7.0, id="mirrored, 1 % slower"),
        pytest.param("ABBA", -0.01, 0.8, id="ABBA, 1 % faster"),
        pytest.param("ABBA", 0.01, 3.2, id="ABBA, 1 % slower"),
    ],
)
def test_a_true_effect_of_the_minimum_is_seldom_called_same(
    name: str, order: str, slowdown: float, allowed_percent: float
) -> None:
    for blocks in (2, 4):
        for cv in (0.001, 0.003, 0.01):
            log_times = NULL_SCENARIOS[name](seeded("same", name, blocks, cv), blocks, cv)
            found = shares(log_times + np.log1p(slowdown) * candidate_sign(blocks, order), order)
            assert found.same <= allowed_percent + 0.5, (blocks, cv)
            wrong = found.slower if slowdown < 0 else found.faster
            assert wrong <= 1.2, (blocks, cv)


@pytest.mark.parametrize("cv", [0.001, 0.003, 0.01])
@pytest.mark.parametrize("blocks", [2, 3, 4])
@pytest.mark.parametrize("reduction", [-0.015, 0.015])
def test_curved_drift_never_hides_an_effect_in_unmirrored_order(reduction: float, blocks: int, cv: float) -> None:
    log_times = simulated.quadratic(0.005)(seeded("curved", blocks, cv), blocks, cv)
    log_times = log_times + np.log1p(-reduction) * candidate_sign(blocks, "ABBA")
    assert shares(log_times, "ABBA").same == 0


# Published power of a true effect of 1.5 %, in per cent: cv, then 2, 3, 4 blocks.
@pytest.mark.parametrize(
    ("cv", "published"),
    [
        (0.002, (100, 100, 100)),
        (0.003, (99, 99, 100)),
        (0.004, (91, 96, 99)),
        (0.0045, (84, 94, 98)),
        (0.005, (77, 92, 97)),
        (0.006, (64, 86, 94)),
        (0.0075, (47, 73, 86)),
    ],
    ids=lambda value: f"cv {value:.2%}" if isinstance(value, float) else "",
)
def test_published_power_of_a_small_effect_is_reproduced(cv: float, published: tuple[float, ...]) -> None:
    for blocks, expected in zip((2, 3, 4), published, strict=True):
        log_times = simulated.white(seeded("power", blocks, cv), blocks, cv)
        found = shares(log_times + np.log1p(-0.015) * candidate_sign(blocks, "mirrored"), "mirrored").faster
        assert expected == pytest.approx(found, abs=tolerance(expected, 1))


@pytest.mark.parametrize(
    ("cv", "effect"), [(0.003, 0.0115), (0.005, 0.015), (0.01, 0.02), (0.02, 0.03), (0.02, 0.04), (0.05, 0.1)]
)
def test_power_never_falls_when_blocks_are_added(cv: float, effect: float) -> None:
    found = []
    for blocks in (2, 3, 4, 6, 8):
        log_times = simulated.white(seeded("more", blocks, cv, effect), blocks, cv)
        shifted = log_times + np.log1p(-effect) * candidate_sign(blocks, "mirrored")
        found.append(shares(shifted, "mirrored").faster)
    assert all(later > earlier - 1.0 for earlier, later in itertools.pairwise(found)), found
    assert found[-1] > found[0] + 10


def planned_extension(log_times: np.ndarray, alpha: float) -> np.ndarray:
    """Words of a campaign of two blocks that is extended to four when it is inconclusive."""
    first, _ = judge(log_times[:, :2], "mirrored", alpha=alpha)
    second, _ = judge(log_times, "mirrored", alpha=alpha)
    return np.where(first == "INCONCLUSIVE", second, first)


@pytest.mark.parametrize(
    ("cv", "published"), [(0.003, 99.9), (0.004, 98.9), (0.005, 96.7), (0.006, 92.3), (0.0075, 81.4)]
)
def test_published_power_of_a_planned_extension_is_reproduced(cv: float, published: float) -> None:
    log_times = simulated.white(seeded("extension", cv), 4, cv) + np.log1p(-0.015) * candidate_sign(4, "mirrored")
    found = 100 * float((planned_extension(log_times, 0.025) == "FASTER").mean())
    assert published == pytest.approx(found, abs=tolerance(published, 0.1))


@pytest.mark.parametrize(
    ("alpha", "lowest", "highest"),
    [pytest.param(0.05, 6.5, 8.5, id="95 % at both looks is too many"), pytest.param(0.025, 2.8, 5.0, id="planned")],
)
def test_looking_twice_costs_unless_planned(alpha: float, lowest: float, highest: float) -> None:
    worst = 0.0
    for name in ("white", "campaign starts 5% cold", "2% of runs have a tail", "autoregressive 0.5"):
        for cv in (0.01, 0.02, 0.05):
            log_times = NULL_SCENARIOS[name](seeded("looks", name, cv), 4, cv)
            found = planned_extension(log_times, alpha)
            worst = max(worst, 100 * float(((found == "FASTER") | (found == "SLOWER")).mean()))
    assert lowest <= worst <= highest


def test_a_coarse_timer_creates_no_speedup() -> None:
    """All runs of an arm round alike, so their scatter says nothing about the rounding."""
    tick_s = 0.01
    generator = seeded("tick")
    log_times = simulated.white(generator, 2, 0.0005) + np.log1p(-0.005) * candidate_sign(2, "mirrored")
    start = generator.uniform(0.97, 1.03, (CAMPAIGNS, 1, 1))
    printed = np.log(np.round(start * np.exp(log_times) / tick_s) * tick_s)
    ignored, _ = judge(printed, "mirrored")
    known, _ = judge(printed, "mirrored", tick_s=tick_s)
    assert (ignored == "FASTER").mean() > 0.15
    assert set(known.tolist()) == {"INCONCLUSIVE"}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_swapped_labels_flip_the_word_and_mirror_the_interval(order: str, blocks: int) -> None:
    log_times = simulated.white(seeded("swap", blocks), blocks, 0.01) - 0.02 * candidate_sign(blocks, order)
    mirrored = simulated.is_mirrored(blocks, order)
    seconds = np.exp(log_times)
    once, swapped = (summarise(seconds, flags, alpha=0.05, tick_s=0.0) for flags in (mirrored, ~mirrored))
    found, flipped = (words(summary, check(summary, min_effect=0.01, tick_s=0.0)) for summary in (once, swapped))
    np.testing.assert_allclose(once.effect, -swapped.effect, rtol=0, atol=1e-15)
    np.testing.assert_allclose(once.half_width, swapped.half_width, rtol=1e-9)
    flip = {"FASTER": "SLOWER", "SLOWER": "FASTER", "SAME": "SAME", "INCONCLUSIVE": "INCONCLUSIVE"}
    agreeing = np.array([flip[word] for word in found.tolist()]) == flipped
    # A slower candidate is further from 1 in per cent than a faster one of equal log size, so a reduction between
    # the minimum effect and its mirror image may reach it on one side only.
    near_minimum = np.abs(np.abs(once.effect) - 0.01) < 1e-4
    widest = np.abs(np.abs(once.effect) + once.half_width + once.alias - 0.01) < 1e-4
    robust = np.abs(np.abs(once.pair_median) - 0.005) < 1e-4
    assert (agreeing | near_minimum | widest | robust).all()
    assert agreeing.mean() > 0.97


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("scale", [1e-3, 1000.0])
def test_the_unit_of_time_does_not_matter(order: str, scale: float) -> None:
    log_times = simulated.white(seeded("unit"), 3, 0.006) - 0.012 * candidate_sign(3, order)
    found, _ = judge(log_times, order)
    scaled, _ = judge(log_times + np.log(scale), order)
    assert len(set(found.tolist())) >= 2
    assert (found == scaled).all()


@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_one_campaign_and_ten_thousand_are_judged_alike(blocks: int) -> None:
    generator = seeded("alike", blocks)
    log_times = simulated.white(generator, blocks, 0.005) + generator.normal(
        0, 0.02, (CAMPAIGNS, 1, 1)
    ) * candidate_sign(blocks, "mirrored")
    log_times = log_times[:150]
    batch, _ = judge(log_times, "mirrored", min_effect=0.01, alpha=0.025)
    orientations = simulated.MIRRORED_ORDER[:blocks]
    single = [
        decide(
            [
                Block(orientation, tuple(seconds))
                for orientation, seconds in zip(orientations, np.exp(campaign).tolist(), strict=True)
            ],
            Thresholds(alpha=0.025),
        ).word.value
        for campaign in log_times
    ]
    assert batch.tolist() == single
    assert blocks == 1 or {"FASTER", "SLOWER", "INCONCLUSIVE"} <= set(single)
