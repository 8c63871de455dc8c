"""From a campaign folder to words, reasons and exit codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis, analyse
from fuseproof.harness.analysis.sentences import cell_warnings
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.statistics.verdict import Word
from tests.harness.campaign_builder import CampaignBuilder, Run

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SLOWER = ((9.5, 10.0, 10.02, 9.51), (10.01, 9.52, 9.5, 10.03))
SAME = ((10.0, 10.01, 10.0, 10.01), (10.01, 10.0, 10.01, 10.0))
BELOW_MINIMUM = ((10.0, 9.96, 9.96, 10.0), (9.96, 10.0, 10.0, 9.96))
NOISY = ((10.0, 9.0, 10.5, 9.6), (9.9, 10.4, 9.1, 10.2))


def analysed(builder: CampaignBuilder, only_blocks: Sequence[int] = ()) -> CampaignAnalysis:
    return analyse(Campaign.open(builder.write()), only_blocks)


def only_cell(analysis: CampaignAnalysis) -> CellAnalysis:
    (cell,) = analysis.cells
    return cell


def warning_codes(cell: CellAnalysis) -> set[str]:
    return {warning.code for warning in cell_warnings(cell)}


@pytest.mark.parametrize(
    ("rows", "word", "exit_code"),
    [
        pytest.param(FASTER, Word.FASTER, 0, id="faster"),
        pytest.param(SLOWER, Word.SLOWER, 3, id="slower"),
        pytest.param(SAME, Word.SAME, 0, id="same"),
        pytest.param(NOISY, Word.INCONCLUSIVE, 0, id="noisy"),
        pytest.param(FASTER[:1], Word.INCONCLUSIVE, 0, id="one block is never directional"),
    ],
)
def test_primary_timer_decides_word_and_exit_code(
    tmp_path: Path, rows: Sequence[Sequence[float]], word: Word, exit_code: int
) -> None:
    analysis = analysed(CampaignBuilder(tmp_path / "c", blocks=len(rows)).blocks(rows))
    assert word is only_cell(analysis).word
    assert exit_code == analysis.exit_code()


def test_primary_comes_first_and_the_others_only_describe(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", primary="denoise")
    for index, row in enumerate(FASTER):
        builder.block([Run(worker_s=seconds, denoise_s=5.0, load_s=2.0) for seconds in row], block=index + 1)
    cell = only_cell(analysed(builder))
    assert ["denoise", "worker", "load"] == [metric.name for metric in cell.metrics]
    assert Word.SAME is cell.word
    assert [True, False, False] == [metric.is_primary for metric in cell.metrics]


def test_same_prints_effect_and_interval_too(tmp_path: Path) -> None:
    analysis = analysed(CampaignBuilder(tmp_path / "c").blocks(BELOW_MINIMUM))
    first, *_ = analysis.summary_lines()
    assert first.startswith("SAME: panda: Worker E2E −0.40 % latency (1.004×), 95 % interval of the reduction [")
    assert "RESOLVED_BELOW_MIN_EFFECT" in warning_codes(only_cell(analysis))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(FASTER, "−5.07 % latency (1.053× faster)", id="faster is a negative change and a factor above 1"),
        pytest.param(SLOWER, "+5.34 % latency (0.949×, slower)", id="slower is a positive change, a factor below 1"),
    ],
)
def test_sign_convention(tmp_path: Path, rows: Sequence[Sequence[float]], expected: str) -> None:
    assert expected in analysed(CampaignBuilder(tmp_path / "c").blocks(rows)).summary_lines()[0]


def test_summary_has_a_line_for_verdict_each_timer_outputs_and_memory(tmp_path: Path) -> None:
    lines = analysed(CampaignBuilder(tmp_path / "c").blocks(FASTER, denoise_s=5.0)).summary_lines()
    timers = ["Worker E2E (primary)", "Denoise (descriptive)"]
    starts = ["FASTER: panda", *timers, "Outputs: identical", "Memory:", "note: ", "claimed: panda: ", "8 records: "]
    assert starts == [line.strip()[: len(start)] for line, start in zip(lines, starts, strict=True)]


def test_one_block_is_descriptive(tmp_path: Path) -> None:
    cell = only_cell(analysed(CampaignBuilder(tmp_path / "c", blocks=1).blocks([(10.0, 9.0, 9.0, 10.0)])))
    assert ["TOO_FEW_BLOCKS"] == [reason.code for reason in cell.verdict.reasons]
    assert cell.verdict.comparison is not None
    assert 0.1 == pytest.approx(cell.verdict.comparison.mean_reduction)
    assert cell.verdict.comparison.permutation_p is None, "one block tests nothing"


def test_self_comparison_says_so_and_gives_no_direction(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", baseline_flags="--fastpaths=off", candidate_flags="--fastpaths=off")
    analysis = analysed(builder.blocks(SAME))
    assert analysis.is_self_comparison
    assert Word.SAME is only_cell(analysis).word
    assert any("A/A" in line for line in analysis.summary_lines())


def test_busy_machine_forbids_a_direction(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    for index, row in enumerate(FASTER):
        runs = [Run(worker_s=seconds, is_busy=index == 1 and slot == 2) for slot, seconds in enumerate(row)]
        builder.block(runs, block=index + 1)
    analysis = analysed(builder)
    headline = only_cell(analysis).verdict.headline
    assert Word.INCONCLUSIVE is only_cell(analysis).word
    assert headline is not None
    assert "CONTENTION" == headline.code
    assert "1 of 8 runs" in headline.detail and "cc1plus" in headline.detail
    assert 0 == analysis.exit_code()


def test_out_of_memory_in_one_arm_is_named_and_gives_no_number(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", status="failed")
    killed = Run(
        worker_s=None,
        state="invalid",
        reason_code="OOM",
        reason="it ran out of memory",
        log_tail=("CUDA out of memory",),
    )
    builder.block([Run(), killed])
    analysis = analysed(builder)
    cell = only_cell(analysis)
    assert Word.INVALID is cell.word
    assert cell.verdict.comparison is None
    assert "candidate OOM in panda/01-2-B" in analysis.summary_lines()[0]
    assert "faster" not in " ".join(analysis.summary_lines())
    assert 1 == analysis.exit_code()


@pytest.mark.parametrize(
    ("reason_code", "exit_code"),
    [
        pytest.param("EXIT", 1, id="a failed arm"),
        pytest.param("TIMEOUT", 1, id="a hanging arm"),
        pytest.param("FALLBACK", 6, id="a fallback voids the measurement"),
        pytest.param("INVALID_RUN", 6, id="an arm that calls itself invalid"),
    ],
)
def test_failed_block_beside_good_ones_shows_in_the_exit_code(tmp_path: Path, reason_code: str, exit_code: int) -> None:
    builder = CampaignBuilder(tmp_path / "c", blocks=3, status="failed").blocks(FASTER)
    lost = Run(state="invalid", reason_code=reason_code, reason="it did not work")
    builder.block([Run(worker_s=9.5), lost], block=3)
    analysis = analysed(builder)
    assert exit_code == analysis.exit_code()
    assert [3] == [block.number for block in only_cell(analysis).runs.lost]


def test_latest_complete_attempt_stands_for_its_block(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    superseded = Run(worker_s=99.0, state="superseded", reason_code="SUPERSEDED", reason="block 1 started again")
    builder.block([superseded, Run(state="invalid", reason_code="EXIT", reason="exit status 1")])
    builder.block([Run(worker_s=seconds) for seconds in FASTER[0]], attempt=2)
    builder.block([Run(worker_s=seconds) for seconds in FASTER[1]], block=2)
    analysis = analysed(builder)
    cell = only_cell(analysis)
    assert Word.FASTER is cell.word
    assert [2, 1] == [block.attempt for block in cell.runs.blocks]
    assert {"done": 8, "superseded": 1, "invalid": 1} == dict(cell.runs.slot_states())
    assert 0 == analysis.exit_code()


def test_interrupted_campaign_judges_what_is_complete(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", blocks=3, status="interrupted").blocks(SLOWER)
    builder.block([Run(), Run(state="interrupted", reason_code="INTERRUPTED", reason="Ctrl-C")], block=3)
    analysis = analysed(builder)
    assert Word.SLOWER is only_cell(analysis).word
    assert 0 == analysis.exit_code(), "an unfinished verdict must not fail a build"
    assert any("interrupted: 2 of 3 planned blocks" in line for line in analysis.summary_lines())


def test_campaign_without_any_complete_block_has_no_number(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", status="interrupted")
    analysis = analysed(builder.block([Run(), Run(state="interrupted", reason_code="INTERRUPTED")]))
    cell = only_cell(analysis)
    assert Word.INCONCLUSIVE is cell.word
    assert cell.verdict.comparison is None
    assert () == cell.metrics
    assert 0 == analysis.exit_code()


def test_chosen_blocks_are_said_to_be_chosen(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", blocks=3).blocks([*FASTER, FASTER[1]])
    analysis = analysed(builder, only_blocks=[3])
    cell = only_cell(analysis)
    assert (1, 2) == cell.runs.omitted
    assert Word.INCONCLUSIVE is cell.word
    assert any("block 3 of 3 run; others omitted by request" in line for line in analysis.summary_lines())


def test_unknown_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no block 4; this campaign has blocks 1 to 2"):
        analysed(CampaignBuilder(tmp_path / "c").blocks(FASTER), only_blocks=[4])


@pytest.mark.parametrize(
    ("baseline_s", "candidate_s", "note"),
    [
        pytest.param(None, None, "neither arm recorded it", id="neither arm"),
        pytest.param(5.0, None, "unequal timers: the candidate", id="one arm only"),
        pytest.param(0.0, 5.0, "0.0 s, which is no duration", id="zero"),
        pytest.param(-1.0, 5.0, "-1.0 s, which is no duration", id="negative"),
    ],
)
def test_unusable_primary_timer_is_invalid(
    tmp_path: Path, baseline_s: float | None, candidate_s: float | None, note: str
) -> None:
    builder = CampaignBuilder(tmp_path / "c", primary="denoise")
    for index, way in enumerate(("ABBA", "BAAB")):
        times = [baseline_s if arm == "A" else candidate_s for arm in way]
        builder.block([Run(denoise_s=seconds) for seconds in times], block=index + 1)
    analysis = analysed(builder)
    headline = only_cell(analysis).verdict.headline
    assert headline is not None
    assert "MISSING_TIMER" == headline.code
    assert note in headline.detail
    assert 6 == analysis.exit_code()


def test_post_worker_tail_is_named_and_the_mean_not_quoted(tmp_path: Path) -> None:
    client = ((2.69, 5.93, 2.54, 2.69), (2.56, 2.71, 2.68, 2.57))
    worker = ((2.3958, 2.2457, 2.2472, 2.3893), (2.2613, 2.3927, 2.3885, 2.2618))
    builder = CampaignBuilder(tmp_path / "c", primary="client")
    for index, rows in enumerate(zip(worker, client, strict=True)):
        builder.block([Run(worker_s=w, client_s=c) for w, c in zip(*rows, strict=True)], block=index + 1)
    analysis = analysed(builder)
    assert {"POST_WORKER_TAIL", "MEAN_MEDIAN_DISAGREE"} <= warning_codes(only_cell(analysis))
    assert "no point estimate" in analysis.summary_lines()[0]
    assert "latency" not in analysis.summary_lines()[0]


@pytest.mark.parametrize(
    ("baseline", "candidate", "agreement"),
    [
        pytest.param((1000.0, 2000.0), (1000.0, 2060.0), "more", id="reserved up, allocated still"),
        pytest.param((1000.0, 2000.0), (800.0, 2060.0), "mixed", id="allocated down, reserved up"),
        pytest.param((1000.0, 2000.0), (800.0, 1800.0), "less", id="both down"),
        pytest.param((1000.0, 2000.0), (1000.0, 2000.0), "unchanged", id="equal"),
    ],
)
def test_device_memory_needs_both_numbers_to_agree(
    tmp_path: Path, baseline: tuple[float, float], candidate: tuple[float, float], agreement: str
) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    for index, way in enumerate(("ABBA", "BAAB")):
        peaks = [baseline if arm == "A" else candidate for arm in way]
        builder.block([Run(peak_allocated_mib=a, peak_reserved_mib=r) for a, r in peaks], block=index + 1)
    memory = only_cell(analysed(builder)).memory
    assert agreement == memory.agreement
    assert "GiB" in memory.sentence and "MiB" not in memory.sentence


def test_host_memory_within_one_arms_spread_is_no_change(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    for index, peaks in enumerate(((1000.0, 1010.0, 1040.0, 1020.0), (1030.0, 1000.0, 1030.0, 1020.0))):
        builder.block([Run(peak_rss_mib=peak) for peak in peaks], block=index + 1)
    memory = only_cell(analysed(builder)).memory
    assert "unchanged" == memory.agreement
    assert "one arm's own runs differ" in memory.sentence


@pytest.mark.parametrize(
    ("fused", "is_warned"), [pytest.param(0, True, id="never fused"), pytest.param(12, False, id="fused")]
)
def test_candidate_that_never_fused_is_warned_about(tmp_path: Path, fused: int, is_warned: bool) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    for index, way in enumerate(("ABBA", "BAAB")):
        sites = {"A": None, "B": {"rotary": {"state": "fused", "calls_fused": fused, "calls_eager": 1, "reason": None}}}
        builder.block([Run(sites=sites[arm]) for arm in way], block=index + 1)
    cell = only_cell(analysed(builder))
    assert is_warned == ("FASTPATH_NOT_TAKEN" in warning_codes(cell))
    (site,) = cell.fastpaths.sites
    assert site.baseline is None
    assert site.candidate is not None
    assert (4 * fused, 4) == (site.candidate.calls_fused, site.candidate.calls_eager)


def test_worst_code_counts_over_cells(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", cells=("good", "slow", "wrong"))
    builder.blocks(FASTER, cell="good").blocks(SLOWER, cell="slow")
    for index, (way, row) in enumerate(zip(("ABBA", "BAAB"), FASTER, strict=True)):
        runs = [Run(worker_s=s, pictures=(1 if arm == "A" else 2,)) for arm, s in zip(way, row, strict=True)]
        builder.block(runs, cell="wrong", block=index + 1)
    analysis = analysed(builder)
    assert 4 == analysis.exit_code(), "a broken contract outranks a slow cell"
    assert "3 cells: 2 FASTER, 1 SLOWER; contract not met in 1 of 3" == analysis.summary_lines()[0]


def test_damaged_perf_dump_names_the_file(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c").blocks(FASTER)
    dump = builder.write() / "slots/panda/01-2-B/perf.json"
    dump.write_text("{", encoding="utf-8")
    with pytest.raises(FuseproofError, match=r"01-2-B/perf\.json"):
        analyse(Campaign.open(tmp_path / "c"))
