"""From ``--model-path`` to a folder on disk: an embedded checkpoint, a local folder, or a hub repository. Torch-free,
unless an embedded checkpoint has to be built.

``embedded:<name>`` is found in this order: a folder packaged with fuseproof, then the user's cache, where it is built
offline on first use (:mod:`fuseproof.pipelines.model_cache`).
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
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.families import family_of_model_id
from fuseproof.pipelines.hub import download_snapshot, is_repository_id
from fuseproof.pipelines.model_cache import (
    BUILDING,
    RECIPES,
    CachedModel,
    CacheState,
    Recipe,
    cache_directory,
    ensure_cached,
    find_cached,
    write_atomically,
)

PREFIX = "embedded:"
PACKAGED_MODELS = Path(__file__).parent / "embedded_models"

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
        f"Try {PREFIX}{family.name} (tiny, random weights) or {family.model_ids[0]} (the published model), "
        "or add --load-format dummy for its released geometry."
    )


def find_embedded(name: str) -> CachedModel | None:
    """The embedded checkpoint ``name`` if it is packaged or already built. Torch-free, builds nothing."""
    recipe = _recipe_named(name)
    return _find_packaged(name) or find_cached(recipe, cache_directory(os.environ))


def write_embedded(name: str, destination: Path) -> str:
    """Write the embedded checkpoint ``name`` to ``destination``, atomically, and return its content hash.

    ``destination`` must be absent or an empty folder (UsageError); missing parents are created.
    """
    recipe = _recipe_named(name)
    destination = destination.expanduser().resolve()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        what = "is not empty" if destination.is_dir() else "is a file"
        raise UsageError(
            f"{destination} {what}; a new or an empty folder was expected.", next_step="Choose another folder."
        )
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(destination, f".{name}.{BUILDING}-", lambda folder: _fill(recipe, folder))
        return folder_sha256(destination)
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise FuseproofError(
            f"{destination} cannot be written: {cause}.", next_step="Choose a writable folder with 40 MB free."
        ) from error


def _resolve_embedded(name: str) -> CachedModel:
    recipe = _recipe_named(name)
    return _find_packaged(name) or ensure_cached(recipe, cache_directory(os.environ))


def _find_packaged(name: str) -> CachedModel | None:
    folder = PACKAGED_MODELS / name
    return CachedModel(folder, folder_sha256(folder), "packaged") if folder.is_dir() else None


def _fill(recipe: Recipe, folder: Path) -> None:
    found = find_embedded(recipe.name)
    if found is None:
        recipe.build(folder)
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
