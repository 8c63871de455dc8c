"""Builds embedded checkpoints once into the user's cache folder, and never trusts what it finds there unread.

An entry is a folder ``<name>-<key>/`` that holds ``model/`` and ``manifest.json``. The key covers the builder's source
and the versions of the libraries that shape the files, so another version gets another entry. An entry appears by one
rename, under a lock; its content hash is verified each time it is used, and a damaged entry is built again.

Packaged checkpoints that share parts with others are put together here too: what names their entries is their content.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Protocol

from filelock import FileLock, Timeout
from platformdirs import user_cache_dir
from safetensors import SafetensorError

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.regular_files import open_regular

CACHE_VARIABLE = "FUSEPROOF_CACHE_DIR"
SHAPING_LIBRARIES = ("diffusers", "transformers", "tokenizers", "safetensors", "numpy")
MANIFEST = "manifest.json"
MANIFEST_SCHEMA = "fuseproof.embedded/1"
LOCK_TIMEOUT_S = 600.0
BUILDING = "building"

CacheState = Literal["packaged", "cached", "built"]


class Buildable(Protocol):
    """A checkpoint that the cache can hold.

    ``expected_sha256`` is the content hash that it must have, None where only the build knows it.
    """

    @property
    def name(self) -> str: ...

    @property
    def expected_sha256(self) -> str | None: ...

    def key_facts(self) -> dict[str, object]:
        """What names its entry: another value is another entry."""
        ...

    def build(self, folder: Path) -> None:
        """Write it into ``folder``."""
        ...


@dataclass(frozen=True)
class Recipe:
    """How a random checkpoint is built: a module with ``build(folder)``, and every source file that shapes it."""

    name: str
    module: str
    sources: tuple[str, ...]

    @property
    def expected_sha256(self) -> None:
        """Not known: other libraries write other bytes."""
        return

    def key_facts(self) -> dict[str, object]:
        """The builder's source, and the versions of the libraries that shape the files."""
        here = Path(__file__).parent
        source = hashlib.sha256(b"\0".join((here / name).read_bytes() for name in self.sources))
        return {
            "name": self.name,
            "builder": source.hexdigest()[:16],
            "libraries": {library: _installed_version(library) for library in SHAPING_LIBRARIES},
        }

    def build(self, folder: Path) -> None:
        """Write the checkpoint into ``folder``. Imports torch and diffusers."""
        builder: Callable[[Path], None] = importlib.import_module(self.module).build
        builder(folder)


TINY_SOURCES = ("tiny/longcat_image.py", "tiny/weights.py", "checkpoint_marker.py")
TINY_ERNIE_SOURCES = ("tiny/ernie_image.py", "tiny/weights.py", "checkpoint_marker.py")
TINY_WAN_SOURCES = ("tiny/wan.py", "tiny/weights.py", "wan_latents.py", "checkpoint_marker.py")
TINY_EDIT_SOURCES = (*TINY_SOURCES, "tiny/longcat_image_edit.py", "vision_processor.py")

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("longcat-image", "fuseproof.pipelines.tiny.longcat_image", TINY_SOURCES),
            Recipe("longcat-image-edit", "fuseproof.pipelines.tiny.longcat_image_edit", TINY_EDIT_SOURCES),
            Recipe(
                "longcat-image-edit-turbo",
                "fuseproof.pipelines.tiny.longcat_image_edit_turbo",
                (*TINY_EDIT_SOURCES, "tiny/longcat_image_edit_turbo.py"),
            ),
            Recipe("ernie-image", "fuseproof.pipelines.tiny.ernie_image", TINY_ERNIE_SOURCES),
            Recipe(
                "ernie-image-turbo",
                "fuseproof.pipelines.tiny.ernie_image_turbo",
                (*TINY_ERNIE_SOURCES, "tiny/ernie_image_turbo.py"),
            ),
            Recipe(
                "wan2.2-ti2v-5b",
                "fuseproof.pipelines.tiny.wan22_ti2v_5b",
                (*TINY_WAN_SOURCES, "tiny/wan22_ti2v_5b.py"),
            ),
            Recipe(
                "wan2.1-t2v-1.3b",
                "fuseproof.pipelines.tiny.wan21_t2v_1_3b",
                (*TINY_WAN_SOURCES, "tiny/wan21_t2v_1_3b.py"),
            ),
            Recipe(
                "longlive2",
                "fuseproof.pipelines.tiny.longlive2",
                (*TINY_WAN_SOURCES, "tiny/longlive2.py", "longlive2_pipeline.py"),
            ),
        )
    }
)


@dataclass(frozen=True)
class CachedModel:
    """A verified entry. ``warnings`` says what had to be repaired; it was already shown on stderr."""

    folder: Path
    content_sha256: str
    state: CacheState
    warnings: tuple[str, ...] = ()


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Where embedded checkpoints are kept: ``FUSEPROOF_CACHE_DIR`` if set, else the user's cache folder."""
    chosen = environment.get(CACHE_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(user_cache_dir("fuseproof"))


def entry_name(recipe: Buildable) -> str:
    """``<name>-<key>``, the key over what shapes the checkpoint."""
    facts = json.dumps(recipe.key_facts(), sort_keys=True)
    return f"{recipe.name}-{hashlib.sha256(facts.encode()).hexdigest()[:16]}"


def find_cached(recipe: Buildable, directory: Path) -> CachedModel | None:
    """The verified entry for ``recipe``, or None where there is none or it is damaged. Torch-free, changes nothing."""
    entry = directory / entry_name(recipe)
    if not entry.is_dir() or damage(entry, recipe.expected_sha256) is not None:
        return None
    return CachedModel(entry / "model", _stored_hash(entry), "cached")


def ensure_cached(recipe: Buildable, directory: Path) -> CachedModel:
    """The verified entry for ``recipe``, built now if it is missing or damaged.

    A FuseproofError says why the cache folder cannot be used.
    """
    cached = find_cached(recipe, directory)
    if cached is not None:
        return cached
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with FileLock(directory / f".{entry_name(recipe)}.lock", timeout=LOCK_TIMEOUT_S):
            return _cached_or_built(recipe, directory)
    except Timeout as error:
        raise FuseproofError(
            f"Another process has been building {recipe.name} in {directory} for {LOCK_TIMEOUT_S:.0f} s.",
            next_step="Wait for it or end it, then try again.",
        ) from error
    except (OSError, SafetensorError) as error:
        cause = getattr(error, "strerror", None) or error
        raise FuseproofError(
            f"The cache folder {directory} cannot be used to build {recipe.name}: {cause}.",
            next_step=f"Set {CACHE_VARIABLE} to a folder that is writable and has 40 MB free.",
        ) from error


def write_atomically(destination: Path, prefix: str, fill: Callable[[Path], None]) -> None:
    """Let ``fill`` write into a temporary folder beside ``destination``, then rename it to that name.

    Nothing is left behind when ``fill`` fails. ``destination`` must be absent or an empty folder.
    """
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=destination.parent))
    try:
        fill(temporary)
        _make_readable(temporary)
        temporary.rename(destination)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def damage(entry: Path, expected_sha256: str | None = None) -> str | None:
    """Why an entry cannot be used, or None when its bytes are the ones that were built, and those that must be."""
    try:
        stored = _stored_hash(entry)
        found = folder_sha256(entry / "model")
    except RecursionError:
        return "its manifest is nested too deeply"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its manifest or files cannot be read ({error})"
    if found != stored:
        return f"its content hash is {found[:12]}, and {stored[:12]} was stored"
    if expected_sha256 is not None and found != expected_sha256:
        return f"its content hash is {found[:12]}, and {expected_sha256[:12]} was packaged"
    return None


def _cached_or_built(recipe: Buildable, directory: Path) -> CachedModel:
    """Called under the lock: another process may have built the entry while this one waited."""
    entry = directory / entry_name(recipe)
    warnings: tuple[str, ...] = ()
    _refuse_other_than_folder(entry)
    if entry.is_dir():
        problem = damage(entry, recipe.expected_sha256)
        if problem is None:
            return CachedModel(entry / "model", _stored_hash(entry), "cached")
        warnings = (f"The cached checkpoint {entry} is damaged: {problem}; it is built again.",)
        sys.stderr.write(f"fuseproof: warning: {warnings[0]}\n")
        shutil.rmtree(entry)
    prefix = f".{entry.name}.{BUILDING}-"
    for leftover in directory.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    write_atomically(entry, prefix, lambda folder: _fill_entry(recipe, folder))
    return CachedModel(entry / "model", _stored_hash(entry), "built", warnings)


def _refuse_other_than_folder(entry: Path) -> None:
    """A link to a whole entry is used where it is found; one that would have to be repaired is not ours to delete."""
    if entry.is_symlink():
        what = f"is a link to {entry.readlink()}, which holds no whole checkpoint"
    elif entry.exists() and not entry.is_dir():
        what = "is not a folder"
    else:
        return
    raise FuseproofError(
        f"The cache entry {entry} {what}; a folder of our own was expected.",
        next_step=f"Move it away, or set {CACHE_VARIABLE} to another folder.",
    )


def _fill_entry(recipe: Buildable, folder: Path) -> None:
    recipe.build(folder / "model")
    manifest = {
        "schema": MANIFEST_SCHEMA,
        **recipe.key_facts(),
        "content_sha256": folder_sha256(folder / "model"),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _installed_version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _stored_hash(entry: Path) -> str:
    with open_regular(entry / MANIFEST) as file:
        stored = json.loads(file.read().decode("utf-8"))["content_sha256"]
    if not isinstance(stored, str):
        raise TypeError(f"content_sha256 is {stored!r}")
    return stored


def _make_readable(folder: Path) -> None:
    """Temporary folders and safetensors files are made private; a cache may be shared."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
