"""``--plan-for``: how many blocks an effect needs; nothing runs and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuseproof.cli.abba_options import AbbaOptions
from fuseproof.cli.abba_plan import build_plan
from fuseproof.cli.main import main
from tests.harness.campaign_builder import CampaignBuilder

TIMES = ((10.0, 9.5, 9.51, 10.02), (9.52, 10.01, 10.03, 9.5))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return CampaignBuilder(tmp_path / "campaign").blocks(TIMES).write()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--plan-for=1.5%", "--scatter=0.5%"], "to resolve 1.5 %: 4 blocks find 1.25 %", id="scatter"),
        pytest.param(["--plan-for=0.015", "--scatter=0.005"], "Run --blocks 4.", id="shares"),
        pytest.param(["--plan-for=1%", "--scatter=0.1%"], "--min-effect 0.5%; then 2 blocks find 0.56 %", id="minimum"),
        pytest.param(["--plan-for=1%", "--scatter=0.1%", "--min-effect=0.5%"], "Run --blocks 2.", id="smaller minimum"),
        pytest.param(["--plan-for=1.2%", "--scatter=5%"], "Use a larger workload", id="too noisy"),
        pytest.param(
            ["--plan-for=2%", "--from-campaign=campaign"],
            "(one run scatters by 0.107 %",
            id="campaign",
        ),
    ],
)
def test_the_number_of_blocks_is_printed(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert 0 == main(["abba", *arguments])
    assert said in capsys.readouterr().out
    assert ["campaign"] == [path.name for path in folder.parent.iterdir()]
    assert 0 == main(["abba", *arguments, "--json"])
    assert said in json.loads(capsys.readouterr().out)["lines"][0]


def test_a_report_plans_from_its_own_scatter(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["report", str(folder), "--plan-for", "1.5%"])
    assert "to resolve 1.5 %: 2 blocks find" in capsys.readouterr().out
    assert not (folder / "report.md").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["--plan-for=2%"], "--plan-for needs to know how much one run scatters", id="no scatter"),
        pytest.param(["--plan-for=200%", "--scatter=1%"], "--plan-for is '200%'; it must be above 0", id="effect"),
        pytest.param(["--plan-for=2%", "--scatter=much"], "--scatter is 'much'", id="no number"),
        pytest.param(["--scatter=1%"], "--scatter has no effect without --plan-for", id="scatter alone"),
        pytest.param(["--add-blocks=2"], "--add-blocks 2 has no effect without --resume", id="added blocks alone"),
        pytest.param(["--from-campaign=x"], "--from-campaign has no effect without --plan-for", id="campaign alone"),
        pytest.param(["--qualify=worker>1%"], "--qualify 'worker>1%': 'worker>1%' is no", id="requirement"),
    ],
)
def test_wrong_usage(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    assert 2 == main(["abba", *arguments, "--dry-run"])
    assert said in capsys.readouterr().err


def test_requirements_and_retries_go_into_the_plan() -> None:
    plan = build_plan(AbbaOptions(qualify="worker>=1.5%, client>=0.015", retries=0))
    assert (("worker>=1.5%", "client>=1.5%"), 0) == (plan.qualify, plan.retries)
