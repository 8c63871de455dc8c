from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fuseproof.harness.statistics.comparison import Block, Thresholds
from fuseproof.harness.statistics.reasons import share_of_log, share_of_scatter
from fuseproof.harness.statistics.verdict import Reason, Verdict, Word, decide, invalid, post_worker_tails
from tests.harness.simulated_campaigns import MIRRORED_ORDER

CONTENTION = Reason("CONTENTION", "another process used the device", "Wait for an idle device.")


def made(
    effect: float, *, drift: float = 0.0, count: int = 2, order: str = "mirrored", noise: float = 0.0
) -> list[Block]:
    """Blocks with an exact log effect, a drift per slot over the whole campaign and a cubic residual."""
    blocks = []
    for index in range(count):
        orientation: Any = MIRRORED_ORDER[index] if order == "mirrored" else "ABBA"
        arms = np.array([0, 1, 1, 0] if orientation == "ABBA" else [1, 0, 0, 1])
        residual = noise * np.array([-1, 3, -3, 1]) / math.sqrt(20)
        log_times = effect * arms + drift * (4 * index + np.arange(4)) + residual
        first, second, third, fourth = np.exp(log_times).tolist()
        blocks.append(Block(orientation, (first, second, third, fourth)))
    return blocks


def per_block(*effects: float, order: str = "mirrored", noise: float = 0.0) -> list[Block]:
    return [made(effect, count=index + 1, order=order, noise=noise)[index] for index, effect in enumerate(effects)]


def codes(reasons: Sequence[Reason]) -> list[str]:
    return [reason.code for reason in reasons]


def reported(
    blocks: Sequence[Block], thresholds: Thresholds | None = None, **kwargs: Any
) -> tuple[str, list[str], list[str]]:
    verdict = decide(blocks, thresholds, **kwargs)
    return verdict.word.value, codes(verdict.reasons), codes(verdict.warnings)


# One baseline run is slow in three of four blocks: the means move, most pairs do not.
ROBUST = [
    Block("ABBA", (1, 1, 1, 1.029)),
    Block("ABBA", (1.029, 1, 1, 1)),
    Block("ABBA", (1, 1, 1, 1.029)),
    Block("ABBA", (1, 1, 1, 1)),
]
TAILED = [Block("ABBA", (10, 15, 9.9, 10)), Block("BAAB", (9.9, 10, 10, 9.91))]


@pytest.mark.parametrize(
    ("blocks", "thresholds", "expected"),
    [
        pytest.param(made(-0.05), None, ("FASTER", [], []), id="faster"),
        pytest.param(made(0.05), None, ("SLOWER", [], []), id="slower"),
        pytest.param(made(0.0), None, ("SAME", [], []), id="same"),
        pytest.param([], None, ("INCONCLUSIVE", ["TOO_FEW_BLOCKS"], []), id="no block"),
        pytest.param([Block("ABBA", (10, 9, 9, 10))], None, ("INCONCLUSIVE", ["TOO_FEW_BLOCKS"], []), id="one block"),
        pytest.param(
            [Block("ABBA", (10.0, 10.1, 10.2, 10.3))],
            None,
            ("INCONCLUSIVE", ["TOO_FEW_BLOCKS", "DRIFT"], []),
            id="one drifting block",
        ),
        pytest.param(
            [Block("ABBA", (10.0, 10.1, 10.2, 10.3)), Block("BAAB", (10.0, 10.1, 10.2, 10.3))],
            None,
            ("SAME", [], ["DRIFT_SEEN"]),
            id="a mirrored drifting block",
        ),
        pytest.param(
            made(-0.05), Thresholds(tick_s=0.01), ("INCONCLUSIVE", ["TIMER_RESOLUTION"], []), id="timer resolution"
        ),
        pytest.param(
            [Block("ABBA", (8.790, 7.850, 7.850, 8.790)), Block("ABBA", (7.915, 7.895, 7.895, 7.915))],
            None,
            ("INCONCLUSIVE", ["BLOCKS_DISAGREE", "SPREAD_EXCEEDS_EFFECT"], ["ORDER_NOT_MIRRORED"]),
            id="blocks disagree",
        ),
        pytest.param(
            per_block(-0.05, -0.05, -0.05, -0.05, -0.05, -0.05, 0.05, -0.05),
            None,
            ("INCONCLUSIVE", ["BLOCKS_DISAGREE", "CURVED_DRIFT"], ["MEAN_MEDIAN_DISAGREE", "BETWEEN_BLOCK_INTERVAL"]),
            id="one block contradicts seven",
        ),
        pytest.param(
            per_block(*(-0.02,) * 6, 0.0265, -0.02, noise=0.0091),
            None,
            ("INCONCLUSIVE", ["BLOCKS_DISAGREE"], []),
            id="one block contradicts seven, within the spread of the runs",
        ),
        pytest.param(made(-0.02, noise=0.02), None, ("INCONCLUSIVE", ["SPREAD_EXCEEDS_EFFECT"], []), id="spread"),
        pytest.param(made(-0.008, noise=0.002), None, ("INCONCLUSIVE", ["BELOW_MIN_EFFECT"], []), id="below minimum"),
        pytest.param(
            ROBUST,
            None,
            ("INCONCLUSIVE", ["ROBUST_DISAGREES", "DRIFT"], ["MEAN_MEDIAN_DISAGREE", "ORDER_NOT_MIRRORED"]),
            id="robust",
        ),
        pytest.param(made(-0.015, drift=0.01), None, ("INCONCLUSIVE", ["DRIFT"], []), id="drift"),
        pytest.param(
            made(-0.03, drift=0.01, order="ABBA"),
            None,
            ("INCONCLUSIVE", ["DRIFT", "ORDER_NOT_MIRRORED"], []),
            id="drift that mirroring would have removed",
        ),
        pytest.param(
            made(-0.015, drift=0.01, order="ABBA"),
            None,
            ("INCONCLUSIVE", ["DRIFT"], ["ORDER_NOT_MIRRORED"]),
            id="drift that mirroring would not have removed",
        ),
        pytest.param(
            made(0.0089, drift=0.0009, order="ABBA"),
            None,
            ("INCONCLUSIVE", ["ORDER_NOT_MIRRORED"], []),
            id="only the allowance for drift prevents SAME",
        ),
        pytest.param(
            made(0.0, drift=0.01, order="ABBA"),
            None,
            ("INCONCLUSIVE", ["DRIFT", "ORDER_NOT_MIRRORED"], []),
            id="unmirrored drift",
        ),
        pytest.param(
            per_block(-0.02, 0.02),
            None,
            ("INCONCLUSIVE", ["BLOCKS_DISAGREE", "SPREAD_EXCEEDS_EFFECT", "CURVED_DRIFT"], []),
            id="curved drift",
        ),
        pytest.param(
            per_block(-0.011, -0.004),
            None,
            ("INCONCLUSIVE", ["BLOCKS_DISAGREE", "BELOW_MIN_EFFECT"], []),
            id="too little curvature to matter",
        ),
        pytest.param(
            TAILED,
            None,
            (
                "INCONCLUSIVE",
                ["SPREAD_EXCEEDS_EFFECT", "TAIL_OUTLIER"],
                ["MEAN_MEDIAN_DISAGREE"],
            ),
            id="tail",
        ),
        pytest.param(made(-0.004), None, ("SAME", [], ["RESOLVED_BELOW_MIN_EFFECT"]), id="resolved below minimum"),
        pytest.param(made(-0.05), Thresholds(alpha=0.025), ("FASTER", [], ["LOOKS"]), id="looks"),
        pytest.param(made(-0.05, order="ABBA"), None, ("FASTER", [], ["ORDER_NOT_MIRRORED"]), id="unmirrored"),
        pytest.param(made(-0.05, drift=0.002), None, ("FASTER", [], ["DRIFT_SEEN"]), id="drift seen"),
        pytest.param(
            per_block(-0.050, -0.0505, -0.048),
            None,
            ("FASTER", [], ["BETWEEN_BLOCK_INTERVAL"]),
            id="between-block interval",
        ),
        pytest.param(
            [Block("ABBA", (10.2, 9.0, 9.0, 10.0)), Block("BAAB", (9.0, 10.0, 10.0, 9.0))],
            None,
            ("FASTER", [], ["FIRST_SLOT_SLOW"]),
            id="first slot slow",
        ),
    ],
)
def test_word_reasons_and_warnings(
    blocks: list[Block], thresholds: Thresholds | None, expected: tuple[str, list[str], list[str]]
) -> None:
    assert expected == reported(blocks, thresholds)


@pytest.mark.parametrize(
    ("word", "blocks"),
    [
        pytest.param("SAME", made(math.log1p(-0.0097)), id="-0.97 % and its interval"),
        pytest.param("INCONCLUSIVE", made(math.log1p(-0.0099)), id="-0.99 %: interval reaches the minimum"),
        pytest.param("FASTER", made(math.log1p(-0.0101)), id="-1.01 %"),
        pytest.param("SAME", made(math.log1p(0.0097)), id="+0.97 % and its interval"),
        pytest.param("INCONCLUSIVE", made(math.log1p(0.0099)), id="+0.99 %: interval reaches the minimum"),
        pytest.param("SLOWER", made(math.log1p(0.0101)), id="+1.01 %"),
        pytest.param("INCONCLUSIVE", made(-0.0199, drift=0.01), id="1.99 slopes"),
        pytest.param("FASTER", made(-0.0201, drift=0.01), id="2.01 slopes"),
        pytest.param("INCONCLUSIVE", made(-0.0399, drift=0.01, order="ABBA"), id="3.99 slopes, unmirrored"),
        pytest.param("FASTER", made(-0.0401, drift=0.01, order="ABBA"), id="4.01 slopes, unmirrored"),
        pytest.param("SAME", made(0.0, drift=0.0057, order="ABBA"), id="5/3 slopes of 0.57 %, unmirrored"),
        pytest.param("INCONCLUSIVE", made(0.0, drift=0.0060, order="ABBA"), id="5/3 slopes of 0.60 %, unmirrored"),
        pytest.param("FASTER", made(-0.03, noise=0.0163), id="interval from two blocks"),
        pytest.param("INCONCLUSIVE", made(-0.03, noise=0.0164), id="just too wide from two blocks"),
        pytest.param("FASTER", made(-0.03, noise=0.0335, count=4), id="interval from four blocks"),
        pytest.param("INCONCLUSIVE", made(-0.03, noise=0.0338, count=4), id="just too wide from four blocks"),
    ],
)
def test_where_the_word_changes(word: str, blocks: list[Block]) -> None:
    assert word == decide(blocks).word.value


def test_a_cap_forbids_any_word_and_leads_the_reasons() -> None:
    for effect in (-0.05, 0.0, 0.05):
        assert ("INCONCLUSIVE", ["CONTENTION"], []) == reported(made(effect), caps=[CONTENTION])
    one_block = decide([Block("ABBA", (10, 9, 9, 10))], Thresholds(tick_s=0.1), caps=[CONTENTION])
    assert ["TOO_FEW_BLOCKS", "TIMER_RESOLUTION", "CONTENTION"] == codes(one_block.reasons)
    assert one_block.headline is one_block.reasons[0]


def test_the_callers_warnings_come_last() -> None:
    added = Reason("ADDED_BLOCKS", "two blocks were added after INCONCLUSIVE", "Quote both verdicts.")
    assert ["LOOKS", "ADDED_BLOCKS"] == reported(made(-0.05), Thresholds(alpha=0.01), warnings=[added])[2]
    assert ["ADDED_BLOCKS"] == codes(decide([], warnings=[added]).warnings)


def test_an_invalid_measurement_has_no_number() -> None:
    unequal = Reason("UNEQUAL_WORK", "50 steps against 27", "Give both arms the same request.")
    assert Verdict(Word.INVALID, (unequal,), (), None) == invalid(unequal)


def test_every_reason_says_what_to_do_next() -> None:
    seen: dict[str, Reason] = {}
    campaigns = [
        (made(0.0), None),
        (made(-0.004), None),
        ([Block("ABBA", (10, 9, 9, 10))], None),
        (made(-0.05), Thresholds(tick_s=0.01)),
        (made(-0.05, order="ABBA", drift=0.002), Thresholds(alpha=0.025)),
        (made(-0.02, noise=0.02), None),
        (made(-0.02, noise=0.2), None),
        (made(-0.008, noise=0.002), None),
        (made(-0.03, drift=0.01, order="ABBA"), None),
        (per_block(-0.02, 0.02), None),
        (per_block(-0.050, -0.0505, -0.048), None),
        (ROBUST, None),
        (TAILED, None),
        ([Block("ABBA", (10.2, 9.0, 9.0, 10.0)), Block("BAAB", (9.0, 10.0, 10.0, 9.0))], None),
    ]
    for blocks, thresholds in campaigns:
        verdict = decide(blocks, thresholds)
        seen |= {reason.code: reason for reason in (*verdict.reasons, *verdict.warnings)}
        assert (verdict.word is Word.INCONCLUSIVE) is bool(verdict.reasons)
    assert {
        "BELOW_MIN_EFFECT",
        "BETWEEN_BLOCK_INTERVAL",
        "BLOCKS_DISAGREE",
        "CURVED_DRIFT",
        "DRIFT",
        "DRIFT_SEEN",
        "FIRST_SLOT_SLOW",
        "LOOKS",
        "MEAN_MEDIAN_DISAGREE",
        "ORDER_NOT_MIRRORED",
        "RESOLVED_BELOW_MIN_EFFECT",
        "ROBUST_DISAGREES",
        "SPREAD_EXCEEDS_EFFECT",
        "TAIL_OUTLIER",
        "TIMER_RESOLUTION",
        "TOO_FEW_BLOCKS",
    } == set(seen)
    for reason in seen.values():
        assert reason.detail
        assert reason.next_step.endswith("."), reason


@pytest.mark.parametrize(
    ("noise", "count", "advice"),
    [
        pytest.param(0.012, 2, "--blocks 6", id="four would do, an estimate from two asks for more"),
        pytest.param(0.2, 2, "a quieter machine", id="no number of blocks would do"),
    ],
)
def test_too_much_spread_names_the_blocks_it_would_take(noise: float, count: int, advice: str) -> None:
    headline = decide(made(-0.02, noise=noise, count=count)).headline
    assert headline is not None
    assert advice in headline.next_step


@pytest.mark.parametrize(
    ("count", "advice"), [(2, "--blocks 4"), (3, "--blocks 4"), (4, "--blocks 6"), (5, "--blocks 6")]
)
def test_more_blocks_means_more_than_there_are_and_an_even_number(count: int, advice: str) -> None:
    headline = decide(per_block(*(-0.08, 0.0, -0.08, 0.01, -0.09)[:count])).headline
    assert headline is not None
    assert "BLOCKS_DISAGREE" == headline.code
    assert advice in headline.next_step


@pytest.mark.parametrize(
    ("slow_s", "found"), [pytest.param(10.29, [], id="2.9 %"), pytest.param(10.31, ["TAIL_OUTLIER"], id="3.1 %")]
)
def test_a_tail_is_three_per_cent_above_its_arm(slow_s: float, found: list[str]) -> None:
    verdict = decide([Block("ABBA", (10, 9, 9, 10)), Block("BAAB", (9, 10, slow_s, 9))])
    assert found == [code for code in codes(verdict.warnings) if code == "TAIL_OUTLIER"]
    if found:
        assert "block 2 slot 3 (A2)" in verdict.warnings[-1].detail


def test_a_tail_is_above_its_partner_and_beyond_the_usual_spread() -> None:
    both_slow = [Block("ABBA", (10, 9, 9, 10)), Block("BAAB", (9, 10.5, 10.4, 9)), Block("BAAB", (9, 10, 10, 9))]
    assert "TAIL_OUTLIER" not in codes([*decide(both_slow).warnings, *decide(both_slow).reasons])
    spreads = [Block("ABBA", (10, 9.1, 9, 10.1)), Block("BAAB", (9, 10, 10.45, 9.1))]
    assert "TAIL_OUTLIER" not in codes([*decide(spreads).warnings, *decide(spreads).reasons])
    only_above_partner = [Block("ABBA", (10.45, 9, 9, 10)), Block("BAAB", (9, 10.4, 10.4, 9))]
    assert "TAIL_OUTLIER" not in codes([*decide(only_above_partner).warnings, *decide(only_above_partner).reasons])
    one_block = decide([Block("ABBA", (12, 9, 9, 10))])
    assert "TAIL_OUTLIER" not in codes([*one_block.warnings, *one_block.reasons])


@pytest.mark.parametrize(("first_s", "warned"), [(10.09, False), (10.11, True)])
def test_a_cold_start_is_one_per_cent_above_its_arm(first_s: float, warned: bool) -> None:
    verdict = decide([Block("ABBA", (first_s, 9, 9, 10)), Block("BAAB", (9, 10, 10, 9))])
    assert warned is ("FIRST_SLOT_SLOW" in codes(verdict.warnings))


def test_a_tail_after_the_work_is_found_by_its_excess() -> None:
    worker = [Block("ABBA", (6.287877, 6.147133, 6.145752, 6.285083))]
    client = [Block("ABBA", (8.47, 6.49, 6.49, 6.63))]
    (tail,) = post_worker_tails(worker, client, 0.01)
    assert "POST_WORKER_TAIL" == tail.code
    assert "block 1 slot 1 (A1): post-worker gap 2.18 s against 0.34 s" == tail.detail


@pytest.mark.parametrize(
    ("gaps", "tick_s", "slots"),
    [
        pytest.param((0.3, 0.3, 0.49, 0.3), 0.0, [], id="1.9 % of the run"),
        pytest.param((0.3, 0.3, 0.52, 0.3), 0.0, ["slot 3"], id="2.1 % of the run"),
        pytest.param((0.3, 0.2, 0.72, 0.4), 0.0, [], id="within five deviations"),
        pytest.param((0.3, 0.3, 0.6, 0.3), 0.2, [], id="within two ticks"),
        pytest.param((0.3, 0.3, 0.1, 0.3), 0.0, [], id="a short gap is no tail"),
    ],
)
def test_what_counts_as_a_tail_after_the_work(gaps: tuple[float, ...], tick_s: float, slots: list[str]) -> None:
    worker = [Block("ABBA", (10.0, 10.0, 10.0, 10.0))]
    first, second, third, fourth = (10.0 + gap for gap in gaps)
    found = post_worker_tails(worker, [Block("ABBA", (first, second, third, fourth))], tick_s)
    assert len(slots) == len(found)
    assert all(slot in reason.detail for slot, reason in zip(slots, found, strict=True))


def test_tails_need_the_same_runs_on_both_timers() -> None:
    with pytest.raises(ValueError, match="same runs"):
        post_worker_tails(made(0.0), made(0.0, order="ABBA"), 0.0)


def test_a_verdict_survives_strict_json() -> None:
    verdict = decide(made(-0.05))
    data = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert "FASTER" == data["word"]
    assert verdict.comparison is not None
    assert verdict.comparison.reduction == data["comparison"]["reduction"]
    assert json.loads(json.dumps(decide([]).to_json(), allow_nan=False))["comparison"] is None


ONE_SLOW = (3.80, 3.78, 4.30, 3.82)
"""A1 B1 B2 A2 with one slow candidate: the arithmetic means are further apart than the geometric ones."""


def test_the_printed_means_give_the_printed_effect() -> None:
    comparison = decide([Block("ABBA", ONE_SLOW), Block("BAAB", (3.9, 3.7, 4.4, 3.8))]).comparison
    assert comparison is not None
    means = comparison.candidate.geometric_mean_s / comparison.baseline.geometric_mean_s
    assert pytest.approx(1 - means, abs=1e-12) == comparison.reduction


@pytest.mark.parametrize(
    ("warned", "seconds"),
    [
        pytest.param(False, ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5)), id="quiet"),
        pytest.param(True, ((10.0, 8.0, 13.0, 10.0), (8.0, 10.0, 10.0, 13.0)), id="size"),
        pytest.param(True, ((10.0, 9.43, 10.59, 10.0), (9.43, 10.0, 10.0, 10.59)), id="sign"),
        pytest.param(False, ((10.0, 9.999, 10.002, 10.0), (9.999, 10.0, 10.0, 10.002)), id="sign of nothing"),
    ],
)
def test_a_point_estimate_is_not_quoted_where_the_forms_disagree(
    warned: bool, seconds: tuple[tuple[float, float, float, float], ...]
) -> None:
    blocks = [Block(way, row) for way, row in zip(MIRRORED_ORDER, seconds, strict=False)]
    verdict = decide(blocks)
    assert warned == ("MEANS_DISAGREE" in codes(verdict.warnings))
    if warned:
        (reason,) = [reason for reason in verdict.warnings if reason.code == "MEANS_DISAGREE"]
        assert "by arithmetic means" in reason.detail and "by geometric ones" in reason.detail


def test_drift_is_a_true_percentage_with_its_sign_and_its_rule() -> None:
    """Half the time a slot is −50 %, not −69.3 %; the guard of one block is four mean drifts in log units."""
    verdict = decide([Block("ABBA", (8.0, 4.0, 2.0, 1.0))])
    (reason,) = [reason for reason in verdict.reasons if reason.code == "DRIFT"]
    assert "change by −50.00 % a slot" in reason.detail and "(4 mean drifts)" in reason.detail
    assert -0.5 == pytest.approx(share_of_log(-0.6931471805599453))


def test_scatter_is_a_share_of_the_time() -> None:
    """The coefficient of variation of log-normal times; small ones keep every printed digit."""
    assert 0.5180 == pytest.approx(share_of_scatter(0.48779), abs=5e-4)
    assert 0.003 == pytest.approx(share_of_scatter(0.003), abs=1e-7)
