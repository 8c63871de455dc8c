"""Clean trees of commits in the user's cache, each set up once, shared by every campaign that measures the commit.

``<cache>/worktrees/<repository>-<key>/<commit>[-<setup>]`` is a detached git worktree; the note beside it
(``.json``) is written last, so a tree without a note is half-made and is made again. A file lock lets one process at
a time make a tree. A finished tree that was changed by hand is neither used nor removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import write_text_atomically
from fuseproof.harness.campaign.arm_caches import cache_root
from fuseproof.harness.campaign.arm_lineage import SetupRecord
from fuseproof.harness.campaign.git_repository import GitRepository, git_environment
from fuseproof.harness.campaign.interrupts import Interrupts
from fuseproof.harness.campaign.processes import start_process
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.files import file_sha256

NOTE_SCHEMA = "fuseproof.worktree/1"
CODE_SUFFIXES = frozenset({".py", ".pyi", ".pth", ".so", ".cu", ".cuh", ".c", ".cc", ".cpp", ".h", ".hpp", ".toml"})
"""New files of these kinds spoil a tree; a program that runs in it may leave logs and results there."""
LOG_LINES = 5
LOG_TAIL_BYTES = 20_000


@dataclass(frozen=True)
class Setup:
    """What prepares a tree: a line for ``sh``, run in the tree once, and its limit in seconds."""

    command: str
    limit_s: float
    variables: Mapping[str, str]


@dataclass(frozen=True)
class Worktree:
    """The place of a tree and of what lies beside it; made by :func:`worktree_of`, on disk after :func:`make`."""

    repository: GitRepository
    commit: str
    tree: Path

    @property
    def note(self) -> Path:
        return self.tree.with_name(f"{self.tree.name}.json")

    @property
    def log(self) -> Path:
        return self.tree.with_name(f"{self.tree.name}.setup.log")


def worktree_of(repository: GitRepository, commit: str, setup_key: str | None) -> Worktree:
    """Where the tree of ``commit`` belongs; trees with different setups (``setup_key``) are kept apart.

    Raises :class:`UsageError` when the cache folder lies inside the checkout.
    """
    root = cache_root() / "worktrees"
    if root.resolve().is_relative_to(repository.top.resolve()):
        raise UsageError(
            f"The cache folder {redact(str(root.parent))} lies inside the checkout {redact(str(repository.top))}, "
            "where no worktree of it may be.",
            next_step="Point FUSEPROOF_CACHE_DIR at a folder outside of it.",
        )
    common = repository.common_directory()
    name = re.sub(r"[^A-Za-z0-9._-]", "_", (common.parent if common.name == ".git" else common).name)
    folder = root / f"{name}-{_key(os.fsencode(common))}"
    suffix = "" if setup_key is None else f"-{_key(setup_key.encode())}"
    return Worktree(repository, commit, folder / f"{commit[:16]}{suffix}")


def make(worktree: Worktree, setup: Setup | None) -> SetupRecord | None:
    """Make the tree and run its setup, unless both are there already; what the setup did.

    Raises :class:`FuseproofError` when the cache cannot be written, git or the setup fails, or the tree was changed.
    """
    try:
        worktree.tree.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(worktree.tree.with_name(f"{worktree.tree.name}.lock")):
            return _made(worktree, setup)
    except OSError as error:
        raise FuseproofError(
            f"The cache folder {redact(str(worktree.tree.parent))} cannot be used: {error.strerror or error}.",
            next_step="Free some space, or point FUSEPROOF_CACHE_DIR at a folder that you can write.",
        ) from error


def _made(worktree: Worktree, setup: Setup | None) -> SetupRecord | None:
    note = _read_note(worktree)
    if note is not None and (worktree.tree / ".git").exists():
        _refuse_changed(worktree, note)
        return None if note["setup"] is None else SetupRecord(**note["setup"])
    worktree.note.unlink(missing_ok=True)
    worktree.repository.remove_worktree(worktree.tree)
    worktree.repository.add_worktree(worktree.tree, worktree.commit)
    record = None if setup is None else _set_up(worktree, setup)
    state = GitRepository(worktree.tree).state()
    if state.changed:
        raise FuseproofError(
            f"The setup changed {len(state.changed)} tracked files of the tree, {state.changed[0]} first, so it is "
            f"no longer commit {worktree.commit[:12]}.",
            next_step="Let the setup write new files only, or files that git ignores.",
        )
    facts = {
        "schema": NOTE_SCHEMA,
        "commit": worktree.commit,
        "setup": None if record is None else record.__dict__,
        "untracked": list(state.untracked),
        "ignored": _ignored_code(worktree.tree),
    }
    write_text_atomically(worktree.note, json.dumps(facts, indent=2) + "\n")
    return record


def _read_note(worktree: Worktree) -> dict[str, Any] | None:
    try:
        note = json.loads(worktree.note.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    is_ours = isinstance(note, dict) and note.get("schema") == NOTE_SCHEMA and note.get("commit") == worktree.commit
    return note if is_ours else None


def _refuse_changed(worktree: Worktree, note: Mapping[str, Any]) -> None:
    what = _change(worktree.tree, worktree.commit, note)
    if what is None:
        return
    tree = redact(str(worktree.tree))
    raise FuseproofError(
        f"The worktree {tree} is no longer a clean {worktree.commit[:12]}: {what}.",
        next_step=f"Save what you need of it, then: git worktree remove --force {tree}",
    )


def changed_since_setup(tree: Path, commit: str) -> str | None:
    """Why a finished tree is no longer the clean ``commit`` that its setup left, in words; None while it is."""
    worktree = Worktree(GitRepository(tree), commit, tree)
    note = _read_note(worktree)
    if note is None:
        return "the note of its setup is gone"
    return _change(tree, commit, note)


def _change(tree: Path, commit: str, note: Mapping[str, Any]) -> str | None:
    """Tracked files, new code, and code that git ignores; byte code and other products of a run may come and go."""
    state = GitRepository(tree).state()
    _, marked = GitRepository(tree).hidden_files()
    added = {name for name in state.untracked if _is_code(name)} - {*note["untracked"]}
    before, now = note.get("ignored"), _ignored_code(tree)
    ignored = [] if before is None else sorted({name for name, stamp in now.items() if before.get(name) != stamp})
    changed = [*state.changed, *marked, *sorted(added), *ignored]
    if changed:
        return f"{changed[0]} changed"
    return None if state.commit == commit else f"it is at {state.commit[:12]}"


def _ignored_code(tree: Path) -> dict[str, list[int]]:
    """Code that git ignores, as a build leaves it: name → size in bytes and time of its last change in ns."""
    ignored, _ = GitRepository(tree).hidden_files()
    stamps = {name: (tree / name).lstat() for name in ignored if _is_code(name)}
    return {name: [stamp.st_size, stamp.st_mtime_ns] for name, stamp in stamps.items()}


def _is_code(name: str) -> bool:
    return Path(name).suffix in CODE_SUFFIXES


def _set_up(worktree: Worktree, setup: Setup) -> SetupRecord:
    """Run the setup; an error names its last lines. What it prints goes to the log beside the tree."""
    script = f"exec 2>&1\n{setup.command}"
    environment = {**git_environment(os.environ), **setup.variables}
    began_s = time.monotonic()
    child = start_process(("/bin/sh", "-c", script), environment, worktree.tree, worktree.log, Path(os.devnull))
    try:
        end = child.wait(setup.limit_s, Interrupts())
    except BaseException:
        child.kill()
        raise
    seconds = round(time.monotonic() - began_s, 3)
    if end.ending == "timeout" or end.returncode != 0:
        how = (
            f"took more than {setup.limit_s:g} s" if end.ending == "timeout" else f"ended with status {end.returncode}"
        )
        raise FuseproofError(
            f"The setup `{redact(setup.command)}` {how}: {_last_lines(worktree.log)}.",
            next_step=f"Its whole log is {redact(str(worktree.log))}; the tree is made anew the next time.",
        )
    return SetupRecord(redact(setup.command), end.returncode, seconds, file_sha256(worktree.log))


def _last_lines(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return redact(" / ".join(lines[-LOG_LINES:])).removesuffix(".") or "it printed nothing"


def _key(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:8]
