"""From ``--model-path`` to a folder on disk: an embedded checkpoint, a local folder, or a hub repository. Torch-free,
unless an embedded checkpoint has to be built.

``embedded:<name>`` is what is packaged with fuseproof under that name
(:mod:`fuseproof.pipelines.packaged_models`); where nothing is, random weights from the user's cache, where they are
built offline on first use (:mod:`fuseproof.pipelines.model_cache`). Packaged weights that are damaged or gone are an
error, never a reason to draw with random ones.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from safetensors import SafetensorError

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoint_marker import RANDOM, TRAINED
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.families import family_of_model_id
from fuseproof.pipelines.hub import download_snapshot, is_repository_id
from fuseproof.pipelines.model_cache import (
    BUILDING,
    RECIPES,
    Buildable,
    CachedModel,
    CacheState,
    Recipe,
    cache_directory,
    ensure_cached,
    find_cached,
    write_atomically,
)
from fuseproof.pipelines.packaged_models import (
    PACKAGED_MODELS,
    PackagedModel,
    packaged_model,
    packaged_names,
    refuse_damaged,
    verified,
)

PREFIX = "embedded:"

Source = Literal["embedded", "local", "hub"]


@dataclass(frozen=True)
class ResolvedModel:
    """Where a model lies and what exactly it is.

    ``revision`` is the resolved commit of a hub repository. ``content_sha256`` (of embedded checkpoints) is verified
    against the stored one. ``warnings`` were already shown on stderr and belong into the record.
    """

    folder: Path
    source: Source
    requested: str
    revision: str | None = None
    content_sha256: str | None = None
    cache_state: CacheState | None = None
    warnings: tuple[str, ...] = ()


def resolve_model(model_path: str, revision: str | None) -> ResolvedModel:
    """Find (or build, or download) the model that ``model_path`` names; a FuseproofError says why it cannot be had.

    A name that exists as a local path is local; ``owner/name`` is a hub repository otherwise.
    """
    source = source_of(model_path, revision)
    if source == "embedded":
        found = _resolve_embedded(model_path.removeprefix(PREFIX))
        return ResolvedModel(
            found.folder, "embedded", model_path, None, found.content_sha256, found.state, found.warnings
        )
    if source == "local":
        return ResolvedModel(Path(model_path).expanduser().resolve(), "local", model_path)
    snapshot = download_snapshot(model_path, revision)
    return ResolvedModel(snapshot.folder, "hub", model_path, snapshot.commit)


def source_of(model_path: str, revision: str | None) -> Source:
    """Where ``model_path`` is to be had by its name alone; nothing is built or fetched.

    A UsageError for a name that is nothing of the kind, and for a ``revision`` of what has none.
    """
    if model_path.startswith(PREFIX):
        _refuse_revision(revision, model_path, "an embedded checkpoint")
        _recipe_named(model_path.removeprefix(PREFIX))
        return "embedded"
    if model_path and Path(model_path).expanduser().exists():
        _refuse_revision(revision, model_path, "a local folder")
        return "local"
    if is_repository_id(model_path):
        return "hub"
    raise UsageError(
        f"The model path {model_path!r} is neither an existing folder, nor embedded:<name>, nor owner/name on the hub.",
        next_step=_next_step(model_path),
    )


def _next_step(model_path: str) -> str:
    """What there is of the same family, where ``model_path`` is our name for one, or a published id without its owner.

    Elsewhere the embedded checkpoint whose name is most like it.
    """
    family = family_of_model_id(model_path)
    if family is None or family.name not in RECIPES:
        return f"Try {PREFIX}{_closest_recipe(model_path)}."
    return (
        f"Try {PREFIX}{family.name} (tiny, {embedded_weights(family.name)} weights) or {family.model_ids[0]} "
        "(the published model), or add --load-format dummy for its released geometry."
    )


def embedded_weights(name: str) -> Literal["random", "trained"]:
    """What the weights of the embedded checkpoint ``name`` are, whether it is built already or not."""
    return RANDOM if packaged_model(name, PACKAGED_MODELS) is None else TRAINED


def refuse_damaged_packages() -> None:
    """A FuseproofError where any packaged weights are damaged, or cannot be told to be whole."""
    for name in packaged_names(PACKAGED_MODELS):
        packaged = packaged_model(name, PACKAGED_MODELS)
        if packaged is not None:
            refuse_damaged(packaged)


def find_embedded(name: str) -> CachedModel | None:
    """The embedded checkpoint ``name`` if it is packaged or already built. Torch-free, builds nothing.

    A FuseproofError where packaged weights are damaged, unless the cache has them whole.
    """
    recipe = _recipe_named(name)
    packaged = packaged_model(name, PACKAGED_MODELS)
    if packaged is not None and not packaged.is_in_parts:
        return _in_place(packaged)
    cached = find_cached(packaged or recipe, cache_directory(os.environ))
    if cached is None and packaged is not None:
        verified(packaged)
    return cached


def write_embedded(name: str, destination: Path) -> str:
    """Write the embedded checkpoint ``name`` to ``destination``, atomically, and return its content hash.

    ``destination`` must be absent or an empty folder (UsageError); missing parents are created.
    """
    _recipe_named(name)
    destination = destination.expanduser().resolve()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        what = "is not empty" if destination.is_dir() else "is a file"
        raise UsageError(
            f"{destination} {what}; a new or an empty folder was expected.", next_step="Choose another folder."
        )
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(destination, f".{name}.{BUILDING}-", lambda folder: _fill(name, folder))
        return folder_sha256(destination)
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise FuseproofError(
            f"{destination} cannot be written: {cause}.", next_step="Choose a writable folder with 40 MB free."
        ) from error


def _resolve_embedded(name: str) -> CachedModel:
    found = find_embedded(name)
    return found or ensure_cached(_buildable(name), cache_directory(os.environ))


def _buildable(name: str) -> Buildable:
    """What has to be built for ``name``: packaged parts, which are whole, or random weights."""
    packaged = packaged_model(name, PACKAGED_MODELS)
    return _recipe_named(name) if packaged is None else verified(packaged)


def _in_place(packaged: PackagedModel) -> CachedModel:
    return CachedModel(verified(packaged).folder, packaged.content_sha256, "packaged")


def _fill(name: str, folder: Path) -> None:
    found = find_embedded(name)
    if found is None:
        _buildable(name).build(folder)
    else:
        shutil.copytree(found.folder, folder, dirs_exist_ok=True)


def _recipe_named(name: str) -> Recipe:
    recipe = RECIPES.get(name)
    if recipe is None:
        existing = ", ".join(f"{PREFIX}{known}" for known in RECIPES)
        raise UsageError(
            f"There is no embedded checkpoint {name!r}; fuseproof has {existing}.",
            next_step=f"Try {PREFIX}{_closest_recipe(name)}; `fuseproof models list` shows them all.",
        )
    return recipe


def _closest_recipe(name: str) -> str:
    """The embedded checkpoint whose name is most like ``name``; the first one where none is."""
    return next(iter(get_close_matches(name.lower(), RECIPES, n=1)), next(iter(RECIPES)))


def _refuse_revision(revision: str | None, model_path: str, what: str) -> None:
    if revision is not None:
        raise UsageError(
            f"--revision {revision} cannot be used with {model_path}, which is {what}.", next_step="Leave it out."
        )
