"""Runs whose gate observed compute every call twice: no ratio, no protection, and the bits they found come first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.claims import claims, scope_text
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.perf.abba import compare_blocks
from fuseproof.harness.perf.blocks import read_blocks
from fuseproof.harness.perf.comparison import compare_dumps
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.perf.text import render_comparison
from fuseproof.harness.report import render_markdown
from fuseproof.harness.statistics.verdict import Word
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.perf_dump_files import write_block, write_dump

OBSERVED = {"modulate": {"state": "observed", "calls_fused": 8, "calls_eager": 0}}
IDLE = {"modulate": {"state": "declined", "calls_fused": 0, "calls_eager": 0}}
CHECKED = "computed every call of a fast path twice, fused and eager"
OBSERVING = {"fastpaths": {"gate": "observe", "sites": OBSERVED}}


def one_block(tmp_path: Path, **more: Any) -> CampaignAnalysis:
    """One A-B-B-A block; ``candidate`` are changes of its two candidate runs."""
    candidate = more.pop("candidate")
    builder = CampaignBuilder(tmp_path / "c", blocks=1, **more)
    times = zip("ABBA", (1.0, 3.0, 3.0, 1.1), strict=True)
    runs = [Run(worker_s=seconds, **(candidate if arm == "B" else {})) for arm, seconds in times]
    return analyse(Campaign.open(builder.block(runs).write()))


@pytest.mark.parametrize(
    ("config", "sites", "flag"),
    [
        pytest.param({"gate": "observe"}, OBSERVED, "--gate observe", id="gate"),
        pytest.param({"verify_every_step": True}, OBSERVED, "--verify-every-step", id="every step"),
        pytest.param({"gate": "observe"}, IDLE, None, id="no call"),
        pytest.param({"gate": "enforce"}, OBSERVED, None, id="enforced"),
    ],
)
def test_a_run_that_computed_every_call_twice_is_no_measurement(
    tmp_path: Path, config: dict[str, Any], sites: dict[str, Any], flag: str | None
) -> None:
    both = {"config": config, "sites": sites}
    builder = CampaignBuilder(tmp_path / "c").blocks(((1, 3, 3.1, 1.1), (3, 1, 1.1, 3.1)), **both)
    analysis = analyse(Campaign.open(builder.write()))
    (cell,) = analysis.cells
    if flag is None:
        assert (Word.INVALID, 6) != (cell.word, analysis.exit_code())
        return
    assert (Word.INVALID, 6, ()) == (cell.word, analysis.exit_code(), cell.metrics)
    assert ["EVERY_CALL_CHECKED"] * 2 == [reason.code for reason in cell.verdict.reasons]
    assert f"4 of 4 baseline runs {CHECKED} ({flag}): their times are no measurement" == cell.verdict.reasons[0].detail
    assert "−" not in analysis.summary_lines()[0], "no ratio stands in the lead"


def test_wrong_bits_that_an_observing_gate_found_decide_the_exit_code_and_lead_every_text(tmp_path: Path) -> None:
    candidate = {"config": {"gate": "observe"}, "sites": OBSERVED, "pictures": (2,)}
    analysis = one_block(tmp_path, candidate=candidate)
    lead = "contract exact is not met: 2 of 4 outputs differ"
    assert 4 == analysis.exit_code()
    first = analysis.summary_lines()[0]
    assert first.startswith(f"INVALID: panda: {lead}") and "EVERY_CALL_CHECKED" in first
    report = render_markdown(analysis)
    assert f"**INVALID** · panda: {lead}" in report.split("## Setup")[0]
    assert "**not claimed**, because the outputs do not keep the contract exact; INVALID (EVERY_CALL_CHECKED)" in report


def test_unequal_work_stays_the_gravest_beside_wrong_bits(tmp_path: Path) -> None:
    candidate = {"config": {"gate": "observe", "seed": 7}, "sites": OBSERVED, "pictures": (2,)}
    assert 6 == one_block(tmp_path, candidate=candidate).exit_code()


def test_a_contract_that_is_not_met_comes_before_too_few_blocks(tmp_path: Path) -> None:
    analysis = one_block(tmp_path, candidate={"pictures": (2,)})
    for text in (analysis.summary_lines()[0], render_markdown(analysis), claims(analysis)[0].text):
        assert -1 < text.index("contract exact") < text.index("TOO_FEW_BLOCKS")


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        pytest.param("enforce", "Protected by the gate, not benchmarked: ", id="enforce"),
        pytest.param(
            "observe", "not protected by the gate (the gate observed in 2 of 2 candidate runs): ", id="observe"
        ),
        pytest.param("off", "not protected by the gate (the gate was off in 2 of 2 candidate runs): ", id="off"),
        pytest.param(None, "(the gate is not recorded in 2 of 2 candidate runs): ", id="unknown"),
    ],
)
def test_only_a_gate_that_enforced_in_every_run_protects(tmp_path: Path, gate: str | None, said: str) -> None:
    analysis = one_block(tmp_path, candidate={"config": {"gate": gate}, "sites": OBSERVED})
    scope = scope_text(analysis) or ""
    assert said in scope
    assert (gate == "enforce") == scope.startswith("Protected")


def test_compare_perf_has_no_ratio_for_such_a_run_on_either_side(tmp_path: Path) -> None:
    plain, checked = write_dump(tmp_path / "a.json"), write_dump(tmp_path / "b.json", **OBSERVING)
    for files in ((plain, checked), (checked, plain)):
        text = render_comparison(compare_dumps([read_perf_dump(path) for path in files]))
        assert text.startswith("### INVALID") and "EVERY_CALL_CHECKED: b.json: every call" in text


def test_blocks_of_such_runs_are_invalid(tmp_path: Path) -> None:
    files = write_block(tmp_path, (1.0, 0.9, 0.91, 1.01), A=OBSERVING)
    comparison = compare_blocks(read_blocks(files, "ABBA"))
    assert (Word.INVALID, 6) == (comparison.verdict.word, comparison.exit_code)
    assert {"EVERY_CALL_CHECKED"} == {reason.code for reason in comparison.verdict.reasons}
