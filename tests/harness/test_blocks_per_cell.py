"""Cells with numbers of blocks of their own: what runs, what counts as planned, what the report says."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.cli.abba_options import AbbaOptions
from fuseproof.cli.abba_plan import build_plan
from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.campaign.estimates import dry_run
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.report import write_report
from tests.harness.campaign_builder import CampaignBuilder
from tests.harness.fake_commands import fake_plan
from tests.harness.test_runner import ScriptedExecutor, block, create, run

CELLS = [{"name": "two"}, {"name": "one", "blocks": 1}]
BOTH = [*block("two", "01", "ABBA"), *block("two", "02", "BAAB"), *block("one", "01", "ABBA")]
ROWS = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))


def test_each_cell_runs_its_own_number(tmp_path: Path) -> None:
    campaign, executor = create(tmp_path / "c", cells=CELLS, blocks=2), ScriptedExecutor()
    assert "complete" == run(campaign, executor).status
    assert BOTH == executor.ran
    again = ScriptedExecutor()
    run(Campaign.open(tmp_path / "c"), again)
    assert [] == again.ran, "nothing is missing, so nothing runs again"


def test_the_dry_run_lists_what_runs(tmp_path: Path) -> None:
    plan = fake_plan({}, {"worker_ms": 900}, cells=CELLS, blocks=2)
    assert BOTH == [slot.id for slot, _ in dry_run(plan, tmp_path / "c").slots]


@pytest.mark.parametrize(
    ("expected", "own"),
    [
        ("planned blocks two 2, one 1 (", 1),
        ("2 planned blocks (", 2),
    ],
)
def test_the_report_counts_what_was_planned(tmp_path: Path, expected: str, own: int) -> None:
    cells = {"two": {}, "one": {"blocks": own}}
    builder = CampaignBuilder(tmp_path / "c", blocks=2, cells=cells)  # type: ignore[arg-type]
    builder.blocks(ROWS, cell="two").blocks(ROWS[:own], cell="one")
    analysis = analyse(Campaign.open(builder.write()))
    assert [2, own] == [cell.runs.planned_blocks for cell in analysis.cells]
    assert [(), ()] == [cell.runs.lost for cell in analysis.cells], "no block is missed that was not planned"
    write_report(tmp_path / "c")
    assert expected in (tmp_path / "c" / "report.md").read_text()


def test_blocks_on_the_command_line_are_for_every_cell(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'name = "x"\n[arms.baseline]\nname = "a"\n[arms.candidate]\nname = "b"\nflags = "--seed 1"\n'
        '[[cells]]\nname = "one"\nblocks = 1\n[[cells]]\nname = "two"\n'
    )
    own, same = (build_plan(AbbaOptions(plan=str(path), blocks=blocks)) for blocks in (None, 4))
    assert [[1, 2], [4, 4]] == [[plan.blocks_of(cell.name) for cell in plan.cells] for plan in (own, same)]
