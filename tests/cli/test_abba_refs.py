"""``abba --baseline-ref/--candidate-ref`` and ``report --head`` through the command line, on tiny repositories."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from fuseproof.cli.main import main
from fuseproof.harness.campaign.folder import Campaign
from tests.cli.deaf_telemetry import be_deaf_to_the_load
from tests.harness.small_repositories import COMMAND, IDENTITY, commit_grey, make_repository, run_git

REFS = ["--baseline-ref=main~1", "--candidate-ref=main"]
RUN = ["--output=../c", "--blocks=1", "--contract=close:ssim>=0.0", "--flags=--prompt 'a red panda'"]


class Result(NamedTuple):
    code: int
    out: str
    err: str


Program = Callable[..., Result]


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    return make_repository(tmp_path / "repo")


@pytest.fixture
def fuseproof(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Program:
    """The program in the repository's folder, with caches and locks of the test's own."""
    monkeypatch.chdir(tmp_path / "repo")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    be_deaf_to_the_load(monkeypatch)
    monkeypatch.setenv("FUSEPROOF_CACHE_DIR", str(tmp_path / "cache"))
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> Result:
        capfd.readouterr()
        code = main(list(arguments))
        captured = capfd.readouterr()
        return Result(code, captured.out, captured.err)

    return call


def test_two_refs_from_flags_to_report(fuseproof: Program, commits: list[str], tmp_path: Path) -> None:
    result = fuseproof("abba", *REFS, *RUN, "--allow-busy")
    assert 0 == result.code, result.err
    assert "COLD_CACHE" not in (tmp_path / "c" / "report.md").read_text()
    text = (tmp_path / "c" / "report.md").read_text()
    for row in (f"`{commits[0][:12]}`", f"`{commits[1][:12]}`", "main~1"):
        assert row in text
    assert f"--baseline-ref {commits[0]} --candidate-ref {commits[1]}" in text or "--baseline-ref=" + commits[0] in text
    assert 'PYTHONPATH="$TREE" ' in text
    assert str(tmp_path / "cache") not in text
    assert 2 == Campaign.open(tmp_path / "c").plan.warmup_slots

    same = fuseproof("report", "../c", "--head=main")
    assert (0, True) == (same.code, f"head {commits[1][:12]}: all 5 files below fuseproof equal" in same.err), same.err
    later = commit_grey(tmp_path / "repo", 30)
    moved = fuseproof("report", "../c", "--head", "main", "--repo", ".")
    told = f"measured on an earlier head ({commits[1][:12]}, not {later[:12]}): 1 files below fuseproof differ"
    assert told in moved.err
    assert fuseproof("report", "../c").code == moved.code


def test_a_dry_run_shows_commits_and_makes_nothing(fuseproof: Program, commits: list[str], tmp_path: Path) -> None:
    result = fuseproof("abba", *REFS, *RUN, "--dry-run")
    assert 0 == result.code, result.err
    assert all(f"= {commit}" in result.out for commit in commits)
    assert "-P -m fuseproof generate" in result.out
    values = json.loads(fuseproof("abba", *REFS, *RUN, "--dry-run", "--json").out)
    assert commits == [values["arms"][arm]["commit"] for arm in "AB"]
    assert not (tmp_path / "cache").exists()
    assert 1 == len(run_git(tmp_path / "repo", "worktree", "list").splitlines())


def test_a_plan_says_it_all(fuseproof: Program, commits: list[str], tmp_path: Path) -> None:
    plan = tmp_path / "plans" / "refs.toml"
    plan.parent.mkdir()
    arm = f'command = "{COMMAND}"\nrepo = "{{plan_dir}}/../repo"\nimports = "fuseproof"'
    arm += '\nenv = { PYTHONPATH = "{tree}" }'
    plan.write_text(
        'name = "refs"\nblocks = 1\nwarmup_slots = 0\n[[cells]]\nname = "cell"\ncontract = "close:ssim>=0.0"\n'
        f'[arms.baseline]\nname = "old"\nref = "{commits[0]}"\n{arm}\n'
        f'[arms.candidate]\nname = "new"\nref = "main"\nsetup = "echo ready"\n{arm}\n'
    )
    result = fuseproof("abba", str(plan), "--output=../c", "--allow-busy")
    assert 0 == result.code, result.err
    text = (tmp_path / "c" / "report.md").read_text()
    assert "| Set-up | none | `echo ready`, status 0" in text
    assert "setup/B.log" in (tmp_path / "c" / "SHA256SUMS").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        pytest.param(["--baseline-ref=mian", "--candidate-ref=main"], 2, "no commit 'mian'; the closest are", id="ref"),
        pytest.param(["--baseline-ref=-x", "--candidate-ref=main"], 2, "does not begin with a dash", id="dash"),
        pytest.param(["--baseline-ref=main", "--candidate-ref=HEAD"], 2, "are the same commit", id="same"),
        pytest.param(["--baseline-ref=main"], 2, "--baseline-ref was given without --candidate", id="lone"),
        pytest.param(["--repo=."], 2, "--repo says where refs are looked up", id="repo-alone"),
        pytest.param([*REFS, "--repo=/"], 2, "is in no git repository", id="no-repository"),
        pytest.param([*REFS, "--aa"], 2, "--aa and --candidate-ref exclude each other", id="aa"),
    ],
)
def test_mistakes_are_one_sentence(fuseproof: Program, arguments: list[str], code: int, told: str) -> None:
    for extra in ([], ["--dry-run"]):
        result = fuseproof("abba", *arguments, *extra)
        assert (code, True) == (result.code, told in result.err), result.err
        assert "Traceback" not in result.err


def test_head_needs_a_commit_and_repo_a_head(fuseproof: Program, tmp_path: Path) -> None:
    fuseproof("abba", *REFS, *RUN, "--allow-busy")
    alone = fuseproof("report", "../c", "--repo=.")
    assert (2, True) == (alone.code, "--repo says where --head is looked up" in alone.err)
    unknown = fuseproof("report", "../c", "--head=nowhere")
    assert (2, True) == (unknown.code, "has no commit 'nowhere'" in unknown.err)
