"""A cell read against the cell it names: candidate against candidate, unpaired, described and never judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from fuseproof.errors import UsageError
from fuseproof.harness.analysis.campaign import CampaignAnalysis, analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import render_markdown, render_numbers, write_report
from fuseproof.schedules.plan import built_in_plans, load_plan, plan_from
from tests.harness.campaign_builder import CampaignBuilder

LOSSLESS = ((10.0, 9.0, 9.1, 10.02), (9.05, 10.01, 10.03, 9.0))
HIGH = ((8.0, 6.0, 6.1, 8.02), (6.05, 8.01, 8.03, 6.2))
CELLS = {"lossless": {}, "high": {"reference": "lossless", "contract": "close:ssim>=0.1"}}


def campaign(folder: Path, **high: Any) -> CampaignBuilder:
    """Two cells whose four candidate runs differ as the ``Run`` fields in ``high`` say."""
    builder = CampaignBuilder(folder / "c", cells=CELLS).blocks(LOSSLESS, cell="lossless")
    return builder.blocks(HIGH, cell="high", **high)


def analysed(builder: CampaignBuilder) -> CampaignAnalysis:
    return analyse(Campaign.open(builder.write()))


def test_candidates_of_two_cells_are_compared_with_welchs_interval(tmp_path: Path) -> None:
    (pair,) = analysed(campaign(tmp_path)).between_cells
    assert ("high", "lossless", None) == (pair.cell, pair.reference, pair.no_ratio)
    (worker,) = pair.timers
    lossless, high = (9.0, 9.1, 9.05, 9.0), (6.0, 6.1, 6.05, 6.2)
    assert stats.gmean(lossless) == pytest.approx(worker.reference_s)
    assert stats.gmean(high) == pytest.approx(worker.cell_s)
    assert 1 - stats.gmean(high) / stats.gmean(lossless) == pytest.approx(worker.reduction)
    assert worker.interval is not None
    logs = np.log([lossless, high])
    shares = logs.var(axis=1, ddof=1) / 4
    df = shares.sum() ** 2 / (shares**2 / 3).sum()
    half = stats.t.ppf(0.975, df) * np.sqrt(shares.sum())
    effect = logs[1].mean() - logs[0].mean()
    assert (1 - np.exp(effect + half), 1 - np.exp(effect - half)) == pytest.approx(worker.interval)
    assert (4, 4) == worker.runs


def test_a_missing_interval_says_why(tmp_path: Path) -> None:
    """Coarse or copied times: within each cell no run differs from another."""
    builder = CampaignBuilder(tmp_path / "c", cells=CELLS)
    for cell, seconds in (("lossless", 9.0), ("high", 6.0)):
        builder.blocks(((10.0, seconds, seconds, 10.01), (seconds, 10.02, 10.0, seconds)), cell=cell)
    analysis = analysed(builder)
    (worker,) = analysis.between_cells[0].timers
    assert (None, "no interval: within each cell all runs took the same time") == (worker.interval, worker.no_interval)
    assert f"33.33 % ({worker.no_interval})" in render_markdown(analysis)


def test_equal_outputs_are_named_by_their_deepest_level(tmp_path: Path) -> None:
    (pair,) = analysed(campaign(tmp_path)).between_cells
    assert ("raw arrays", None) == (pair.same_level, pair.worst)


def test_differing_outputs_get_their_worst_ssim_and_psnr(tmp_path: Path) -> None:
    builder = campaign(tmp_path, pictures=(2,), model="some/model")
    text = render_markdown(analysed(builder))
    assert "unequal work" in text, "another model has no ratio"
    analysis = analysed(campaign(tmp_path / "same", pictures=(2,)))
    (pair,) = analysis.between_cells
    assert pair.worst is not None and pair.worst.comparison is not None
    assert pair.worst.comparison.ssim is not None and pair.worst.comparison.ssim < 1
    text = render_markdown(analysis)
    row = next(line for line in text.splitlines() if line.startswith("| high against lossless"))
    assert "differ: SSIM 0." in row and " dB" in row
    assert "not quality evidence: random weights" in row
    assert "unpaired runs of cells that ran one after the other" in text


def test_equal_pixels_and_other_raw_arrays_are_said(tmp_path: Path) -> None:
    (pair,) = analysed(campaign(tmp_path, raw_shift=1)).between_cells
    assert "decoded pixels" == pair.same_level


def test_unequal_work_has_no_ratio(tmp_path: Path) -> None:
    analysis = analysed(campaign(tmp_path, config={"num_inference_steps": 4}))
    (pair,) = analysis.between_cells
    assert () == pair.timers
    assert "unequal work: num_inference_steps: 8 against 4" == pair.no_ratio
    assert "no ratio: unequal work" in render_markdown(analysis)


def test_quality_and_graphs_are_what_is_compared(tmp_path: Path) -> None:
    (pair,) = analysed(
        campaign(tmp_path, config={"quality": "high", "enable_breakable_cuda_graph": False})
    ).between_cells
    assert pair.no_ratio is None and pair.timers


def test_a_cell_without_blocks_has_no_ratio(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c", cells=CELLS).blocks(LOSSLESS, cell="lossless")
    (pair,) = analysed(builder).between_cells
    assert "high has no complete block" == pair.no_ratio


def test_it_is_in_the_numbers_and_renders_again_to_the_same_bytes(tmp_path: Path) -> None:
    folder = campaign(tmp_path, pictures=(2,)).write()
    first = render_numbers(write_report(folder))
    assert '"reference": "lossless"' in first
    assert first == render_numbers(analyse(Campaign.open(folder)))


@pytest.mark.parametrize(
    ("reference", "said"),
    [("graph", "names the reference 'graph', which is no cell; others: lossless"), ("high", "names itself")],
)
def test_a_reference_that_is_no_other_cell_is_refused(reference: str, said: str) -> None:
    plan = load_plan("embedded").to_json()
    cell = plan["cells"][0]
    cells = [cell | {"name": "lossless"}, cell | {"name": "high", "reference": reference}]
    with pytest.raises(UsageError, match=said):
        plan_from(plan | {"cells": cells}, "here")


@pytest.mark.parametrize("name", [name for name in built_in_plans() if name.startswith("longcat")])
def test_built_in_plans_read_their_modes_against_lossless(name: str) -> None:
    references = {cell.name: cell.reference for cell in load_plan(name).cells}
    assert {"lossless": None, "graph": "lossless", "high": "lossless"} == references
