"""A run that enhances its prompt and one that draws the text it gave: other work, equal texts, comparable outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.perf.comparison import PerfComparison, compare_dumps
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.perf.text import render_comparison
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.perf_dump_files import STAGES, stage_list, write_dump

RAW = {"request": 0, "path": "outputs/a.png", "raw_sha256": "ab" * 32}


def enhanced(text: str = "a red panda on a branch", **more: Any) -> dict[str, Any]:
    stages = stage_list(("PromptEnhancementStage", 10.0), *STAGES)
    config = {"use_pe": True, "pe_sampling": "seeded", "fixed_prompt": []}
    request = {"index": 0, "rewritten_prompt": text, "steps": stages}
    return {
        "schema": "fuseproof.perf/1",
        "config": config,
        "requests": [request],
        "steps": stages,
        "outputs": [RAW],
    } | more


def fixed(text: str = "a red panda on a branch", **more: Any) -> dict[str, Any]:
    config = {"use_pe": False, "pe_sampling": None, "fixed_prompt": [text]}
    request = {"index": 0, "rewritten_prompt": text, "steps": stage_list(*STAGES)}
    return {"schema": "fuseproof.perf/1", "config": config, "requests": [request], "outputs": [RAW]} | more


def compared(tmp_path: Path, baseline: dict[str, Any], other: dict[str, Any]) -> PerfComparison:
    files = write_dump(tmp_path / "pe.json", **baseline), write_dump(tmp_path / "fixed.json", **other)
    return compare_dumps([read_perf_dump(path) for path in files])


def test_equal_texts_are_named_and_the_outputs_compared(tmp_path: Path) -> None:
    comparison = compared(tmp_path, enhanced(), fixed())
    text = render_comparison(comparison)
    assert text.startswith("### INVALID: unequal work, no ratio is shown")
    assert "Both drew the same text (“a red panda on a branch”)" in text
    assert "(PromptEnhancementStage, 10.0 ms) ran in the baseline alone" in text
    assert "Outputs: identical in raw arrays (1 of 1)." in text
    assert ["identical"] == [entry["status"] for entry in comparison.to_json()["outputs"]]


def test_the_run_that_enhanced_is_named_whichever_comes_first(tmp_path: Path) -> None:
    (said,) = compared(tmp_path, fixed(), enhanced()).explanations
    assert "ran in fixed.json alone" in said


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(fixed("another text"), id="other text"),
        pytest.param(enhanced(), id="both enhance"),
        pytest.param({"schema": "fuseproof.perf/1", "config": {"use_pe": False}}, id="no text recorded"),
    ],
)
def test_nothing_is_said_of_texts_that_are_not_equal(tmp_path: Path, other: dict[str, Any]) -> None:
    assert () == compared(tmp_path, enhanced(), other).explanations


def test_a_campaign_of_both_kinds_names_the_request_first_and_what_to_give_the_arms(tmp_path: Path) -> None:
    arms: dict[str, dict[str, Any]] = {
        "A": {
            "config": {"use_pe": True, "fixed_prompt": []},
            "environment": {"residency": {"components": {"pe": "cpu", "vae": "cpu"}, "offload": "none"}},
        },
        "B": {
            "config": {"use_pe": False, "fixed_prompt": ["a text"]},
            "environment": {"residency": {"components": {"vae": "cpu"}, "offload": "none"}},
        },
    }
    builder = CampaignBuilder(
        tmp_path / "c", blocks=1, baseline_flags="--use-pe", candidate_flags="--fixed-prompt-path p"
    )
    analysis = analyse(Campaign.open(builder.block([Run(**arms[arm]) for arm in "ABBA"]).write()))
    (cell,) = analysis.cells
    reason = cell.verdict.headline
    assert reason is not None and 6 == analysis.exit_code()
    assert reason.detail.startswith("the runs did not do the same work: use_pe: true against false")
    assert "residency: pe cpu against no pe" in reason.detail and "{" not in reason.detail
    assert "Give both arms --fixed-prompt-path" in reason.next_step
