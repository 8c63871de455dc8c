"""What a campaign asks git: which commit a ref is, what a checkout holds, and a tree of a commit.

Every call leaves the user's tree and index alone (no optional locks, no hooks, no prompt), and variables such as
``GIT_DIR``, which a hook sets for the repository it runs in, do not decide which repository is read.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import posixpath
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.machine.redaction import redact

QUERY_LIMIT_S = 60.0
CHECKOUT_LIMIT_S = 1800.0
MOST_SUGGESTIONS = 5
LINK_MODE = "120000"
HONEST = (
    *("-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", "-c", "core.ignoreStat=false"),
    *("-c", "core.trustctime=true", "-c", "core.checkStat=default", "-c", "core.fileMode=true"),
)
"""Settings under which git looks at every file itself, whatever the repository says."""
_SEEN_TAGS = ("H ", "C ", "M ", "R ", "K ", "? ")
"""``git ls-files -v`` writes a small letter for assume-unchanged, and S for skip-worktree."""
_STEERING = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_PREFIX")


@dataclass(frozen=True)
class TreeState:
    """Whether tracked files were changed (``diff_sha256`` is over ``git diff HEAD``), and what is untracked."""

    commit: str
    diff_sha256: str | None
    changed: tuple[str, ...]
    untracked: tuple[str, ...]

    @property
    def is_dirty(self) -> bool:
        return bool(self.changed or self.untracked)


@dataclass(frozen=True)
class GitRepository:
    """A repository with a working tree; ``top`` is the tree's top folder. Made by :func:`open_repository`."""

    top: Path

    def resolve(self, ref: str) -> str:
        """The full hash of the commit that ``ref`` names; :class:`UsageError` with the closest refs if there is none.

        A ref that begins with a dash is refused: git would read it as an option.
        """
        if ref.startswith("-"):
            raise UsageError(
                f"{ref!r} looks like an option, not like a git ref.", next_step="Name a branch, tag or SHA."
            )
        found = git_result(self.top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if found.returncode == 0 and found.stdout.strip():
            return found.stdout.strip()
        raise self._unknown_ref(ref)

    def _unknown_ref(self, ref: str) -> UsageError:
        named = ["HEAD", *git(self.top, "for-each-ref", "--format=%(refname:short)").splitlines()]
        closest = difflib.get_close_matches(ref, named, n=MOST_SUGGESTIONS, cutoff=0.5) or named[:MOST_SUGGESTIONS]
        known = f"the closest are {', '.join(closest)}" if closest else "the repository has no branch and no tag"
        is_shallow = git(self.top, "rev-parse", "--is-shallow-repository").strip() == "true"
        depth = ", and it is a shallow clone" if is_shallow else ""
        return UsageError(
            f"{redact(str(self.top))} has no commit {ref!r}; {known}{depth}.",
            next_step="Fetch the rest of it with `git fetch --unshallow`, or the ref with `git fetch origin <ref>`."
            if is_shallow
            else "Check the spelling, or fetch the ref first (`git fetch origin <ref>`).",
        )

    def common_directory(self) -> Path:
        """The ``.git`` that all worktrees of the repository share."""
        return (self.top / git(self.top, "rev-parse", "--git-common-dir").strip()).resolve()

    def remote_url(self) -> str | None:
        """Where the repository was cloned from, without credentials: ``origin``, else its first remote."""
        names = git(self.top, "remote").split()
        if not names:
            return None
        name = "origin" if "origin" in names else names[0]
        return redact(git(self.top, "remote", "get-url", name).strip())

    def state(self) -> TreeState:
        """HEAD and the local changes of the tree; byte code is not counted as one."""
        commit = git(self.top, "rev-parse", "HEAD").strip()
        changed = _names(git(self.top, *HONEST, "diff", "--name-only", "-z", "HEAD"))
        untracked = _names(git(self.top, "ls-files", "-z", "--others", "--exclude-standard"))
        difference = git(self.top, *HONEST, "diff", "HEAD") if changed else ""
        sources = tuple(name for name in untracked if "__pycache__" not in name.split("/"))
        diff_sha256 = hashlib.sha256(difference.encode()).hexdigest() if difference else None
        return TreeState(commit, diff_sha256, changed, sources)

    def hidden_files(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What :meth:`state` does not look at: ignored files, and tracked ones marked as never to be looked at."""
        everything = _names(git(self.top, *HONEST, "ls-files", "-z", "--others"))
        ignored = {*everything} - {*_names(git(self.top, "ls-files", "-z", "--others", "--exclude-standard"))}
        marked = (entry for entry in _names(git(self.top, "ls-files", "-z", "-v")) if not entry.startswith(_SEEN_TAGS))
        return tuple(sorted(ignored)), tuple(entry[2:] for entry in marked)

    def add_worktree(self, tree: Path, commit: str) -> None:
        """Check ``commit`` out into the new folder ``tree``; :class:`FuseproofError` quotes git where that fails."""
        words = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--force", "--quiet", "--detach")
        made = git_result(self.top, *words, str(tree), commit, limit_s=CHECKOUT_LIMIT_S)
        if made.returncode != 0:
            raise FuseproofError(
                f"The worktree {redact(str(tree))} of {commit[:12]} cannot be made: {_last_line(made.stderr)}.",
                next_step="Mend that, or point FUSEPROOF_CACHE_DIR at another folder.",
            )

    def remove_worktree(self, tree: Path) -> None:
        """Remove the folder ``tree`` and, if it is there, the repository's note of it; other worktrees stay."""
        git_result(self.top, "worktree", "remove", "--force", "--force", str(tree))
        shutil.rmtree(tree, ignore_errors=True)

    def submodules(self, commit: str) -> tuple[str, ...]:
        """The folders of a commit that are submodules: a worktree leaves them empty."""
        entries = git(self.top, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
        return tuple(entry.partition("\t")[2] for entry in entries if entry.startswith("160000 "))

    def files(self, commit: str, folder: str = "") -> dict[str, str]:
        """The tracked files of ``commit`` below ``folder`` (``""``: all), name to blob hash.

        Linked folders are followed once, because a package may be a folder of links.
        """
        found = self._listing(commit, folder)
        files = {name: blob for name, (_, blob) in found.items()}
        for name, (mode, blob) in found.items():
            if mode == LINK_MODE:
                target = git(self.top, "cat-file", "blob", blob)
                linked = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
                if linked not in (".", "") and not linked.startswith(("..", "/")):
                    files |= {other: blob for other, (_, blob) in self._listing(commit, linked).items()}
        return files

    def _listing(self, commit: str, folder: str) -> dict[str, tuple[str, str]]:
        words = ("--literal-pathspecs", "ls-tree", "-r", "-z", "--full-tree", commit)
        found = {}
        for entry in git(self.top, *words, *(("--", folder) if folder else ())).split("\0"):
            facts, _, name = entry.partition("\t")
            if name:
                mode, _, blob = facts.split()
                found[name] = (mode, blob)
        return found


def open_repository(folder: Path) -> GitRepository:
    """The repository whose working tree holds ``folder``.

    Raises :class:`UsageError` where git is missing, the folder is in no repository, or the repository is bare.
    """
    shown = redact(str(folder))
    if shutil.which("git") is None:
        raise UsageError("Git refs need the program git, which is not installed.", next_step="Install git.")
    if not folder.is_dir():
        raise UsageError(f"The repository {shown} is no folder.", next_step="Give the path of a git checkout.")
    found = git_result(folder, "rev-parse", "--is-bare-repository", "--show-toplevel")
    lines = found.stdout.splitlines()
    if lines[:1] == ["true"]:
        raise UsageError(f"{shown} is a bare repository.", next_step="Give a checkout of it: git clone.")
    if found.returncode != 0 or len(lines) < 2:
        raise UsageError(
            f"{shown} is in no git repository that can be read: {_last_line(found.stderr)}.",
            next_step="Run it in the checkout, or name one with --repo (in a plan: repo).",
        )
    return GitRepository(Path(lines[1]))


def git(folder: Path, *arguments: str) -> str:
    """The output of a git query; :class:`FuseproofError` quotes git where it fails."""
    result = git_result(folder, *arguments)
    if result.returncode != 0:
        raise FuseproofError(f"git {arguments[0]} failed in {redact(str(folder))}: {_last_line(result.stderr)}.")
    return result.stdout


def git_result(folder: Path, *arguments: str, limit_s: float = QUERY_LIMIT_S) -> subprocess.CompletedProcess[str]:
    """Run git in ``folder`` and return how it ended; a time-out is a :class:`FuseproofError`."""
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=limit_s,
            env=git_environment(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FuseproofError(
            f"git could not be run in {redact(str(folder))}: {error}.", next_step="Check that `git status` works there."
        ) from error


def git_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """``variables`` without those that name another repository, in English, and never asking for a password."""
    kept = {name: value for name, value in variables.items() if name not in _STEERING}
    return kept | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8"}


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split("\0") if name)


def _last_line(text: str) -> str:
    lines = [line.strip().removesuffix(".") for line in text.splitlines() if line.strip()]
    return redact(lines[-1]) if lines else "git gives no reason"
