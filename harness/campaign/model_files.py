"""The files of a hub cache: where it is, what a repository's folder holds, and which of it one campaign fetched.

Hub caches hold one folder a repository (``models--owner--name``) with ``blobs``, ``refs``, ``snapshots``, ``trees``.
Nothing here writes, and nothing talks to the hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import filelock

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
CACHE = "HF_HUB_CACHE"
CACHE_VARIABLES = (CACHE, "HUGGINGFACE_HUB_CACHE", "HF_HOME")
_COMMIT = r"[0-9a-f]{40}"
_HUB_FILE = re.compile(
    rf"(?:blobs/[^/]+|refs/.+|snapshots/{_COMMIT}/.+|trees/[^/]+|\.no_exist/{_COMMIT}/.+)", re.DOTALL
)
"""What the hub's client writes below a repository's folder; everything else there is somebody's own."""


@dataclass(frozen=True)
class Usage:
    """What a folder holds; the names are those of sglang's own ledger. Links count as files, their bytes once."""

    file_count: int = 0
    weight_file_count: int = 0
    total_bytes: int = 0


@dataclass(frozen=True)
class ClaimedModel:
    """One repository of a claim. ``before`` are the files that lay there, relative to its folder.

    ``commits`` are those that the campaign resolved. ``by_slots``: a command of the user's own fetches it while the
    campaign runs, so its commit is nobody's to know.
    """

    model: str
    label: str
    revision: str | None = None
    commits: tuple[str, ...] = ()
    by_slots: bool = False
    before: tuple[str, ...] = ()

    @property
    def commit(self) -> str | None:
        """The resolved commit; several where cells ask for several."""
        return ", ".join(self.commits) or None

    @property
    def folder(self) -> str:
        return f"models--{self.model.replace('/', '--')}"


def hub_cache(variables: Mapping[str, str]) -> Path:
    """Where the hub's client keeps models, by the rules of huggingface_hub."""
    chosen = variables.get(CACHE) or variables.get("HUGGINGFACE_HUB_CACHE")
    if chosen:
        return Path(os.path.expandvars(chosen)).expanduser().absolute()
    user_cache = variables.get("XDG_CACHE_HOME") or "~/.cache"
    home = variables.get("HF_HOME") or str(Path(user_cache) / "huggingface")
    return (Path(os.path.expandvars(home)).expanduser() / "hub").absolute()


def usage_of(folder: Path, names: Sequence[str] | None = None) -> Usage:
    """Count the files below a repository's folder, or only ``names`` of them."""
    paths = [folder / name for name in (listing(folder) if names is None else names)]
    shown = [path for path in paths if "snapshots" in path.relative_to(folder).parts[:1]]
    return Usage(
        file_count=len(shown),
        weight_file_count=sum(path.name.endswith(WEIGHT_SUFFIXES) for path in shown),
        total_bytes=sum(path.stat().st_size for path in paths if path.is_file() and not path.is_symlink()),
    )


def listing(folder: Path) -> list[str]:
    """Every file and link below ``folder``, relative to it, sorted; nothing where there is no such folder."""
    found = []
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        found += [str((Path(place) / name).relative_to(folder)) for name in (*files, *links)]
    return sorted(found)


def fetched_files(folder: Path, model: ClaimedModel, *, is_over: bool = False) -> list[str]:
    """The files below a repository's ``folder`` that the claim's campaign fetched.

    They are new, where the hub's client puts files, and of the campaign's own commit: another revision that somebody
    fetched meanwhile is theirs, and so is everything where no commit was resolved. A blob that a snapshot of theirs
    points at is kept too. What the user's own command fetched has an unknown commit: of it, everything new is meant
    while the campaign runs, and nothing once ``is_over``, when it is no longer told apart from others' files. So it is
    with unfinished downloads; one that a process holds the hub's lock of is never meant.
    """
    if folder.is_symlink():
        return []
    before = set(model.before)
    new = [name for name in listing(folder) if name not in before and _HUB_FILE.fullmatch(name)]
    new = [name for name in new if not (_is_unfinished(name) and (is_over or _is_being_fetched(folder, name)))]
    if model.by_slots:
        return [] if is_over else new
    mine = [name for name in new if any(_is_of_commit(folder, name, commit) for commit in model.commits)]
    blobs = {_blob(folder, name) for name in mine}
    others = {_blob(folder, name) for name in listing(folder) if name.startswith("snapshots/") and name not in mine}
    unfinished = [name for name in new if _is_unfinished(name)]
    return sorted({*mine, *unfinished, *(blob for blob in blobs - others if blob in new)})


def _is_unfinished(name: str) -> bool:
    return name.startswith("blobs/") and name.endswith(".incomplete")


def _is_being_fetched(folder: Path, name: str) -> bool:
    """Whether a process holds the lock that the hub's client takes to write a blob."""
    etag = Path(name).name.partition(".")[0]
    lock = folder.parent / ".locks" / folder.name / f"{etag}.lock"
    if not lock.is_file():
        return False
    try:
        with filelock.FileLock(lock, timeout=0):
            return False
    except (filelock.Timeout, OSError):
        return True


def _is_of_commit(folder: Path, name: str, commit: str) -> bool:
    if name.startswith("refs/"):
        return _text(folder / name) == commit
    return name.startswith((f"snapshots/{commit}/", f"trees/{commit}.", f".no_exist/{commit}/"))


def _blob(folder: Path, name: str) -> str:
    """The blob that a snapshot's file is a link to; empty for a file of its own."""
    path = folder / name
    if not path.is_symlink():
        return ""
    target = os.path.normpath(path.parent / path.readlink())
    return os.path.relpath(target, folder)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
