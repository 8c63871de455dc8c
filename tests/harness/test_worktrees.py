"""What is asked of git, and the trees it makes: clean, apart from the user's checkout, and never half-made."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.campaign import git_repository
from fuseproof.harness.campaign.arm_places import ArmPlace
from fuseproof.harness.campaign.arm_sessions import refuse_wrong_checkout
from fuseproof.harness.campaign.evidence import EvidenceError
from fuseproof.harness.campaign.git_repository import open_repository
from fuseproof.harness.campaign.worktrees import Setup, make, worktree_of
from tests.harness.small_repositories import (
    make_repository,
    own_folders,  # noqa: F401 - a fixture
    run_git,
)

NO_VARIABLES: dict[str, str] = {}
DUMP: Any = SimpleNamespace(environment={})


@pytest.mark.parametrize(
    ("ref", "told"),
    [
        pytest.param("mian", "the closest are main", id="misspelt"),
        pytest.param("--upload-pack=x", "looks like an option", id="option"),
        pytest.param("HEAD:fuseproof", "has no commit", id="no-commit"),
    ],
)
def test_an_unknown_ref_is_one_sentence(tmp_path: Path, ref: str, told: str) -> None:
    make_repository(tmp_path / "repo")
    with pytest.raises(UsageError, match=told):
        open_repository(tmp_path / "repo").resolve(ref)


def test_a_shallow_clone_says_so(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo")
    run_git(tmp_path, "clone", "--quiet", "--depth=1", (tmp_path / "repo").as_uri(), "clone")
    with pytest.raises(UsageError, match="it is a shallow clone") as caught:
        open_repository(tmp_path / "clone").resolve("main~1")
    assert "--unshallow" in (caught.value.next_step or "")


def test_what_is_no_checkout_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_git(tmp_path, "init", "--quiet", "--bare", "bare.git")
    for folder, told in (("bare.git", "is a bare repository"), ("", "in no git repository"), ("nowhere", "no folder")):
        with pytest.raises(UsageError, match=told):
            open_repository(tmp_path / folder)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="git, which is not installed"):
        open_repository(tmp_path)


def test_a_hooks_own_git_dir_does_not_choose_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, new = make_repository(tmp_path / "repo")
    make_repository(tmp_path / "other", (30,))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert new == open_repository(tmp_path / "repo").resolve("main")


def test_a_half_made_tree_is_made_again(tmp_path: Path) -> None:
    _, new = make_repository(tmp_path / "repo")
    worktree = worktree_of(open_repository(tmp_path / "repo"), new, "setup")
    with pytest.raises(FuseproofError):
        make(worktree, Setup("touch half; exit 1", 60, NO_VARIABLES))
    assert (worktree.tree / "half").exists() and not worktree.note.exists()
    make(worktree, Setup("test ! -e half", 60, NO_VARIABLES))
    assert worktree.note.exists()


def test_a_tree_that_was_changed_by_hand_is_neither_used_nor_removed(tmp_path: Path) -> None:
    _, new = make_repository(tmp_path / "repo")
    worktree = worktree_of(open_repository(tmp_path / "repo"), new, None)
    make(worktree, None)
    (worktree.tree / "run.log").write_text("written by a program that ran here")
    make(worktree, None)
    (worktree.tree / "extra.py").write_text("import this")
    with pytest.raises(FuseproofError, match=r"no longer a clean .*: extra.py changed"):
        make(worktree, None)
    assert (worktree.tree / "extra.py").exists()


def test_a_tree_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    _, new = make_repository(tmp_path / "repo")
    worktree = worktree_of(open_repository(tmp_path / "repo"), new, None)
    make(worktree, None)
    subprocess.run(["rm", "-r", str(worktree.tree)], check=True)
    make(worktree, None)
    assert (worktree.tree / "fuseproof" / "__init__.py").exists()


def test_two_at_once_make_one_tree(tmp_path: Path) -> None:
    _, new = make_repository(tmp_path / "repo")
    worktree = worktree_of(open_repository(tmp_path / "repo"), new, "setup")
    errors: list[FuseproofError] = []

    def run() -> None:
        try:
            make(worktree, Setup("echo x >> built.txt", 60, NO_VARIABLES))
        except FuseproofError as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ([], "x\n") == (errors, (worktree.tree / "built.txt").read_text())


def test_hooks_of_the_user_do_not_run(tmp_path: Path) -> None:
    _, new = make_repository(tmp_path / "repo")
    hook = tmp_path / "repo" / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{tmp_path}/hooked'\n")
    hook.chmod(0o755)
    make(worktree_of(open_repository(tmp_path / "repo"), new, None), None)
    assert not (tmp_path / "hooked").exists()


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, new = make_repository(tmp_path / "repo")
    repository = open_repository(tmp_path / "repo")
    full = subprocess.CompletedProcess(
        ["git"], 128, "", "error: x\nfatal: cannot create file: No space left on device\n"
    )
    monkeypatch.setattr(git_repository, "git_result", lambda *_, **__: full)
    with pytest.raises(FuseproofError, match=r"cannot be made: fatal: cannot create file: No space left on device\."):
        repository.add_worktree(tmp_path / "tree", new)


def test_a_cache_that_cannot_hold_trees_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, new = make_repository(tmp_path / "repo")
    repository = open_repository(tmp_path / "repo")
    monkeypatch.setenv("FUSEPROOF_CACHE_DIR", str(tmp_path / "repo" / "cache"))
    with pytest.raises(UsageError, match="lies inside the checkout"):
        worktree_of(repository, new, None)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUSEPROOF_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(FuseproofError, match=r"cache folder .*file/worktrees/repo-.* cannot be used: Not a directory"):
        make(worktree_of(repository, new, None), None)


def _marked(tree: Path) -> None:
    run_git(tree, "update-index", "--assume-unchanged", "fuseproof/__init__.py")
    (tree / "fuseproof/__init__.py").write_text("cheat = 1\n", encoding="utf-8")


def _ignored(tree: Path) -> None:
    exclude = Path(run_git(tree, "rev-parse", "--git-path", "info/exclude").strip())
    (tree / exclude).parent.mkdir(parents=True, exist_ok=True)
    (tree / exclude).write_text("*.py\n", encoding="utf-8")
    (tree / "sitecustomize.py").write_text("cheat = 1\n", encoding="utf-8")


def _edited(tree: Path) -> None:
    (tree / "fuseproof/__init__.py").write_text("cheat = 1\n", encoding="utf-8")


@pytest.mark.parametrize("change", [_edited, _marked, _ignored])
def test_an_arm_that_changes_its_own_tree_has_no_slot_more(tmp_path: Path, change: Callable[[Path], None]) -> None:
    make_repository(tmp_path / "repo")
    repository = open_repository(tmp_path / "repo")
    worktree = worktree_of(repository, repository.resolve("main"), None)
    make(worktree, None)
    place = ArmPlace(worktree.tree, worktree.commit)
    refuse_wrong_checkout(DUMP, place)
    (worktree.tree / "results.log").write_text("a run may write", encoding="utf-8")
    refuse_wrong_checkout(DUMP, place)
    change(worktree.tree)
    with pytest.raises(EvidenceError, match="its tree is no longer the clean") as caught:
        refuse_wrong_checkout(DUMP, place)
    assert "WRONG_CHECKOUT" == caught.value.code
    with pytest.raises(FuseproofError, match="is no longer a clean"):
        make(worktree, None)
