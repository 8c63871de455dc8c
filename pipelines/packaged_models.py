"""Which embedded checkpoints come with the package, and that their bytes are the ones that were packaged. Torch-free.

``packaged_models.json`` pins, for each name, the hash of the whole checkpoint and of every file of its folder below
``embedded_models/``. It lies beside that folder, not in it: losing one does not hide the loss of the other. A name that
is listed is never answered with random weights: a folder that lacks a file, or has another, is an error that names it.
A folder that is not listed is an error too, since nothing says what it should hold.

A folder either is a checkpoint, used where it lies, or holds what differs from another one
(:mod:`fuseproof.pipelines.packaged_parts`): that is put together in the user's cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.checkpoint_marker import MARKER, TRAINED
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.packaged_parts import PARTS, assemble, is_in_parts, read_parts
from fuseproof.pipelines.regular_files import open_regular

PACKAGED_MODELS = Path(__file__).parent / "embedded_models"
INDEX = "packaged_models.json"
SCHEMA = "fuseproof.packaged-models/1"
SHA256 = re.compile("[0-9a-f]{64}")
REINSTALL = (
    "Install fuseproof again (pip install --force-reinstall --no-deps, from where it came); in a checkout, "
    "git checkout -- pipelines."
)


@dataclass(frozen=True)
class PackagedModel:
    """One listed checkpoint: its folder, and what the index pins of it."""

    name: str
    folder: Path
    content_sha256: str
    files: dict[str, str]
    """SHA-256 of each file of ``folder``, by its path there."""

    @property
    def is_in_parts(self) -> bool:
        """Whether the folder holds only what differs from another packaged one."""
        return PARTS in self.files

    @property
    def expected_sha256(self) -> str:
        """The content hash that a copy in the cache must have."""
        return self.content_sha256

    def key_facts(self) -> dict[str, object]:
        """What names the cache entry: the content itself."""
        return {"name": self.name, "content_sha256": self.content_sha256}

    def build(self, folder: Path) -> None:
        """Put the checkpoint together in ``folder``; a FuseproofError where what came out is not what was packaged."""
        assemble(self.folder, folder)
        found = folder_sha256(folder)
        if found != self.content_sha256:
            raise FuseproofError(
                f"embedded:{self.name} was put together with content hash {found[:12]}, and {self.content_sha256[:12]} "
                "was packaged.",
                next_step=REINSTALL,
            )


def packaged_model(name: str, models: Path = PACKAGED_MODELS) -> PackagedModel | None:
    """What the index says of ``name``; None where it is not packaged. Reads no weight.

    A FuseproofError where the index cannot be read, or does not list a folder that is there or cannot be told to be.
    """
    listed = _read_index(models.with_name(INDEX))
    if name not in listed:
        if _is_there(models / name, name):
            raise FuseproofError(
                f"{models / name} is there, and {INDEX} does not list it, so nothing says what it should hold.",
                next_step=f"{REINSTALL} Weights of your own belong elsewhere: --model-path takes any folder.",
            )
        return None
    entry = listed[name]
    return PackagedModel(name, models / name, entry["content_sha256"], entry["files"])


def packaged_names(models: Path = PACKAGED_MODELS) -> tuple[str, ...]:
    """Every name that the index lists."""
    return tuple(_read_index(models.with_name(INDEX)))


def refuse_damaged(model: PackagedModel) -> None:
    """A FuseproofError that names the first file which is missing, cannot be read, differs, or was not packaged."""
    for name, expected in model.files.items():
        problem = _problem(model.folder / name, expected)
        if problem is not None:
            raise _damaged(model, model.folder / name, problem)
    for path in _unlisted(model):
        raise FuseproofError(
            f"{path} lies in the packaged folder of embedded:{model.name} and was not packaged.",
            next_step="Move it away.",
        )


def verified(model: PackagedModel) -> PackagedModel:
    """``model``, its files read and found to be the packaged ones; those it shares too."""
    refuse_damaged(model)
    if model.is_in_parts:
        refuse_damaged(_shared_model(model))
    elif folder_sha256(model.folder) != model.content_sha256:
        raise FuseproofError(
            f"{INDEX} contradicts itself: the files of embedded:{model.name} are the listed ones, and their content "
            "hash is another.",
            next_step=REINSTALL,
        )
    return model


def _shared_model(model: PackagedModel) -> PackagedModel:
    """The packaged checkpoint whose files ``model`` shares."""
    name = read_parts(model.folder).shared
    shared = packaged_model(name, model.folder.parent)
    if shared is None:
        raise FuseproofError(
            f"embedded:{model.name} shares the files of {model.folder.parent / name}, which is missing.",
            next_step=REINSTALL,
        )
    return shared


def index_packaged(models: Path = PACKAGED_MODELS) -> Path:
    """Write the index of what lies in ``models`` and return its path. For whoever packages; nothing else calls it.

    A FuseproofError refuses a checkpoint that does not call its weights trained.
    """
    listed = {folder.name: _entry(folder) for folder in sorted(models.iterdir()) if folder.is_dir()}
    index = models.with_name(INDEX)
    text = json.dumps({"schema": SCHEMA, "checkpoints": listed}, indent=1, sort_keys=True)
    index.write_text(f"{text}\n", encoding="utf-8")
    return index


def _entry(folder: Path) -> dict[str, Any]:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    marker = folder / MARKER
    kind = json.loads(marker.read_text(encoding="utf-8")).get("weights") if marker.is_file() else None
    if kind != TRAINED:
        raise FuseproofError(
            f"{marker} has weights {json.dumps(kind)}; {json.dumps(TRAINED)} was expected of what is packaged.",
            next_step="Package weights that were trained, and let their folder say so.",
        )
    content = read_parts(folder).content_sha256 if is_in_parts(folder) else folder_sha256(folder)
    return {"content_sha256": content, "files": {name: _sha256(folder / name) for name in names}}


def _read_index(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with open_regular(path) as file:
            index = json.loads(file.read().decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        cause = getattr(error, "strerror", None) or error
        raise FuseproofError(
            f"{path}, which lists the packaged weights, cannot be read: {cause}.", next_step=REINSTALL
        ) from error
    listed = index.get("checkpoints") if isinstance(index, dict) and index.get("schema") == SCHEMA else None
    if not isinstance(listed, dict) or not all(map(_is_entry, listed.values())):
        raise FuseproofError(
            f"{path}, which lists the packaged weights, is no list of schema {SCHEMA}.", next_step=REINSTALL
        )
    return listed


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("files"), dict):
        return False
    hashes = (entry.get("content_sha256"), *entry["files"].values())
    return all(isinstance(value, str) and SHA256.fullmatch(value) for value in hashes)


def _is_there(folder: Path, name: str) -> bool:
    """Whether anything has this name, a link to nothing too; a FuseproofError where that cannot be told."""
    try:
        os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise FuseproofError(
            f"{folder}, where packaged weights of embedded:{name} would lie, {_unreadable(error)}.",
            next_step=REINSTALL,
        ) from error
    return True


def _unlisted(model: PackagedModel) -> list[Path]:
    """What lies in the folder, is no listed file and no folder of such: pipes, links to nothing or to a folder, and
    folders that cannot be looked into are among it.
    """
    unread: list[OSError] = []
    found: list[Path] = []
    for parent, folders, files in os.walk(model.folder, onerror=unread.append):
        found += [Path(parent, name) for name in files]
        below = [Path(parent, name) for name in folders]
        found += [path for path in below if os.path.islink(path)]  # noqa: PTH114 - a Path raises where it may not look
    for error in unread:
        folder = Path(error.filename)
        if folder == model.folder or any(folder in (model.folder / name).parents for name in model.files):
            raise _damaged(model, folder, _unreadable(error)) from error
        found.append(folder)
    return sorted(path for path in found if path.relative_to(model.folder).as_posix() not in model.files)


def _damaged(model: PackagedModel, path: Path, problem: str) -> FuseproofError:
    return FuseproofError(f"{path}, a part of embedded:{model.name}, {problem}.", next_step=REINSTALL)


def _problem(path: Path, expected: str) -> str | None:
    try:
        found = _sha256(path)
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except (OSError, ValueError) as error:
        return _unreadable(error)
    return None if found == expected else f"has SHA-256 {found[:12]}, and {expected[:12]} was packaged"


def _unreadable(error: OSError | ValueError) -> str:
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.sha256(file.read()).hexdigest()
