"""Published A-B-B-A evidence, read again by our statistics.

LongLive 2 rows: sgl-project/sglang#40405, "All 32 unprofiled native A/B measurements" and its table of groups. LongCat
rows: sgl-project/sglang#38530. SenseNova: #40374. Cosmos3-Edge: #40386. Klein (#40490): perf dumps. All ran A-B-B-A.
Published figures come from unrounded times, ours from the printed ones: they agree within one unit of the last digit.
"""

from __future__ import annotations

import pytest

from fuseproof.harness.statistics.comparison import Block, Comparison, Thresholds, compare
from fuseproof.harness.statistics.verdict import Reason, Verdict, decide, post_worker_tails

Times = tuple[float, float, float, float]
CLIENT_TICK_S = 0.01

# Slot order A1 B1 B2 A2: worker, denoise, client.
LONGLIVE: dict[str, tuple[Times, Times, Times]] = {
    "i2v-r1": ((5.6134, 5.2737, 5.2668, 5.6089), (1.5025, 1.5001, 1.5049, 1.5030), (6.00, 5.66, 5.66, 6.00)),
    "i2v-r2": ((5.6152, 5.2896, 5.2771, 5.6082), (1.5060, 1.4984, 1.5016, 1.4976), (6.03, 6.01, 5.67, 5.99)),
    "i2v-r3": ((5.5936, 5.2842, 5.2915, 5.6008), (1.4966, 1.5018, 1.4995, 1.4988), (5.98, 5.66, 5.67, 5.98)),
    "i2v-r4": ((5.6242, 5.2861, 5.2848, 5.6077), (1.5043, 1.4992, 1.5029, 1.5032), (7.08, 5.77, 5.67, 6.00)),
    "t2v-r1": ((2.3958, 2.2457, 2.2472, 2.3893), (0.5853, 0.5804, 0.5823, 0.5811), (2.69, 5.93, 2.54, 2.69)),
    "t2v-r2": ((2.3927, 2.2613, 2.2618, 2.3885), (0.5824, 0.5838, 0.5848, 0.5830), (2.71, 2.57, 2.56, 2.68)),
    "t2v-r3": ((2.3965, 2.2829, 2.2736, 2.4002), (0.5867, 0.5873, 0.5838, 0.5849), (2.70, 2.57, 2.59, 2.77)),
    "t2v-r4": ((2.3875, 2.2701, 2.2708, 2.3934), (0.5836, 0.5796, 0.5845, 0.5860), (2.68, 2.57, 5.18, 2.69)),
}
TIMERS = ("worker", "denoise", "client")

# Mean of A, mean of B, reduction in per cent: worker, denoise, client.
PUBLISHED_GROUPS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "i2v-r1": ((5.6111, 5.2703, 6.07), (1.5028, 1.5025, 0.01), (6.0000, 5.6600, 5.67)),
    "i2v-r2": ((5.6117, 5.2834, 5.85), (1.5018, 1.5000, 0.12), (6.0100, 5.8400, 2.83)),
    "i2v-r3": ((5.5972, 5.2878, 5.53), (1.4977, 1.5007, -0.20), (5.9800, 5.6650, 5.27)),
    "i2v-r4": ((5.6159, 5.2855, 5.88), (1.5038, 1.5011, 0.18), (6.5400, 5.7200, 12.54)),
    "t2v-r1": ((2.3925, 2.2465, 6.10), (0.5832, 0.5813, 0.32), (2.6900, 4.2350, -57.43)),
    "t2v-r2": ((2.3906, 2.2615, 5.40), (0.5827, 0.5843, -0.28), (2.6950, 2.5650, 4.82)),
    "t2v-r3": ((2.3984, 2.2782, 5.01), (0.5858, 0.5856, 0.04), (2.7350, 2.5800, 5.67)),
    "t2v-r4": ((2.3905, 2.2704, 5.02), (0.5848, 0.5821, 0.47), (2.6850, 3.8750, -44.32)),
}

# total_duration_ms of the published perf dumps, seconds, slot order A1 B1 B2 A2.
DUMPS: dict[str, Times] = {
    "i2v-r1": (5.613361400028225, 5.273721693956759, 5.266824344987981, 5.608889177034143),
    "i2v-r3": (5.593641165003646, 5.284202835988253, 5.291453545971308, 5.600845689012203),
    "klein-r1": (6.185659421957098, 6.0265360759804025, 6.031235705013387, 6.185458332009148),
    "klein-r2": (6.185690525977407, 6.031538848998025, 6.022261208039708, 6.190122045984026),
    "sensenova-r1": (20.352705, 19.333794, 19.422296, 20.360226),
    "sensenova-r2": (20.358656, 19.333087, 19.374312, 20.457219),
}


def longlive(mode: str, timer: str) -> list[Block]:
    column = TIMERS.index(timer)
    return [Block("ABBA", LONGLIVE[f"{mode}-{group}"][column], group) for group in ("r1", "r2", "r3", "r4")]


def dumps(*names: str) -> list[Block]:
    return [Block("ABBA", DUMPS[name], name) for name in names]


def percents(*shares: float) -> tuple[float, ...]:
    return tuple(100 * share for share in shares)


def numbers(verdict: Verdict) -> Comparison:
    assert verdict.comparison is not None
    return verdict.comparison


def with_code(reasons: tuple[Reason, ...], code: str) -> list[str]:
    return [reason.detail for reason in reasons if reason.code == code]


@pytest.mark.parametrize("timer", TIMERS)
@pytest.mark.parametrize("group", PUBLISHED_GROUPS)
def test_the_groups_of_the_longlive_table(group: str, timer: str) -> None:
    baseline_s, candidate_s, reduction = PUBLISHED_GROUPS[group][TIMERS.index(timer)]
    found = compare([Block("ABBA", LONGLIVE[group][TIMERS.index(timer)])])
    (block,) = found.blocks
    assert baseline_s == pytest.approx(block.baseline_mean_s, abs=1.01e-4)
    assert candidate_s == pytest.approx(block.candidate_mean_s, abs=1.01e-4)
    assert reduction == pytest.approx(100 * block.mean_reduction, abs=0.0101)
    assert block.mean_reduction == pytest.approx(found.mean_reduction, rel=1e-12)


@pytest.mark.parametrize(
    ("baseline", "candidate", "reduction"),
    [
        pytest.param((7.446897, 7.449725), (7.165762, 7.175107), 3.731, id="eager Image lossless"),
        pytest.param((7.206739, 7.220042), (6.953937, 6.967295), 3.504, id="eager Image high"),
        pytest.param((17.175946, 17.208413), (16.705402, 16.732543), 2.752, id="eager Edit lossless"),
        pytest.param((16.781902, 16.826185), (16.356323, 16.331516), 2.738, id="eager Edit high"),
        pytest.param((1.662449, 1.668380), (1.638115, 1.631985), 1.823, id="eager Edit-Turbo lossless"),
        pytest.param((1.631460, 1.595840), (1.587681, 1.552630), 2.695, id="eager Edit-Turbo high"),
        pytest.param((7.323091,) * 2, (7.045838,) * 2, 3.786, id="denoise Image lossless"),
        pytest.param((7.144771,) * 2, (6.890551,) * 2, 3.558, id="denoise Image high"),
        pytest.param((16.774165,) * 2, (16.292357,) * 2, 2.872, id="denoise Edit lossless"),
        pytest.param((16.424011,) * 2, (15.956956,) * 2, 2.844, id="denoise Edit high"),
        pytest.param((1.324374,) * 2, (1.287778,) * 2, 2.763, id="denoise Edit-Turbo lossless"),
        pytest.param((1.298517,) * 2, (1.260509,) * 2, 2.927, id="denoise Edit-Turbo high"),
        pytest.param((7.449374, 7.467250), (7.181330, 7.194634), 3.625, id="graph Image lossless"),
    ],
)
def test_the_longcat_tables(baseline: tuple[float, float], candidate: tuple[float, float], reduction: float) -> None:
    found = compare([Block("ABBA", (baseline[0], candidate[0], candidate[1], baseline[1]))])
    assert reduction == pytest.approx(100 * found.mean_reduction, abs=0.00101)


def test_longlive_t2v_client_proves_nothing() -> None:
    blocks = longlive("t2v", "client")
    tails = post_worker_tails(longlive("t2v", "worker"), blocks, CLIENT_TICK_S)
    verdict = decide(blocks, warnings=tails)
    found = numbers(verdict)
    assert "INCONCLUSIVE" == verdict.word
    assert ["SPREAD_EXCEEDS_EFFECT", "TAIL_OUTLIER", "TAIL_OUTLIER"] == [reason.code for reason in verdict.reasons]
    assert "block r1 slot 2 (B1)" in verdict.reasons[1].detail
    assert "block r4 slot 3 (B2)" in verdict.reasons[2].detail
    assert "worker" in verdict.reasons[0].next_step
    assert (-15.19, -22.67, 4.47, 31.6) == pytest.approx(
        percents(found.reduction, found.mean_reduction, found.pair_median_reduction, found.scatter), abs=0.03
    )
    assert (-67.3, 20.7) == pytest.approx(percents(*found.interval), abs=0.05)
    assert with_code(verdict.warnings, "MEAN_MEDIAN_DISAGREE")
    assert [
        "block r1 slot 2 (B1): post-worker gap 3.68 s against 0.30 s",
        "block r3 slot 4 (A2): post-worker gap 0.37 s against 0.30 s",
        "block r4 slot 3 (B2): post-worker gap 2.91 s against 0.30 s",
    ] == with_code(verdict.warnings, "POST_WORKER_TAIL")
    # 48 % in mirrored order; these blocks were not mirrored.
    assert found.smallest_detectable_effect is not None
    assert 48 == pytest.approx(100 * found.smallest_detectable_effect / 1.25, abs=0.5)
    assert 80.05 == pytest.approx(100 * found.noise_floor, abs=0.01)
    assert 0.94 == pytest.approx(100 * found.noise_floor_median, abs=0.005)
    assert (4.461, 5.224) == pytest.approx(percents(found.median_reduction, found.minimum_reduction), abs=0.001)


def test_longlive_t2v_worker_is_faster_and_its_blocks_differ() -> None:
    """Groups 1 and 2 measured another candidate commit than groups 3 and 4."""
    verdict = decide(longlive("t2v", "worker"))
    found = numbers(verdict)
    assert "FASTER" == verdict.word
    assert 5.384 == pytest.approx(100 * found.reduction, abs=0.001)
    assert (4.96, 5.81) == pytest.approx(percents(*found.interval), abs=0.005)
    assert (4.56, 6.20) == pytest.approx(percents(*found.interval_used), abs=0.005)
    assert found.is_widened
    assert with_code(verdict.warnings, "BETWEEN_BLOCK_INTERVAL")
    assert (6.11, 5.40, 5.01, 5.02) == pytest.approx(percents(*(block.reduction for block in found.blocks)), abs=0.01)


def test_longlive_i2v_client_has_a_direction_but_no_size() -> None:
    blocks = longlive("i2v", "client")
    verdict = decide(blocks, warnings=post_worker_tails(longlive("i2v", "worker"), blocks, CLIENT_TICK_S))
    found = numbers(verdict)
    assert "FASTER" == verdict.word
    assert 6.58 == pytest.approx(100 * found.reduction, abs=0.005)
    assert (2.82, 10.19) == pytest.approx(percents(*found.interval), abs=0.005)
    assert 5.43 == pytest.approx(100 * found.pair_median_reduction, abs=0.005)
    assert with_code(verdict.warnings, "MEAN_MEDIAN_DISAGREE")
    assert ["block r2 slot 2 (B1)", "block r4 slot 1 (A1)"] == [
        detail.split(" took")[0] for detail in with_code(verdict.warnings, "TAIL_OUTLIER")
    ]
    assert "block r2 slot 2 (B1): post-worker gap 0.72 s against 0.39 s" in with_code(
        verdict.warnings, "POST_WORKER_TAIL"
    )
    # The word stands when the log's step of 0.01 s is taken into account.
    assert "FASTER" == decide(blocks, Thresholds(tick_s=CLIENT_TICK_S)).word


@pytest.mark.parametrize(
    ("blocks", "word", "reduction", "interval", "within"),
    [
        pytest.param(longlive("i2v", "worker"), "FASTER", 5.835, (5.64, 6.02), 0.006, id="longlive i2v worker"),
        pytest.param(longlive("i2v", "denoise"), "SAME", 0.03, (-0.19, 0.25), 0.005, id="longlive i2v denoise"),
        pytest.param(longlive("t2v", "denoise"), "SAME", 0.14, (-0.26, 0.54), 0.005, id="longlive t2v denoise"),
        pytest.param(dumps("i2v-r1", "i2v-r3"), "FASTER", 5.80, (5.29, 6.32), 0.006, id="longlive i2v dumps"),
        pytest.param(dumps("klein-r1", "klein-r2"), "FASTER", 2.57, (2.39, 2.74), 0.005, id="klein dumps"),
        pytest.param(dumps("sensenova-r1", "sensenova-r2"), "FASTER", 4.99, (4.49, 5.48), 0.005, id="sensenova worker"),
    ],
)
def test_words_and_intervals(
    blocks: list[Block], word: str, reduction: float, interval: tuple[float, float], within: float
) -> None:
    verdict = decide(blocks)
    found = numbers(verdict)
    assert word == verdict.word
    assert reduction == pytest.approx(100 * found.reduction, abs=within)
    assert interval == pytest.approx(percents(*found.interval), abs=within)
    assert 2 * len(blocks) - 1 == found.degrees_of_freedom


def test_sensenova_per_block_and_pooled() -> None:
    found = compare(dumps("sensenova-r1", "sensenova-r2"))
    assert (4.806, 5.166) == pytest.approx(percents(*(block.mean_reduction for block in found.blocks)), abs=0.0005)
    assert 4.986 == pytest.approx(100 * found.mean_reduction, abs=0.0005)
    assert (4.938, 5.010) == pytest.approx(percents(found.median_reduction, found.minimum_reduction), abs=0.0005)


def test_two_kernel_campaign_groups_that_disagree() -> None:
    """Published as -10.69 % and -0.25 % latency from the same binaries."""
    blocks = [Block("ABBA", (8.790, 7.850, 7.850, 8.790)), Block("ABBA", (7.915, 7.895, 7.895, 7.915))]
    verdict = decide(blocks)
    assert "INCONCLUSIVE" == verdict.word
    assert verdict.headline is not None
    assert "BLOCKS_DISAGREE" == verdict.headline.code
    assert "10.69 %" in verdict.headline.detail
    assert "0.25 %" in verdict.headline.detail


def test_one_cosmos_block_describes_and_does_not_decide() -> None:
    worker = [Block("ABBA", (6.287877, 6.147133, 6.145752, 6.285083))]
    verdict = decide(worker)
    assert ("INCONCLUSIVE", ["TOO_FEW_BLOCKS"]) == (verdict.word, [reason.code for reason in verdict.reasons])
    assert 2.23 == pytest.approx(100 * numbers(verdict).reduction, abs=0.005)
    assert (2.16, 2.29) == pytest.approx(percents(*numbers(verdict).interval), abs=0.005)
    assert numbers(verdict).permutation_p is None
    client = [Block("ABBA", (8.47, 6.49, 6.49, 6.63))]
    stalled = decide(client, warnings=post_worker_tails(worker, client, CLIENT_TICK_S))
    assert "INCONCLUSIVE" == stalled.word
    assert 14.04 == pytest.approx(100 * numbers(stalled).mean_reduction, abs=0.005)
    assert 24.37 == pytest.approx(100 * numbers(stalled).noise_floor, abs=0.005)
    assert with_code(stalled.warnings, "POST_WORKER_TAIL")


def test_one_program_against_itself_while_the_machine_slows_down() -> None:
    once = decide([Block("ABBA", (10.0, 10.1, 10.2, 10.3))])
    assert ["TOO_FEW_BLOCKS", "DRIFT"] == [reason.code for reason in once.reasons]
    assert 0.985 == pytest.approx(100 * numbers(once).mean_drift_per_slot, abs=0.0005)
    assert abs(numbers(once).reduction) < 1e-4
    mirrored = decide([Block("ABBA", (10.0, 10.1, 10.2, 10.3)), Block("BAAB", (10.4, 10.5, 10.6, 10.7))])
    assert "SAME" == mirrored.word
    assert ["DRIFT_SEEN"] == [warning.code for warning in mirrored.warnings]
