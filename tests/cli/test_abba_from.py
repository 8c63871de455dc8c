"""``fuseproof abba --from``: the plan of a stored campaign, measured anew, through the command line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fuseproof.cli.main import main
from fuseproof.harness.campaign.arm_lineage import ArmLineage
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.plan_source import PlanSource
from fuseproof.harness.campaign.replay import environment_changes
from fuseproof.harness.media.files import file_sha256
from fuseproof.schedules.plan import plan_from
from tests.cli.deaf_telemetry import be_deaf_to_the_load
from tests.harness.fake_commands import fake_command
from tests.harness.small_repositories import IDENTITY, commit_grey, make_repository
from tests.pipelines.input_pictures import encoded
from tests.pipelines.input_pictures import picture as drawn

ENVIRONMENT = {"gpus": [{"name": "NVIDIA H100", "uuid": "GPU-1", "driver_version": "550.1"}], "visible_gpu_uuids": []}
ARMS = {"baseline": {"name": "off", "flags": "--fastpaths=off"}, "candidate": {"name": "auto", "flags": ""}}


class Result(NamedTuple):
    code: int
    out: str
    err: str


Program = Callable[..., Result]


@pytest.fixture
def fuseproof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Program:
    """The program in an empty folder, with locks and caches of its own, deaf to the load of this machine."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
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


def stored(folder: Path, flags: str, arms: Mapping[str, Any] = ARMS) -> Campaign:
    """A campaign that has run nothing, as it lies on disk, of a plan with one cell."""
    values = {"name": "old", "arms": arms, "cells": [{"name": "cell", "flags": flags}], "blocks": 3}
    created = "2025-01-02T03:04:05.000+00:00"
    return Campaign.create(folder, plan_from(values, "test"), command=("x",), environment=ENVIRONMENT, created=created)


def commands(result: Result) -> list[str]:
    assert 0 == result.code, result.err
    return [" ".join(slot["command"]) for slot in json.loads(result.out)["slots"]]


def test_the_same_plan_in_a_new_campaign_that_says_where_it_comes_from(fuseproof: Program) -> None:
    arms = {
        role: {"name": role, "command": fake_command(worker_ms=worker_ms)}
        for role, worker_ms in (("baseline", 1000), ("candidate", 900))
    }
    stored(Path("old"), "", arms)
    before = {path: path.read_bytes() for path in Path("old").rglob("*") if path.is_file()}
    again = fuseproof("abba", "--from=old/campaign.json", "--output=new", "--blocks=1", "--allow-busy")
    assert (0, True) == (again.code, again.out.startswith("INCONCLUSIVE: cell")), again.err
    assert before == {path: path.read_bytes() for path in Path("old").rglob("*") if path.is_file()}
    old, new = Campaign.open("old"), Campaign.open("new")
    source = PlanSource("old", old.created, file_sha256(Path("old/campaign.json")), ("blocks",))
    assert (source, ["blocks"], 5) == (new.plan_source, old.plan.differences(new.plan), len(new.slots()))
    assert f"Plan of campaign old of {old.created}, with other blocks" in Path("new/report.md").read_text()
    assert "the stored plan runs programs of its own (baseline, candidate)" in again.err
    assert 0 == fuseproof("verify", "new").code


def test_what_differs_here_is_remarked_upon() -> None:
    here = {
        "gpus": [{"name": "NVIDIA H200", "uuid": "GPU-2", "driver_version": "570.1"}],
        "visible_gpu_uuids": ["GPU-2"],
    }
    libraries = {"libraries": {"torch": "2.7.0"}}, {"libraries": {"torch": "2.8.0"}}
    assert [
        "the GPUs went from NVIDIA H100 to NVIDIA H200",
        "the driver went from 550.1 to 570.1",
        "torch went from 2.7.0 to 2.8.0",
    ] == environment_changes(ENVIRONMENT | libraries[0], here | libraries[1])
    assert [] == environment_changes(ENVIRONMENT, ENVIRONMENT)


@pytest.mark.parametrize("form", ["--image-path {}", "--image-path={}"])
def test_an_input_that_is_missing_or_another_one_is_taken_from_the_campaign(fuseproof: Program, form: str) -> None:
    picture = Path("cat.png")
    picture.write_bytes(encoded(drawn(seed=1)))
    edit = f"--model-path embedded:longcat-image-edit --prompt x {form.format(picture)}"
    kept = stored(Path("old"), edit).inputs[0].copy
    assert kept is not None
    again = ("abba", "--from=old", "--dry-run", "--json")
    assert all("cat.png" in words and "inputs/" not in words for words in commands(fuseproof(*again)))
    picture.write_bytes(encoded(drawn(seed=2)))
    assert all(str(Path("old").absolute() / kept) in words for words in commands(fuseproof(*again)))
    assert "--image-path cat.png is another file here: the copy" in json.loads(fuseproof(*again).out)["remarks"][0]
    picture.unlink()
    assert all(str(Path("old").absolute() / kept) in words for words in commands(fuseproof(*again)))
    (Path("old") / kept).write_bytes(b"a cat that somebody put there")
    refused = fuseproof(*again)
    assert (1, True) == (refused.code, "is not the file whose hash campaign.json holds" in refused.err)
    (Path("old") / kept).unlink()
    refused = fuseproof(*again)
    assert (2, True) == (refused.code, "--image-path cat.png is not here, and old keeps no copy of it" in refused.err)
    assert f"SHA-256 {Campaign.open('old').inputs[0].sha256}" in refused.err


def test_git_refs_run_the_commits_that_were_measured(fuseproof: Program, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    commits = make_repository(repo)
    refs = {"baseline": "main~1", "candidate": "main"}
    campaign = stored(Path("old"), "--prompt x", {role: {"name": role, "ref": ref} for role, ref in refs.items()})
    nobody = fuseproof("abba", "--from=old", "--dry-run")
    assert (2, True) == (nobody.code, "does not say which commit its baseline main~1 was" in nobody.err)
    campaign.lineage = {
        letter: ArmLineage(repo=str(repo), commit=commit) for letter, commit in zip("AB", commits, strict=True)
    }
    campaign.save_status("complete")
    commit_grey(repo, 30)
    again = fuseproof("abba", "--from=old", "--dry-run")
    assert (0, True) == (again.code, all(f"{commit} = {commit}" in again.out for commit in commits)), again.err
    told = f"the candidate is the commit that was measured, {commits[1][:12]}, whatever main is now"
    assert told in " ".join(again.out.split())
    shutil.move(repo, tmp_path / "moved")
    gone = fuseproof("abba", "--from=old", "--dry-run")
    assert (2, True) == (gone.code, f"is commit {commits[0][:12]} of" in gone.err and "Add --repo DIR" in gone.err)
    found = fuseproof("abba", "--from=old", f"--repo={tmp_path / 'moved'}", "--dry-run")
    assert (0, True) == (found.code, all(f"{commit} = {commit}" in found.out for commit in commits)), found.err


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        pytest.param(["longcat-image"], 2, "PLAN was given beside it", id="plan"),
        pytest.param(["--candidate=--seed=1"], 2, "--candidate was given beside it", id="candidate"),
        pytest.param(["--order=ABBA"], 2, "--order was given beside it", id="order"),
        pytest.param(["--contract=exact"], 2, "--contract was given beside it", id="contract"),
        pytest.param(["--aa"], 2, "--aa was given beside it", id="aa"),
        pytest.param(["--resume=old"], 2, "--resume was given beside it", id="resume"),
        pytest.param(["--repo=."], 2, "the plan of old has none", id="repo-without-refs"),
        pytest.param(["--output=old"], 2, "already holds files", id="into-the-old-one"),
        pytest.param(["--from=nowhere"], 1, "nowhere is no campaign folder", id="no-campaign"),
    ],
)
def test_what_would_make_another_plan_is_refused(
    fuseproof: Program, arguments: list[str], code: int, named: str
) -> None:
    stored(Path("old"), "--prompt x")
    before = Path("old/campaign.json").read_bytes()
    result = fuseproof("abba", "--from=old", *arguments)
    assert (code, True) == (result.code, named in result.err), result.err
    assert (["old"], before) == ([path.name for path in Path().iterdir()], Path("old/campaign.json").read_bytes())


def test_an_imported_campaign_has_no_plan_that_could_run(fuseproof: Program) -> None:
    stored(Path("old"), "--prompt x")
    file = Path("old/campaign.json")
    values = json.loads(file.read_text())
    origin = {"imported_by": "x", "created_from": "x", "labels": None, "baseline": {}, "candidate": {}}
    file.write_text(json.dumps(values | {"origin": origin}))
    result = fuseproof("abba", "--from=old")
    assert (2, True) == (result.code, "was imported from files of other programs" in result.err)


def test_a_damaged_source_is_named(fuseproof: Program) -> None:
    stored(Path("old"), "--prompt x")
    file = Path("old/campaign.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"from": {"campaign": 3}}))
    result = fuseproof("report", "old")
    assert (1, True) == (result.code, "old/campaign.json: key from." in result.err)


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = folder / "campaign.json"
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        pytest.param({"visible_gpu_uuids": 3}, "environment.visible_gpu_uuids is 3", id="number"),
        pytest.param({"visible_gpu_uuids": [["a"]]}, "environment.visible_gpu_uuids is [['a']]", id="nested"),
        pytest.param({"gpus": [{"uuid": ["a"]}]}, "environment.gpus is", id="uuid"),
        pytest.param({"gpus": 7}, "environment.gpus is 7", id="gpus"),
    ],
)
@pytest.mark.parametrize("more", [["--dry-run"], ["--output=new", "--allow-busy"]])
def test_an_odd_environment_is_one_sentence(
    fuseproof: Program, environment: dict[str, Any], said: str, more: list[str]
) -> None:
    stored(Path("old"), "--prompt x")
    edited(Path("old"), lambda values: values["environment"].update(environment))
    result = fuseproof("abba", "--from=old", *more)
    assert (1, True, ["old"]) == (result.code, said in result.err, [path.name for path in Path().iterdir()])


@pytest.mark.parametrize("value", ["~nouserx/work", 5])
def test_an_odd_working_directory_is_one_sentence(fuseproof: Program, value: object) -> None:
    stored(Path("old"), "--prompt x")
    edited(Path("old"), lambda values: values.update(working_directory=value))
    result = fuseproof("abba", "--from=old", "--dry-run")
    assert (1, True) == (result.code, "old/campaign.json: " in result.err), result.err


def measured(fuseproof: Program, folder: str) -> None:
    """A complete campaign of one block, as the program signs it."""
    command = {f"--{role}-command": fake_command(worker_ms=worker_ms) for role, worker_ms in TIMES}
    words = [word for flag, value in command.items() for word in (flag, value)]
    result = fuseproof("abba", *words, f"--output={folder}", "--blocks=1", "--allow-busy")
    assert 0 == result.code, result.err


TIMES = (("baseline", 1000), ("candidate", 900))


def test_a_plan_that_was_edited_is_not_measured_as_the_stored_one(fuseproof: Program) -> None:
    measured(fuseproof, "old")
    again = ("abba", "--from=old", "--dry-run", "--json")
    assert not [text for text in json.loads(fuseproof(*again).out)["remarks"] if "SHA256SUMS" in text]

    def slow_down(values: dict[str, Any]) -> None:
        arm = values["plan"]["arms"]["candidate"]
        arm["command"] = arm["command"].replace("900", "901")

    edited(Path("old"), slow_down)
    unsigned = fuseproof(*again)
    assert (1, True) == (unsigned.code, "it is not the file that SHA256SUMS lists" in unsigned.err), unsigned.err
    assert 0 == fuseproof("report", "old").code
    signed = fuseproof(*again)
    assert (1, True) == (signed.code, "by the plan in campaign.json" in signed.err), signed.err


def test_an_unsigned_plan_and_another_folder_are_remarked_upon(fuseproof: Program) -> None:
    arms = {role: {"name": role, "command": fake_command(worker_ms=worker_ms)} for role, worker_ms in TIMES}
    stored(Path("old"), "", arms)
    edited(Path("old"), lambda values: values.update(working_directory="/somewhere/else"))
    told = json.loads(fuseproof("abba", "--from=old", "--dry-run", "--json").out)["remarks"]
    assert any("ran in /somewhere/else, and a relative path in the commands" in text for text in told)
    assert any("is in no SHA256SUMS as it is" in text for text in told)
