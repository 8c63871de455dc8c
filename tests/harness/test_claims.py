"""What a report claims of a workload, why it does not, and that every record of the folder is accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.added_blocks import look_ends
from fuseproof.harness.analysis.audit import audit
from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.claims import Claim, claims, scope_text
from fuseproof.harness.analysis.treatment import declared_differences, treatment_text
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import render_markdown
from fuseproof.schedules.plan import Arm
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.old_evidence import LONGLIVE2, imported

FASTER = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
SLOWER = ((9.5, 10.0, 10.02, 9.51), (10.01, 9.52, 9.5, 10.03))
SAME = ((10.0, 10.0, 10.01, 10.01), (10.01, 10.0, 10.01, 10.0))
NOISE = ((10.0, 9.5, 10.4, 10.02), (9.9, 10.8, 9.3, 10.1))
FUSED = {"modulate": {"state": "verified", "calls_fused": 8, "calls_eager": 0}}
IDLE = {"norm": {"state": "undecided", "calls_fused": 0, "calls_eager": 0}}
OFF = {name: {"state": "off", "calls_fused": 0, "calls_eager": 0} for name in ("modulate", "norm")}


def analysed(builder: CampaignBuilder, **more: Any) -> CampaignAnalysis:
    return analyse(Campaign.open(builder.write()), **more)


def claim_of(builder: CampaignBuilder, **more: Any) -> Claim:
    (claim,) = claims(analysed(builder, **more))
    return claim


@pytest.mark.parametrize(
    ("times", "claimed"),
    [
        pytest.param(
            FASTER, "Worker E2E −5.07 % latency (1.053× faster), reduction [4.84, 5.30] % (95 % interval)", id="faster"
        ),
        pytest.param(SLOWER, "slower), reduction [", id="slower"),
        pytest.param(SAME, "Worker E2E SAME: no difference of 1.00 % or more, [", id="same"),
    ],
)
def test_a_clear_word_is_claimed_with_its_interval(tmp_path: Path, times: Any, claimed: str) -> None:
    found = claim_of(CampaignBuilder(tmp_path / "c").blocks(times))
    assert found.is_claimed
    assert claimed in found.claimed[0]
    assert "outputs identical in raw arrays" in found.claimed


@pytest.mark.parametrize(
    ("times", "planned", "said"),
    [
        pytest.param((*FASTER, *FASTER[::-1]), 2, "(99 % interval)", id="blocks-added"),
        pytest.param(
            (*FASTER, (9.22, 10.01, 10.03, 9.2), (10.0, 9.2, 9.21, 10.02)),
            4,
            "(95 % interval, between blocks, which differ by more than their runs scatter)",
            id="widened",
        ),
    ],
)
def test_a_claim_names_the_level_of_its_interval_and_what_widened_it(
    tmp_path: Path, times: Any, planned: int, said: str
) -> None:
    found = claim_of(CampaignBuilder(tmp_path / "c", blocks=planned).blocks(times))
    assert said in found.claimed[0]


def qualifying(folder: Path, requirement: str) -> CampaignBuilder:
    builder = CampaignBuilder(folder)
    builder.plan["qualify"] = [requirement]
    return builder


@pytest.mark.parametrize(("times", "word"), [(SLOWER, "slower"), (SAME, "SAME")])
def test_qualification_is_about_speed_ups_only(tmp_path: Path, times: Any, word: str) -> None:
    found = claim_of(qualifying(tmp_path / "c", "worker>=1.5%").blocks(times))
    assert found.is_claimed and word in found.claimed[0]
    assert any("not qualified" in text for text in found.not_claimed)


def test_a_speed_up_that_does_not_qualify_is_not_claimed(tmp_path: Path) -> None:
    found = claim_of(qualifying(tmp_path / "c", "worker>=9%").blocks(FASTER))
    assert not found.is_claimed


def test_noise_is_not_claimed(tmp_path: Path) -> None:
    found = claim_of(CampaignBuilder(tmp_path / "c").blocks(NOISE))
    assert ((), False) == (found.claimed, found.is_claimed)
    assert found.because[0].startswith("INCONCLUSIVE (")


def test_one_block_is_not_claimed(tmp_path: Path) -> None:
    found = claim_of(CampaignBuilder(tmp_path / "c", blocks=1).blocks(FASTER[:1]))
    assert found.because[0].startswith("INCONCLUSIVE (TOO_FEW_BLOCKS)")


def test_a_speed_is_not_claimed_of_outputs_that_break_the_contract(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    for index, (row, way) in enumerate(zip(FASTER, ("ABBA", "BAAB"), strict=True)):
        runs = [Run(worker_s=time, pictures=(1 if arm == "A" else 2,)) for time, arm in zip(row, way, strict=True)]
        builder.block(runs, block=index + 1)
    assert ("the outputs do not keep the contract exact",) == claim_of(builder).because


def test_a_campaign_that_lost_a_block_claims_nothing(tmp_path: Path) -> None:
    found = claim_of(CampaignBuilder(tmp_path / "c", blocks=3).blocks(FASTER))
    assert ("only 2 of 3 planned blocks are complete",) == found.because


def test_a_block_that_the_files_skip_is_no_planned_one_and_still_forbids_the_claim(tmp_path: Path) -> None:
    """The dumps are of blocks r1 and r3: how many were planned is not known, and r2 is somewhere else."""
    analysis = imported(tmp_path, LONGLIVE2)
    because = "block 2 is not among the files given, though later ones are, and nothing says why"
    assert (because,) == claims(analysis)[0].because
    assert analysis.summary_lines()[0].endswith(" Not claimed: see below.")
    summary = render_markdown(analysis).partition("## Setup")[0]
    assert f"Not claimed, because {because}." in summary and "COMMITS_DIFFER: the candidate runs" in summary


def test_blocks_that_a_reader_chose_claim_nothing(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", blocks=3).blocks((*FASTER, FASTER[0]))
    assert "the reader chose some of the blocks" in claim_of(builder, only_blocks=(1, 2)).because


def test_an_arm_against_itself_claims_nothing(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", baseline_flags="--fastpaths=off", candidate_flags="--fastpaths=off")
    assert ("both arms are the same command (A/A)",) == claim_of(builder.blocks(FASTER)).because


def test_a_fast_path_that_did_not_run_is_not_claimed(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c").blocks(FASTER, sites=IDLE)
    for slot in (tmp_path / "c" / "slots").rglob("*.json"):
        slot.write_text(slot.read_text().replace('"sites"', '"requested": "auto", "sites"'))
    found = claim_of(builder)
    assert any(text.startswith("FASTPATH_NOT_TAKEN") for text in found.because)


@pytest.mark.parametrize(
    ("memory", "claimed", "not_claimed"),
    [
        pytest.param(({}, {}), "unchanged memory", None, id="RSS alone"),
        pytest.param(
            ({"peak_allocated_mib": 900.0, "peak_reserved_mib": 900.0},) * 2, "unchanged memory", None, id="same"
        ),
        pytest.param(
            (
                {"peak_allocated_mib": 900.0, "peak_reserved_mib": 900.0},
                {"peak_allocated_mib": 500.0, "peak_reserved_mib": 500.0},
            ),
            "less memory",
            None,
            id="both fall",
        ),
        pytest.param(
            (
                {"peak_allocated_mib": 900.0, "peak_reserved_mib": 900.0},
                {"peak_allocated_mib": 500.0, "peak_reserved_mib": 900.0},
            ),
            None,
            "memory: allocated and reserved do not agree",
            id="one falls",
        ),
    ],
)
def test_memory_is_claimed_only_where_its_kinds_agree(
    tmp_path: Path, memory: tuple[dict[str, float], ...], claimed: str | None, not_claimed: str | None
) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    for index, (row, way) in enumerate(zip(FASTER, ("ABBA", "BAAB"), strict=True)):
        runs = [Run(worker_s=time, **memory["AB".index(arm)]) for time, arm in zip(row, way, strict=True)]
        builder.block(runs, block=index + 1)
    found = claim_of(builder)
    assert claimed is None or claimed in found.claimed
    assert not_claimed is None or not_claimed in found.not_claimed


def test_a_descriptive_timer_is_not_claimed(tmp_path: Path) -> None:
    found = claim_of(CampaignBuilder(tmp_path / "c").blocks(FASTER, client_s=11.0))
    assert "Client E2E incl. save (SAME): descriptive" in found.not_claimed


def test_the_scope_names_what_the_gate_protects_and_nothing_timed(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    for index, (row, way) in enumerate(zip(FASTER, ("ABBA", "BAAB"), strict=True)):
        sites = {"A": OFF, "B": FUSED | IDLE}
        builder.block([Run(worker_s=t, sites=sites[arm]) for t, arm in zip(row, way, strict=True)], block=index + 1)
    analysis = analysed(builder)
    scope = scope_text(analysis)
    assert (
        "Protected by the gate, not benchmarked: other models and sizes at the sites that ran; norm, which made no "
        "fused call (declined, or not reached)." == scope
    )
    assert scope in render_markdown(analysis)


def test_there_is_no_scope_without_fast_paths(tmp_path: Path) -> None:
    assert scope_text(analysed(CampaignBuilder(tmp_path / "c").blocks(FASTER))) is None


def test_every_record_is_accounted_for_once(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", blocks=3, status="failed").blocks((*FASTER, FASTER[0]))
    builder.warmup(Run(worker_s=12.0))
    gone = Run(state="superseded", reason_code="SUPERSEDED", reason="block 4 started again")
    late = Run(state="invalid", reason_code="TIMEOUT", reason="it did not end within 60 s")
    killed = Run(state="invalid", reason_code="OOM", reason="out of memory")
    cut = Run(state="interrupted", reason_code="INTERRUPTED", reason="Ctrl-C")
    builder.block([gone, late], block=4).block([killed], block=4, attempt=2).block([cut], block=4, attempt=3)
    found = audit(analysed(builder))
    assert "17 records: 12 accepted, 1 discarded warm-up, 2 invalid because OOM, TIMEOUT, 1 interrupted, " in found.line
    assert found.line.endswith("1 superseded")
    assert sum(found.counts.values()) == found.records
    assert "begun again: panda block 4 (3 attempts); beyond the planned blocks: panda block 4" == found.block_line


def test_blocks_left_out_by_request_are_counted(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", blocks=2).blocks(FASTER)
    assert "8 records: 4 accepted, 4 left out by request" == audit(analysed(builder, only_blocks=(2,))).line


def test_the_treatment_is_printed(tmp_path: Path) -> None:
    analysis = analysed(CampaignBuilder(tmp_path / "c").blocks(FASTER))
    assert "Arms differ only in: --fastpaths (off against auto)." == treatment_text(analysis)
    assert "Arms differ only in: --fastpaths" in render_markdown(analysis)


@pytest.mark.parametrize(
    ("baseline", "candidate", "expected"),
    [
        pytest.param(
            {"flags": "--a=1 --b"}, {"flags": "--a 2"}, ["--a (1 against 2)", "--b (on against nothing)"], id="flags"
        ),
        pytest.param({"env": {"X": "1"}}, {"env": {"X": "2"}}, ["env X (1 against 2)"], id="environment"),
        pytest.param({"command": "old"}, {"command": "new"}, ["command (old against new)"], id="command"),
        pytest.param({"flags": "--a 1 --a 2"}, {"flags": "--a 2"}, [], id="repeated-flag"),
        pytest.param({}, {}, [], id="same"),
    ],
)
def test_declared_differences(baseline: dict[str, Any], candidate: dict[str, Any], expected: list[str]) -> None:
    assert expected == declared_differences(Arm(name="a", **baseline), Arm(name="b", **candidate))


@pytest.mark.parametrize(
    ("commits", "keys", "said"),
    [
        pytest.param("ab", {}, "differ in commit (aaaaaaaaaaaa against bbbbbbbbbbbb) as well.", id="undeclared"),
        pytest.param("aa", {}, "Arms differ only in: --fastpaths (off against auto).", id="the-same"),
        pytest.param(
            "ab",
            {"python": "/opt/b/python"},
            "python (nothing against /opt/b/python); commit (aaaaaaaaaaaa against bbbbbbbbbbbb).",
            id="other-programs",
        ),
    ],
)
def test_differing_commits_are_part_of_what_the_arms_differ_in(
    tmp_path: Path, commits: str, keys: dict[str, Any], said: str
) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    builder.plan["arms"]["candidate"] |= keys
    by_arm = {"A": commits[0] * 40, "B": commits[1] * 40}
    for index, (row, way) in enumerate(zip(FASTER, ("ABBA", "BAAB"), strict=True)):
        builder.block([Run(worker_s=t, commit=by_arm[a]) for t, a in zip(row, way, strict=True)], block=index + 1)
    text = treatment_text(analysed(builder))
    assert text is not None and text.endswith(said)
    assert ("only" in text) is (said != "undeclared" and "as well" not in said)


def test_blocks_added_to_the_plan_are_judged_more_strictly_and_said(tmp_path: Path) -> None:
    (cell,) = analysed(CampaignBuilder(tmp_path / "c", blocks=2).blocks((*NOISE, *FASTER))).cells
    assert cell.verdict.comparison is not None
    assert 0.01 == cell.verdict.comparison.alpha
    told = {warning.code: warning.detail for warning in cell.verdict.warnings}
    assert "2 blocks beyond the 2 planned; on those alone the word is INCONCLUSIVE" == told["ADDED_BLOCKS"]
    assert "LOOKS" in " ".join(told)
    (later,) = analysed(CampaignBuilder(tmp_path / "l", blocks=2).blocks((*NOISE, *NOISE, *FASTER))).cells
    assert later.verdict.comparison is not None
    assert 0.005 == later.verdict.comparison.alpha
    told = {warning.code: warning.detail for warning in later.verdict.warnings}
    assert (
        "4 blocks beyond the 2 planned; on those alone the word is INCONCLUSIVE, on the first 4 (α = 0.01) the word is "
        "INCONCLUSIVE" == told["ADDED_BLOCKS"]
    )
    (planned,) = analysed(CampaignBuilder(tmp_path / "p", blocks=4).blocks((*NOISE, *FASTER))).cells
    assert planned.verdict.comparison is not None
    assert 0.05 == planned.verdict.comparison.alpha
    assert "ADDED_BLOCKS" not in {warning.code for warning in planned.verdict.warnings}


@pytest.mark.parametrize(
    ("last", "planned", "additions", "ends"),
    [
        pytest.param(2, 2, (), [2], id="as-planned"),
        pytest.param(4, 2, (2,), [2, 4], id="one-addition"),
        pytest.param(6, 2, (4,), [2, 6], id="a-larger-addition-is-one-look"),
        pytest.param(8, 2, (2,), [2, 4, 6, 8], id="unnoted-pairs-may-each-have-been-looked-at"),
        pytest.param(2, 4, (), [4], id="unfinished"),
    ],
)
def test_the_looks_at_a_growing_campaign(last: int, planned: int, additions: tuple[int, ...], ends: list[int]) -> None:
    assert ends == look_ends(range(1, last + 1), planned, additions)


def test_the_word_of_an_earlier_look_is_the_one_that_was_given_then(tmp_path: Path) -> None:
    busy = CampaignBuilder(tmp_path / "busy", blocks=2).blocks((*FASTER, *FASTER), is_busy=True)
    (cell,) = analysed(busy).cells
    told = {warning.code: warning.detail for warning in cell.verdict.warnings}
    assert "2 blocks beyond the 2 planned; on those alone the word is INCONCLUSIVE (CONTENTION)" == told["ADDED_BLOCKS"]
    later = CampaignBuilder(tmp_path / "later", blocks=2)
    for index, times in enumerate((*FASTER, *FASTER)):
        later.block([Run(worker_s=seconds, is_busy=index == 3) for seconds in times], block=index + 1)
    (cell,) = analysed(later).cells
    assert "INCONCLUSIVE" == cell.word.value
    told = {warning.code: warning.detail for warning in cell.verdict.warnings}
    assert "2 blocks beyond the 2 planned; on those alone the word is FASTER" == told["ADDED_BLOCKS"]


def test_a_block_added_without_its_pair_is_no_basis_for_a_word(tmp_path: Path) -> None:
    (cell,) = analysed(CampaignBuilder(tmp_path / "c", blocks=2).blocks((*FASTER, FASTER[1]))).cells
    assert ("INCONCLUSIVE", "UNPAIRED_BLOCKS") == (cell.word.value, cell.verdict.reasons[0].code)
    assert (
        "blocks 3 were added to 2 planned ones, which is not in whole mirrored pairs" == cell.verdict.reasons[0].detail
    )
