"""The built-in plan ``sglang-pr`` through the command line: two refs of a repository that stands for sglang."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fuseproof.cli.main import main
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.schedules.plan import load_plan
from tests.cli.deaf_telemetry import be_deaf_to_the_load
from tests.harness.small_repositories import IDENTITY, run_git
from tests.harness.stub_sglang import commit_version, make_sglang

REFS = ["--repo=sglang", "--baseline-ref=main", "--candidate-ref=faster"]
RUN = ["sglang-pr", *REFS, "--output=c", "--allow-busy"]
FLUX = "--cells=flux1-dev"


class Result(NamedTuple):
    code: int
    out: str
    err: str


Program = Callable[..., Result]


@pytest.fixture
def abba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Program:
    """The program beside an sglang checkout, with caches and locks of the test's own."""
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    make_sglang(tmp_path / "sglang")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    be_deaf_to_the_load(monkeypatch)
    monkeypatch.setenv("FUSEPROOF_CACHE_DIR", str(tmp_path / "cache"))

    def call(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(["abba", *arguments])
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def test_two_refs_of_sglang_from_plan_to_verified_report(abba: Program, tmp_path: Path) -> None:
    result = abba(*RUN, "--cells=flux1-dev-default", "--blocks=1", "--flags", "--num-inference-steps 4")
    assert (0, True) == (result.code, result.out.startswith("INCONCLUSIVE: flux1-dev-default")), result
    campaign = Campaign.open(tmp_path / "c")
    slots = campaign.slots()
    assert "BAABBA" == "".join(slot.arm for slot in slots)
    assert [0.01] * 6 == [slot.times.client_s for slot in slots]
    command = list(slots[0].command)
    assert ["-P", "-c", "from sglang.cli.main import main; main()", "generate", "--backend=sglang"] == command[1:6]
    assert ["--num-inference-steps", "4"] == command[
        command.index("--save-output") - 2 : command.index("--save-output")
    ]
    modules = {letter: lineage.module_file for letter, lineage in campaign.lineage.items()}
    assert dict.fromkeys("AB", "python/sglang/__init__.py") == modules
    assert ("main", "faster") == tuple(campaign.lineage[letter].ref for letter in "AB")
    assert 0 == main(["verify", "c"])
    text = (tmp_path / "c" / "report.md").read_text()
    said = [line for line in text.splitlines() if "lossless" in line]
    assert said, "sglang's word stands in the commands that were run"
    assert all("--quality lossless" in line for line in said), "and nowhere as a word of ours"


@pytest.mark.parametrize(
    ("flag", "exit_code", "code", "told"),
    [
        pytest.param("--fail", 1, "EXIT", "its log says that the generation failed", id="failed-with-status-0"),
        pytest.param("--fall-back", 6, "FALLBACK", "Falling back to diffusers backend", id="fallback"),
    ],
)
def test_what_the_log_confesses_costs_the_slot(
    abba: Program, tmp_path: Path, flag: str, exit_code: int, code: str, told: str
) -> None:
    result = abba(*RUN, FLUX, "--flags", flag)
    first = Campaign.open(tmp_path / "c").slots()[0]
    assert (exit_code, code, True) == (result.code, first.reason_code, told in (first.reason or ""))


def test_a_graph_that_was_not_captured_is_invalid(abba: Program, tmp_path: Path) -> None:
    commit_version(tmp_path / "sglang", "no graphs", captures=False)
    result = abba(*RUN, "--cells=longcat-image-graph", "--blocks=1")
    assert 6 == result.code
    states = {slot.arm: slot.reason_code for slot in Campaign.open(tmp_path / "c").slots()}
    assert "MISSING_GRAPH" == states["B"]


def test_a_dry_run_prints_the_exact_commands(abba: Program, tmp_path: Path) -> None:
    result = abba("sglang-pr", *REFS, "--dry-run", "--json", "--python=/usr/bin/python3", "--setup=true")
    assert 0 == result.code, result.err
    values = json.loads(result.out)
    assert 60 == len(values["slots"])
    assert {cell.name for cell in load_plan("sglang-pr").cells} == {
        slot["id"].split("/")[0] for slot in values["slots"]
    }
    slot = values["slots"][0]
    assert ["/usr/bin/python3", "-P", "-c"] == slot["command"][:3]
    assert "{" not in "".join(word for word in slot["command"] if "quality" not in word)
    assert slot["environment_overrides"]["PYTHONPATH"].startswith(str(tmp_path / "cache" / "worktrees"))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "told", "next_step"),
    [
        pytest.param([], "arms run in the tree of a git ref, and no ref was given", "Add --repo CHECKOUT", id="refs"),
        pytest.param(["--baseline-ref=main"], "candidate arm runs in the tree", "--candidate-ref REF", id="one-ref"),
        pytest.param(["--repo=sglang"], "and no ref was given", "--baseline-ref REF", id="repo-alone"),
        pytest.param([*REFS[1:]], "is in no git repository", "--repo", id="repo"),
        pytest.param([*REFS, "--cells=flux"], "the plan's cells are longcat-image,", "commas", id="cell"),
        pytest.param([*REFS, "--python=nowhere"], "is no program on this machine", "Check the path", id="python"),
    ],
)
def test_what_is_missing_is_one_sentence(abba: Program, arguments: list[str], told: str, next_step: str) -> None:
    result = abba("sglang-pr", *arguments, "--output=c", "--allow-busy")
    assert (2, True, True) == (result.code, told in result.err, next_step in result.err), result.err
    assert 2 == len(result.err.splitlines())


def test_a_checkout_of_something_else_is_named(abba: Program, tmp_path: Path) -> None:
    run_git(tmp_path / "sglang", "switch", "--quiet", "--create", "elsewhere")
    run_git(tmp_path / "sglang", "mv", "python", "src")
    run_git(tmp_path / "sglang", "commit", "--quiet", "--message", "moved")
    result = abba("sglang-pr", "--repo=sglang", "--baseline-ref=main", "--candidate-ref=elsewhere", "--allow-busy")
    assert (1, True) == (result.code, "cannot import sglang: ModuleNotFoundError" in result.err), result.err
