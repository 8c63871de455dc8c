"""Blocks for the next campaign from the scatter of this one, and the floor that an A/A campaign leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuseproof.errors import UsageError
from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.analysis.planning import plan_line, plan_lines, planning_scatter, plans_of
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import render_markdown, write_report
from fuseproof.harness.report.write import stale_files
from fuseproof.harness.statistics.detectable import fewest_blocks, plan_for
from tests.harness.campaign_builder import CampaignBuilder

TIMES = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))
NOISES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 1, 1.5, 2, 5)


@pytest.mark.parametrize("effect", [1, 1.2, 1.5, 2, 3, 5])
def test_the_short_way_finds_the_same_number_of_blocks(effect: float) -> None:
    for noise in NOISES:
        assert plan_for(effect / 100, noise / 100).blocks == fewest_blocks(effect / 100, noise / 100)


def test_a_report_says_how_many_blocks_resolve_an_effect(tmp_path: Path) -> None:
    analysis = analyse(Campaign.open(CampaignBuilder(tmp_path / "c").blocks(TIMES).write()))
    (cell,) = analysis.cells
    assert cell.primary is not None and cell.verdict.comparison is not None
    comparison = cell.verdict.comparison
    assert 1.4 * comparison.scatter == pytest.approx(planning_scatter(comparison))
    assert [0.015, 0.02, 0.03, 0.05] == [plan.effect for plan in plans_of(cell.primary)]
    assert "to resolve (Worker E2E, in 80 % of campaigns) 1.5 %: 2 blocks, 2 %: 2 blocks" in render_markdown(analysis)
    assert {"effect": 0.015, "blocks": 2} == analysis.to_json()["cells"][0]["metrics"][0]["blocks_to_resolve"][0]
    (line,) = plan_lines(analysis, 0.015)
    assert line.startswith("panda, Worker E2E (one run scatters by 0.") and "to resolve 1.5 %: 2 blocks find" in line
    (line,) = plan_lines(analysis, 0.01)
    assert "--min-effect 0.5%; then 2 blocks find 0." in line and ": --blocks 2." in line


def test_one_block_gives_nothing_to_plan_with(tmp_path: Path) -> None:
    analysis = analyse(Campaign.open(CampaignBuilder(tmp_path / "c", blocks=1).blocks(TIMES[:1]).write()))
    assert ["panda: no scatter to plan with; it takes two complete blocks"] == plan_lines(analysis, 0.02)
    assert "to resolve" not in render_markdown(analysis)


def test_a_known_scatter_is_taken_as_it_is() -> None:
    assert "to resolve 1.5 %: 4 blocks find 1.25 % in 80 %" in plan_line(0.015, 0.005, 0.01)


def test_an_effect_at_the_minimum_gets_the_count_for_the_suggested_minimum() -> None:
    assert "--min-effect 0.5%; then 2 blocks find 0.92 % in 80 % of campaigns" in plan_line(0.01, 0.003, 0.01)
    assert "then 12 blocks, the most that are advised, find only" in plan_line(0.01, 0.15, 0.01)


def test_an_aa_campaign_leaves_its_floor(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", candidate_flags="--fastpaths=off")
    folder = builder.blocks(((10.0, 10.01, 10.0, 10.02), (10.01, 10.0, 10.02, 10.0))).write()
    analysis = write_report(folder)
    floor = json.loads((folder / "aa.json").read_text(encoding="utf-8"))
    worker = floor["cells"]["panda"]["worker"]
    comparison = analysis.cells[0].verdict.comparison
    assert comparison is not None
    assert (comparison.noise_floor, comparison.scatter) == (
        worker["largest_spread_of_one_arm"],
        worker["scatter_of_one_run"],
    )
    assert "SAME" == worker["word"]
    (line,) = [line for line in analysis.summary_lines() if line.startswith("note: this machine (panda, Worker E2E)")]
    reach = max(abs(bound) for bound in comparison.interval_used)
    assert f"differ by {100 * comparison.noise_floor_median:.2f} % as a rule and by " in line
    assert f"an effect below {100 * reach:.2f} % cannot be told from noise here" in line
    assert {"panda": line.removeprefix("note: ")} == floor["in_words"]
    assert "aa.json" in (folder / "SHA256SUMS").read_text(encoding="utf-8")
    assert [] == stale_files(analyse(Campaign.open(folder)))
    (folder / "aa.json").write_text("{}", encoding="utf-8")
    assert "aa.json" in stale_files(analyse(Campaign.open(folder)))


def test_any_other_campaign_leaves_none(tmp_path: Path) -> None:
    folder = CampaignBuilder(tmp_path / "c").blocks(TIMES).write()
    write_report(folder)
    assert not (folder / "aa.json").exists()


@pytest.mark.parametrize("effect", [1e-300, 1e-9])
def test_an_effect_that_no_clock_tells_is_refused(effect: float) -> None:
    with pytest.raises(UsageError, match="smaller than any clock tells"):
        plan_line(effect, 0.01, 0.01)
