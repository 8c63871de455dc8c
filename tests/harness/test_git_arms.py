"""Arms of git refs: the commit, its clean tree, its setup, what it imports, and what is recorded of all that."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.analysis.campaign import analyse
from fuseproof.harness.campaign.arm_caches import cache_variables, cold_caches
from fuseproof.harness.campaign.arm_places import ArmPlace, interpreter, place_environment
from fuseproof.harness.campaign.arm_sessions import refuse_wrong_checkout
from fuseproof.harness.campaign.evidence import EvidenceError
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.git_arms import prepare_arms, resolve_arms, unmeasured_changes
from fuseproof.harness.campaign.heads import compare_head
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.campaign.runner import Outcome
from fuseproof.harness.campaign.session import CampaignSession
from fuseproof.harness.campaign.slots import ProcessExecutor
from fuseproof.harness.perf.dump import read_perf_dump
from fuseproof.schedules.order import PlannedSlot, timed_slots
from fuseproof.schedules.plan import Arm, Plan, plan_from
from tests.harness.small_repositories import (
    COMMAND,
    commit_grey,
    make_repository,
    own_folders,  # noqa: F401 - a fixture
    run_git,
)
from tests.harness.test_runner import Notes, ScriptedExecutor


@dataclass
class SwitchingExecutor(ProcessExecutor):
    """Before block 2, somebody checks another commit out and presses Ctrl-C."""

    repo: Path = Path()
    commit: str = ""

    def execute(self, campaign: Campaign, slot: PlannedSlot, interrupts: Interrupts) -> SlotRecord:
        if slot.block == 2:
            run_git(self.repo, "checkout", "--quiet", self.commit)
            interrupts.count += 1
        return super().execute(campaign, slot, interrupts)


def plan_of(repo: Path, baseline: str = "main~1", candidate: str = "main", aa: bool = False, **keys: Any) -> Plan:
    """One block, no warm-up; both arms run the fake arm of their ref unless ``keys`` say otherwise."""
    shared = {"repo": str(repo), "command": COMMAND} | keys
    arms = {"baseline": {"name": "old", "ref": baseline}, "candidate": {"name": "new", "ref": candidate}}
    values = {"name": "refs", "cells": [{"name": "cell"}], "blocks": 1, "warmup_slots": 0, "aa": aa}
    return plan_from(values | {"arms": {role: arm | shared for role, arm in arms.items()}}, "test")


def start(plan: Plan, directory: Path, executor: Any = None) -> tuple[Outcome, Notes]:
    notes = Notes()
    options = {} if executor is None else {"executor": executor}
    return CampaignSession(command=["fuseproof"], environment={}, observer=notes, **options).start(
        plan, directory
    ), notes


def prepared(plan: Plan, tmp_path: Path) -> Any:
    return prepare_arms(plan, resolve_arms(plan, tmp_path), tmp_path / "space", tmp_path)


def test_each_arm_runs_its_own_commit_and_the_checkout_is_left_alone(tmp_path: Path) -> None:
    repo = tmp_path / "my répo"
    old, new = make_repository(repo)
    run_git(repo, "remote", "add", "origin", "https://anna:s3cret-word@example.com/x.git")
    (repo / "fuseproof" / "__init__.py").write_text("GREY = 99\n")
    (repo / "staged.txt").write_text("staged")
    run_git(repo, "add", "staged.txt")
    before = run_git(repo, "status", "--porcelain")
    outcome, _ = start(plan_of(repo, command=None, imports=None), tmp_path / "c")
    assert ("complete", before) == (outcome.status, run_git(repo, "status", "--porcelain"))
    campaign = Campaign.open(tmp_path / "c")
    slots = campaign.slots()
    pixels = {arm: {slot.outputs[0].pixels_sha256 for slot in slots if slot.arm == arm} for arm in "AB"}
    assert (1, 1, False) == (len(pixels["A"]), len(pixels["B"]), pixels["A"] == pixels["B"])
    expected = {"remote": "https://[redacted]@example.com/x.git", "is_dirty": False, "diff_sha256": None}
    assert expected | {"ref": "main~1", "commit": old} == slots[0].lineage
    assert expected | {"ref": "main", "commit": new} == slots[1].lineage
    assert ("fuseproof", "fuseproof/__init__.py") == (campaign.lineage["B"].module, campaign.lineage["B"].module_file)
    trees = sorted(path.name for path in (tmp_path / "cache" / "worktrees").glob("*/*") if path.is_dir())
    assert sorted([old[:16], new[:16]]) == trees


def test_caches_are_apart_recorded_and_gone_when_all_is_done(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    start(plan_of(tmp_path / "repo"), tmp_path / "c")
    first, second = Campaign.open(tmp_path / "c").slots()[:2]
    assert first.caches is not None and second.caches is not None
    assert {"TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FUSEPROOF_CACHE_DIR", "XDG_CACHE_HOME"} == set(first.caches)
    assert (0, 0) == tuple(first.caches["TRITON_CACHE_DIR"][key] for key in ("files_before", "files_after"))
    folders = {slot.caches["TRITON_CACHE_DIR"]["folder"] for slot in (first, second) if slot.caches}
    assert 2 == len(folders)
    assert [] == list((tmp_path / "cache" / "arm-caches").glob("*"))


def test_downloads_stay_where_they_are() -> None:
    found = cache_variables(Path("/space/A"), {"XDG_CACHE_HOME": "/my", "TORCH_HOME": "/torch"})
    assert ("/my/huggingface", "/torch", "/space/A/xdg") == (
        found["HF_HOME"],
        found["TORCH_HOME"],
        found["XDG_CACHE_HOME"],
    )


@pytest.mark.parametrize(
    ("before", "arms"),
    [
        pytest.param({"A": 0, "B": 3}, ["A"], id="cold-in-one"),
        pytest.param({"A": 0, "B": 0}, [], id="cold-in-both"),
        pytest.param({"A": 3, "B": 3}, [], id="warm"),
    ],
)
def test_a_cache_that_was_cold_in_one_arm_only_is_a_warning(before: dict[str, int], arms: list[str]) -> None:
    records = []
    for slot in timed_slots("cell", 1, 1, "ABBA"):
        caches = {"TRITON_CACHE_DIR": {"files_before": before[slot.arm], "files_after": 3}}
        records.append(SlotRecord.planned(slot, state="done", caches=caches))
    assert arms == [warning.arm for warning in cold_caches("cell", records)]


def test_two_names_of_one_commit_are_refused_and_welcome_as_aa(tmp_path: Path) -> None:
    _, new = make_repository(tmp_path / "repo")
    with pytest.raises(UsageError, match=f"main and HEAD are the same commit, {new[:12]}"):
        resolve_arms(plan_of(tmp_path / "repo", "main", "HEAD"), tmp_path)
    assert {"A", "B"} == set(resolve_arms(plan_of(tmp_path / "repo", "main", "HEAD", aa=True), tmp_path))


def test_a_module_from_outside_the_tree_is_refused_with_both_paths(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    with pytest.raises(UsageError, match=r"import json from .*json/__init__.py, not from its tree .*worktrees"):
        prepared(plan_of(tmp_path / "repo", imports="json"), tmp_path)
    with pytest.raises(FuseproofError, match="cannot import no_such_module: ModuleNotFoundError"):
        prepared(plan_of(tmp_path / "repo", imports="no_such_module"), tmp_path)


def test_an_installed_copy_does_not_win_over_the_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test's own Python has fuseproof installed editable, and a PYTHONPATH may name a checkout."""
    make_repository(tmp_path / "repo")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    found = prepared(plan_of(tmp_path / "repo", command=None), tmp_path)
    assert "fuseproof/__init__.py" == found.lineage["A"].module_file
    path = place_environment(Arm(name="a"), found.places["A"], sys.executable, os.environ)["PYTHONPATH"]
    assert str(found.places["A"].tree) == path.split(os.pathsep)[0]


def test_plain_arms_that_import_the_same_file_are_refused(tmp_path: Path) -> None:
    shared = {"command": "echo {perf_dump}", "imports": "json"}
    arms = {"baseline": {"name": "a", "env": {"X": "1"}} | shared, "candidate": {"name": "b"} | shared}
    values = {"name": "same", "cells": [{"name": "cell"}], "arms": arms}
    with pytest.raises(
        UsageError, match=r"Both arms import .*json/__init__.py: baseline and candidate are the same code"
    ):
        prepared(plan_from(values, "test"), tmp_path)
    prepared(
        plan_from(values | {"aa": True, "arms": arms | {"candidate": arms["baseline"] | {"name": "b"}}}, "test"),
        tmp_path,
    )


def test_a_dump_of_another_commit_costs_the_slot(tmp_path: Path) -> None:
    dump = tmp_path / "perf.json"
    make_repository(tmp_path / "repo")
    start(plan_of(tmp_path / "repo"), tmp_path / "c")
    text = (tmp_path / "c" / "slots" / "cell" / "01-1-A" / "perf.json").read_text()
    dump.write_text(text.replace("{", '{"environment": {"fuseproof": {"commit": "' + "a" * 40 + '"}}, ', 1))
    with pytest.raises(EvidenceError, match="its dump is of commit aaaaaaaaaaaa, but the arm's ref is bbbbbbbbbbbb"):
        refuse_wrong_checkout(read_perf_dump(dump), ArmPlace(commit="b" * 40))


def test_a_setup_runs_once_and_its_log_is_kept(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    plan = plan_of(tmp_path / "repo", setup="echo built >> built.txt; echo 'all is well'")
    start(plan, tmp_path / "c")
    start(plan, tmp_path / "d")
    campaign = Campaign.open(tmp_path / "d")
    setup = campaign.lineage["B"].setup
    assert setup is not None and (0, "setup/B.log") == (setup.exit_code, setup.log)
    assert "all is well\n" == (tmp_path / "d" / "setup" / "B.log").read_text()
    built = list((tmp_path / "cache" / "worktrees").glob("*/*/built.txt"))
    assert ["built\n", "built\n"] == [file.read_text() for file in built]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        pytest.param({"setup": "echo one; echo no compiler; exit 3"}, "status 3: one / no compiler", id="fails"),
        pytest.param(
            {"setup": "sleep 60", "setup_timeout_s": 0.2}, "took more than 0.2 s: it printed nothing", id="slow"
        ),
        pytest.param({"setup": "echo x >> fuseproof/__init__.py"}, "changed 1 tracked files", id="changes-the-tree"),
    ],
)
def test_a_setup_that_fails_is_one_sentence_before_slot_1(tmp_path: Path, keys: dict[str, Any], told: str) -> None:
    make_repository(tmp_path / "repo")
    with pytest.raises(FuseproofError, match=told) as caught:
        start(plan_of(tmp_path / "repo", **keys), tmp_path / "c")
    assert (1, False) == (caught.value.exit_code, (tmp_path / "c").exists())


def test_submodules_are_named_and_remarked_upon(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    _, new = make_repository(repo)
    run_git(repo, "update-index", "--add", "--cacheinfo", f"160000,{new},third_party/lib")
    run_git(repo, "commit", "--quiet", "--message", "submodule")
    found = prepared(plan_of(repo), tmp_path)
    assert ((), ("third_party/lib",)) == (found.lineage["A"].submodules, found.lineage["B"].submodules)
    assert "the tree of main leaves 1 submodules empty (third_party/lib)" in found.remarks[0]


def test_changes_that_are_not_committed_are_remarked_upon_where_head_is_measured(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    make_repository(repo)
    plan = plan_of(repo)
    assert [] == unmeasured_changes(plan, resolve_arms(plan, tmp_path))
    (repo / "fuseproof" / "__init__.py").write_text("GREY = 99\n")
    (repo / "untracked.txt").write_text("a campaign of its own")
    (told,) = unmeasured_changes(plan, resolve_arms(plan, tmp_path))
    assert told.startswith("arm 'new' (main) is commit ") and "not committed (fuseproof/__init__.py)" in told


def test_a_resumed_campaign_keeps_its_commits_when_the_branch_moves(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    _, new = make_repository(repo)
    executor = ScriptedExecutor({"cell/01-2-B": "INTERRUPTED"})
    start(plan_of(repo), tmp_path / "c", executor)
    later = commit_grey(repo, 30)
    notes = Notes()
    outcome = CampaignSession(command=["fuseproof"], environment={}, observer=notes).resume(tmp_path / "c", None)
    assert "complete" == outcome.status
    assert f"main is now {later[:12]}; this campaign goes on with {new[:12]}, where it began" in notes.remarks
    candidates = [slot for slot in Campaign.open(tmp_path / "c").slots() if slot.arm == "B" and slot.state == "done"]
    assert [new, new] == [slot.lineage["commit"] for slot in candidates if slot.lineage]


def test_blocks_of_two_commits_are_not_pooled_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain arm runs whatever the checkout holds, so its commit may move between two sessions."""
    repo = tmp_path / "repo"
    old, new = make_repository(repo)
    monkeypatch.chdir(repo)
    shared = {"command": f"{sys.executable} {COMMAND.removeprefix('{python} ')}"}
    arms = {"baseline": {"name": "a"} | shared, "candidate": {"name": "b", "env": {"X": "1"}} | shared}
    values = {"name": "plain", "cells": [{"name": "cell"}], "arms": arms, "blocks": 2, "warmup_slots": 0}
    start(plan_from(values, "test"), tmp_path / "c", SwitchingExecutor(repo=repo, commit=old))
    CampaignSession(command=["fuseproof"], environment={}).resume(tmp_path / "c", None)
    warnings = analyse(Campaign.open(tmp_path / "c")).cells[0].warnings
    assert any(f"different commits: {new[:12]}, {old[:12]}" in warning.detail for warning in warnings)


def test_a_plain_arm_records_its_checkout_and_what_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = tmp_path / "repo"
    _, new = make_repository(repo)
    (repo / "kernels" / "norm.py").write_text("# tried something\n")
    monkeypatch.chdir(repo)
    shared = {"command": f"{sys.executable} {COMMAND.removeprefix('{python} ')}"}
    arms = {"baseline": {"name": "a"} | shared, "candidate": {"name": "b", "env": {"X": "1"}} | shared}
    start(plan_from({"name": "plain", "cells": [{"name": "cell"}], "arms": arms, "blocks": 1}, "test"), tmp_path / "c")
    campaign = Campaign.open(tmp_path / "c")
    shown = dict(analyse(campaign).cells[0].equal_work.commits)
    assert 1 == len(shown["B"]) and shown["B"][0].startswith(f"{new}+dirty (diff ")
    known = campaign.slots()[-1].lineage
    assert known is not None and (new, True, 64) == (known["commit"], known["is_dirty"], len(known["diff_sha256"]))


def test_an_earlier_head_is_named_and_linked_folders_count(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    make_repository(repo)
    start(plan_of(repo, command=None), tmp_path / "c")
    campaign = Campaign.open(tmp_path / "c")
    same = compare_head(campaign, "main", None, tmp_path)
    assert (True, "fuseproof") == (same.is_equal, same.folder)
    (repo / "README").write_text("not on the path")
    run_git(repo, "add", "--all")
    run_git(repo, "commit", "--quiet", "--message", "docs")
    assert "equal the measured ones; measured at" in compare_head(campaign, "main", None, tmp_path).sentence()
    commit_grey(repo, 40)
    later = compare_head(campaign, "main", None, tmp_path)
    assert ("fuseproof/__init__.py", "kernels/norm.py") == later.differing
    assert "2 files below fuseproof differ: fuseproof/__init__.py, kernels/norm.py" in later.sentence()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(".venv/bin/python", "/tree/.venv/bin/python", id="in-the-tree"),
        pytest.param("{tree}/bin/python", "/tree/bin/python", id="placeholder"),
        pytest.param("/opt/python", "/opt/python", id="absolute"),
        pytest.param("no-such-python", "no-such-python", id="by-name"),
    ],
)
def test_where_an_interpreter_is(text: str, expected: str) -> None:
    assert expected == interpreter(Arm(name="a", ref="main", python=text), Path("/tree"), Path("/here"))


def test_an_interpreter_is_first_on_the_path_and_must_exist(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    found = prepared(plan_of(tmp_path / "repo", python=sys.executable, env={"OWN": "{tree}/x"}), tmp_path)
    arm = plan_of(tmp_path / "repo", env={"OWN": "{tree}/x"}).arms.baseline
    variables = place_environment(arm, found.places["A"], sys.executable, {"PATH": "/bin"})
    assert f"{Path(sys.executable).parent}:/bin" == variables["PATH"]
    assert f"{found.places['A'].tree}/x" == variables["OWN"]
    with pytest.raises(UsageError, match=r"python of arm 'old' is .*bin/missing, which is no program"):
        prepared(plan_of(tmp_path / "repo", python="bin/missing"), tmp_path)


@pytest.mark.parametrize(
    ("arm", "told"),
    [
        pytest.param({"ref": "-x"}, "does not begin with a dash", id="dash"),
        pytest.param({"ref": " "}, "a git ref is a branch", id="empty"),
        pytest.param({"repo": "."}, "repo needs a ref", id="repo-alone"),
        pytest.param({"setup": "make"}, "setup needs a ref", id="setup-alone"),
        pytest.param({"imports": "a b"}, "named as in an import statement", id="module"),
    ],
)
def test_keys_that_make_no_sense_are_refused(arm: dict[str, str], told: str) -> None:
    arms = {"baseline": {"name": "a"}, "candidate": {"name": "b"} | arm}
    with pytest.raises(UsageError, match=told):
        plan_from({"name": "x", "cells": [{"name": "cell"}], "arms": arms}, "test")
