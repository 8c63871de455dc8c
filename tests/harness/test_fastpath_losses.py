"""A picture stays exact when the candidate's kernel is rejected: the terminal and the Summary must say so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fuseproof.harness.report import render_markdown
from tests.harness.campaign_builder import CampaignBuilder, Run
from tests.harness.test_report_claims import analysed, section

FUSED = {"state": "fused", "calls_fused": 65, "calls_eager": 4}
OFF = {"state": "off", "reason": "not requested", "calls_fused": 0, "calls_eager": 0}
REJECTED = {"state": "rejected", "reason": "1 key(s): 100 % of values differ", "calls_fused": 0, "calls_eager": 6}
FORM_REJECTED = REJECTED | {"calls_fused": 4, "calls_eager": 0}
UNCALLED = REJECTED | {"calls_eager": 0}
DECLINED = {"state": "declined", "reason": "norm_out has a hook", "calls_fused": 0, "calls_eager": 0}
REPLACED = {"state": "replaced", "reason": "mine stands in", "calls_fused": 0, "calls_eager": 0}
UNREACHED = {"state": "unreached", "reason": "no call reached this site", "calls_fused": 0, "calls_eager": 0}
TIMES = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))


def campaign(
    folder: Path, baseline: dict[str, Any], candidate: dict[str, Any], *, cells: tuple[str, ...] = ("panda",)
) -> CampaignBuilder:
    """Two blocks a cell, the candidate with a file of its own."""
    builder = CampaignBuilder(folder, cells=cells)
    for cell in cells:
        for number, (way, row) in enumerate(zip(("ABBA", "BAAB"), TIMES, strict=True), start=1):
            runs = [
                Run(
                    worker_s=seconds,
                    sites=baseline if arm == "A" else candidate,
                    config={"fastpaths_from": None if arm == "A" else "k.py"},
                )
                for arm, seconds in zip(way, row, strict=True)
            ]
            builder.block(runs, cell=cell, block=number)
    return builder


def codes(text: str) -> list[str]:
    return re.findall(r"(SITE_[A-Z_]+|FASTPATH_NOT_TAKEN)", text)


@pytest.mark.parametrize(
    ("expected", "baseline", "candidate"),
    [
        pytest.param([], {"a": FUSED}, {"a": FUSED, "mine": FUSED}, id="as asked"),
        pytest.param([], {"a": FUSED}, {"a": FUSED, "mine": FUSED | {"state": "unchecked"}}, id="gate off"),
        pytest.param([], {"a": FUSED}, {"a": OFF, "mine": FUSED}, id="switched off on purpose"),
        pytest.param([], {"a": FUSED}, {"a": REPLACED, "mine": FUSED}, id="replaced and served"),
        pytest.param(["SITE_REJECTED"], {"a": FUSED}, {"a": FUSED, "mine": REJECTED}, id="own rejected"),
        pytest.param(["SITE_REJECTED"], {"a": FUSED}, {"a": FUSED, "mine": UNCALLED}, id="rejected in the warm-up"),
        pytest.param(["SITE_REJECTED"], {"a": REJECTED, "b": FUSED}, {"a": FUSED, "b": FUSED}, id="baseline rejected"),
        pytest.param(["SITE_LOST"], {"a": FUSED, "b": FUSED}, {"a": DECLINED, "b": FUSED}, id="declined"),
        pytest.param(
            ["SITE_REJECTED", "SITE_LOST"],
            {"a": FUSED, "b": FUSED},
            {"a": REPLACED, "mine": REJECTED, "b": FUSED},
            id="replaced by a rejected one",
        ),
        pytest.param(["SITE_NEVER_FUSED"], {"a": FUSED}, {"a": FUSED, "mine": UNREACHED}, id="own never ran"),
        pytest.param(["SITE_NEVER_FUSED"], {"a": OFF}, {"a": FUSED, "mine": DECLINED}, id="own declined"),
    ],
)
def test_losses_are_warned_of_and_in_the_summary(
    tmp_path: Path, expected: list[str], baseline: dict[str, Any], candidate: dict[str, Any]
) -> None:
    analysis = analysed(campaign(tmp_path / "c", baseline, candidate))
    text = render_markdown(analysis)
    warned = [line for line in analysis.summary_lines() if line.startswith("  warning: ")]
    assert expected == codes("".join(warned))
    assert expected == codes(section(text, "Summary"))
    assert bool(expected) == ("not all that was asked for ran fused" in text)
    assert not (expected and "are no fallback" in text)


def test_a_rejection_names_site_runs_calls_and_cause(tmp_path: Path) -> None:
    text = render_markdown(analysed(campaign(tmp_path / "c", {"a": FUSED}, {"a": FUSED, "mine": REJECTED})))
    expected = (
        "candidate: the gate rejected mine in 4 of 4 runs (1 key(s): 100 % of values differ); 0 fused and 24 eager "
        "calls: what was timed is the eager chain, not the kernel"
    )
    assert expected in section(text, "Summary")


def test_a_rejected_form_is_no_loss_where_another_ran_every_call(tmp_path: Path) -> None:
    analysis = analysed(campaign(tmp_path / "c", {"a": FUSED}, {"a": FUSED, "mine": FORM_REJECTED}))
    text = render_markdown(analysis)
    expected = (
        "SITE_FORM_REJECTED: candidate: the gate rejected a form of mine in 4 of 4 runs (1 key(s): 100 % of values "
        "differ); 16 fused and 0 eager calls: another form of it took over"
    )
    assert expected in section(text, "Summary")
    assert "not all that was asked for ran fused" not in text
    assert "partly the eager chain" not in text


def test_calls_that_nobody_counted_are_not_called_eager(tmp_path: Path) -> None:
    text = render_markdown(analysed(campaign(tmp_path / "c", {"a": FUSED}, {"a": FUSED, "mine": UNCALLED})))
    assert "0 fused and 0 eager calls: no call of it was counted in what was timed" in section(text, "Summary")


def test_lost_sites_of_one_cause_share_a_sentence(tmp_path: Path) -> None:
    lost = {"a": DECLINED, "b": DECLINED, "c": FUSED}
    text = render_markdown(analysed(campaign(tmp_path / "c", dict.fromkeys("abc", FUSED), lost)))
    assert "the baseline ran a, b fused (520 calls), the candidate did not (declined: norm_out has a hook)" in text


def test_every_cell_speaks_for_itself(tmp_path: Path) -> None:
    cells = ("one", "two")
    text = section(
        render_markdown(analysed(campaign(tmp_path / "c", {"a": FUSED}, {"a": REJECTED}, cells=cells))), "Summary"
    )
    assert [1, 1] == [text.count(f"**{cell}**: SITE_REJECTED") for cell in cells]


def test_reasons_stand_beside_their_own_arm(tmp_path: Path) -> None:
    text = render_markdown(analysed(campaign(tmp_path / "c", {"a": FUSED, "b": OFF}, {"a": REJECTED, "b": FUSED})))
    rows = [line for line in text.splitlines() if line.startswith("| panda | `")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert [["", "1 key(s): 100 % of values differ"], ["not requested", ""]] == [row[-2:] for row in cells]


def test_a_baseline_that_asked_for_fast_paths_and_ran_none_is_said(tmp_path: Path) -> None:
    idle = {"state": "declined", "reason": "weights.0 is torch.nn.Linear, whose forward was replaced", "calls_fused": 0}
    analysis = analysed(campaign(tmp_path / "c", {"a": idle}, {"a": FUSED}))
    told = {warning.code: warning.detail for warning in analysis.cells[0].warnings}
    assert "the baseline asked for fast paths (auto) and made no fused call" == told["BASELINE_NOT_FUSED"]
    off = analysed(campaign(tmp_path / "off", {"a": OFF}, {"a": FUSED}))
    assert "BASELINE_NOT_FUSED" not in {warning.code for warning in off.cells[0].warnings}


def test_reused_values_are_named(tmp_path: Path) -> None:
    text = render_markdown(analysed(campaign(tmp_path / "c", {"a": OFF}, {"a": FUSED})))
    assert "Eager calls beside fused ones at a are no fallback" in text


FIRST_SIGHT = "22 first sight(s) of fast paths fell inside a timed request, {} ms of it; a warm-up keeps them out"


def test_warnings_of_the_arms_are_quoted_once_with_their_runs(tmp_path: Path) -> None:
    builder = CampaignBuilder(tmp_path / "c")
    for number, way in enumerate(("ABBA", "BAAB"), start=1):
        builder.block(
            [
                Run(
                    worker_s=10.0 + index / 100,
                    warnings=("dummy weights: seeded random", "odd size")
                    if arm == "A"
                    else (FIRST_SIGHT.format(index + 6.2), "odd size"),
                )
                for index, arm in enumerate(way)
            ],
            block=number,
        )
    analysis = analysed(builder)
    warned = [line for line in analysis.summary_lines() if line.startswith("  warning: ")]
    first_sight, odd = [line for line in warned if "FIRST_SIGHT" in line or "ARM_WARNING" in line]
    assert "FIRST_SIGHT: 4 of 4 candidate runs warn: 22 first sight(s)" in first_sight
    assert "ARM_WARNING: 4 of 4 baseline runs and 4 of 4 candidate runs warn: odd size" in odd
    text = render_markdown(analysis)
    assert "FIRST_SIGHT: 4 of 4 candidate runs" in section(text, "Summary")
    assert "ARM_WARNING" not in section(text, "Summary")
    assert "ARM_WARNING" in section(text, "Limitations")
