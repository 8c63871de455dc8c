"""The files of a hub cache: where it is, what a repository's folder holds, and which of it one campaign fetched.

Hub caches hold one folder a repository (``models--owner--name``) with ``blobs``, ``refs``, ``snapshots``, ``trees``.
Nothing here writes, and nothing talks to the hub.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuseproof.errors import UsageError
from fuseproof.harness.machine.redaction import redact

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf")
OFFLINE = {"HF_HUB_OFFLINE": "1"}
CACHE = "HF_HUB_CACHE"
CACHE_VARIABLES = (CACHE, "HUGGINGFACE_HUB_CACHE", "HF_HOME")


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


def refuse_shared_root(root: Path, variables: Mapping[str, str]) -> None:
    """Raise :class:`UsageError` where cleaning ``root`` could touch a cache that others use: the hub's own.

    The root may be neither that folder, nor a link to it, nor a folder around or inside it.
    """
    for source in (variables, {name: value for name, value in variables.items() if name not in CACHE_VARIABLES}):
        shared = hub_cache(source).resolve()
        own = root.resolve()
        if shared == own or shared.is_relative_to(own) or own.is_relative_to(shared):
            raise UsageError(
                f"--cleanup-model-cache would remove files from {redact(str(root))}, which is, holds or lies in the "
                f"shared hub cache {redact(str(shared))}.",
                next_step="Point --model-cache-root at a folder of its own, or leave --cleanup-model-cache out.",
            )


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

    They are new, and of the campaign's own commit: another revision that somebody fetched meanwhile is theirs. A blob
    that a snapshot of theirs points at is kept too. ``is_over``: the campaign was killed some time ago, so what a
    command may have fetched, or anything of an unknown commit, is no longer told apart from others' files.
    """
    new = [name for name in listing(folder) if name not in set(model.before)]
    if model.by_slots or not model.commits:
        return [] if is_over else new
    mine = [name for name in new if any(_is_of_commit(folder, name, commit) for commit in model.commits)]
    blobs = {_blob(folder, name) for name in mine}
    others = {_blob(folder, name) for name in listing(folder) if name.startswith("snapshots/") and name not in mine}
    unfinished = [name for name in new if name.startswith("blobs/") and name.endswith(".incomplete")]
    return sorted({*mine, *unfinished, *(blob for blob in blobs - others if blob in new)})


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
