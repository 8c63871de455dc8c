"""Runs under a profiler are no measurement: in pairs, in blocks and in campaigns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.perf.abba import compare_blocks
from fuseproof.harness.perf.blocks import read_blocks
from fuseproof.harness.perf.comparison import compare_dumps
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.harness.perf.profiled_runs import is_profiled
from fuseproof.harness.perf.text import render_comparison
from fuseproof.harness.statistics.verdict import Word
from fuseproof.pipelines import session_warnings
from tests.harness.campaign_builder import CampaignBuilder
from tests.harness.perf_dump_files import write_block, write_dump

SAID = "it ran under a profiler (--profile), so its time is no measurement"


def test_a_pair_with_a_profiled_run_has_no_ratio_whichever_it_is(tmp_path: Path) -> None:
    plain, profiled = write_dump(tmp_path / "a.json"), write_dump(tmp_path / "b.json", profiled=True)
    for files in ((plain, profiled), (profiled, plain)):
        text = render_comparison(compare_dumps([read_perf_dump(path) for path in files]))
        assert text.startswith("### INVALID")
        assert f"PROFILED: b.json: {SAID}" in text


@pytest.mark.parametrize(
    ("expected", "told"),
    [
        (True, {"profiled": True}),
        (True, {"profiled": "yes"}),
        (True, {"config": {"profile": True}}),
        (True, {"profiled": False, "warnings": [session_warnings.PROFILED]}),
        (False, {"profiled": False, "config": {"profile": False}, "warnings": ["the card was busy"]}),
        (False, {}),
    ],
)
def test_a_dump_that_says_so_anywhere_is_a_profiled_run_s(expected: bool, told: dict[str, Any], tmp_path: Path) -> None:
    assert expected == is_profiled(read_perf_dump(write_dump(tmp_path / "a.json", **told)))


def test_blocks_with_profiled_runs_are_invalid(tmp_path: Path) -> None:
    files = write_block(tmp_path, (1.0, 0.9, 0.91, 1.01), B={"profiled": True})
    comparison = compare_blocks(read_blocks(files, "ABBA"))
    assert (Word.INVALID, 6) == (comparison.verdict.word, comparison.exit_code)
    assert {"PROFILED"} == {reason.code for reason in comparison.verdict.reasons}


def test_a_cell_with_profiled_runs_is_invalid(tmp_path: Path) -> None:
    folder = CampaignBuilder(tmp_path / "c").blocks(((1, 3, 3.1, 1.1), (3, 1, 1.1, 3.1))).write()
    for path in folder.glob("slots/*/*-B/perf.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"profiled": True}))
    (cell,) = analyse(Campaign.open(folder)).cells
    assert (Word.INVALID, ()) == (cell.word, cell.metrics)
    assert ["PROFILED"] == [reason.code for reason in cell.verdict.reasons]
    assert "candidate runs ran under a profiler" in cell.verdict.reasons[0].detail
