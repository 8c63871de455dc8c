"""Loading and warming up lie outside the timers: they are shown, and said where the arms lie clearly apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.analysis.claims import claims
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import render_markdown
from tests.harness.campaign_builder import CampaignBuilder, Run

FASTER = (10.0, 9.5, 9.51, 10.02)


def campaign(directory: Path, baseline_s: tuple[float, float], candidate_s: tuple[float, float]) -> CampaignAnalysis:
    """Two blocks whose warm-ups took these seconds, first and second run of an arm."""
    builder = CampaignBuilder(directory)
    for block, way in ((1, "ABBA"), (2, "BAAB")):
        seen = {"A": list(baseline_s), "B": list(candidate_s)}
        times = {"A": 10.0, "B": 9.5}
        runs = [Run(worker_s=times[arm] + 0.01 * i, warmup_s=seen[arm].pop(0)) for i, arm in enumerate(way)]
        builder.block(runs, block=block)
    return analyse(Campaign.open(builder.write()))


def test_a_warm_up_that_doubles_is_told_in_limitations_and_beside_the_claim(tmp_path: Path) -> None:
    analysis = campaign(tmp_path / "c", (0.5, 0.52), (1.0, 1.05))
    report = render_markdown(analysis)
    said = (
        "OUTSIDE_TIMERS: Warm-up: 0.5100 → 1.0250 s (+101.0 %), every candidate run above every baseline run; outside "
        "every timer, once a process, so not judged"
    )
    assert said in report.partition("## Limitations")[2]
    (claim,) = claims(analysis)
    assert claim.is_claimed and "OUTSIDE_TIMERS" in claim.caveats, "it is said beside the claim, and forbids none"
    assert "| Warm-up |" in report and "0.5100 → 1.0250 (−100.98%)" in report


@pytest.mark.parametrize(
    ("baseline_s", "candidate_s"),
    [
        pytest.param((0.5, 0.52), (0.53, 0.54), id="a few per cent"),
        pytest.param((0.5, 1.0), (0.6, 1.1), id="overlapping"),
        pytest.param((0.5, 0.9), (0.95, 1.0), id="less than runs of one arm differ"),
    ],
)
def test_what_may_be_chance_is_not_told(
    tmp_path: Path, baseline_s: tuple[float, float], candidate_s: tuple[float, float]
) -> None:
    analysis = campaign(tmp_path / "c", baseline_s, candidate_s)
    assert "OUTSIDE_TIMERS" not in {warning.code for warning in analysis.cells[0].warnings}
