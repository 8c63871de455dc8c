"""Weights that come with the package are the packaged ones, or an error that names the file: never random ones."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from fuseproof.errors import FuseproofError
from fuseproof.pipelines import embedded, packaged_models
from fuseproof.pipelines.checkpoint_marker import MARKER, Marker
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.embedded import embedded_weights, find_embedded, resolve_model, write_embedded
from fuseproof.pipelines.model_cache import CACHE_VARIABLE, RECIPES
from fuseproof.pipelines.packaged_models import INDEX, index_packaged, packaged_names
from fuseproof.pipelines.packaged_parts import put_together
from tests.pipelines import fake_recipe
from tests.pipelines.fake_recipe import RECIPE
from tests.pipelines.packaged_stand_in import BASE, PART, WEIGHTS, write_base, write_packaged

SYSTEM_CALLS = ("open", "stat", "lstat", "scandir")
DENIED = "cannot be read (Permission denied)."
Change = Callable[[Path], object]


def close_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, to: Sequence[str] = SYSTEM_CALLS) -> None:
    """Permission denied for what lies in ``folder`` and for its list, as by its mode; root too, whom no mode stops."""

    def closed(call: Callable[..., Any], is_list: bool) -> Callable[..., Any]:
        def answer(path: Any, *arguments: Any, **options: Any) -> Any:
            place = Path(path) if isinstance(path, (str, os.PathLike)) else Path()
            if folder in place.parents or (is_list and place == folder):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *arguments, **options)

        return answer

    for name in to:
        monkeypatch.setattr(os, name, closed(getattr(os, name), name == "scandir"))


def pipe(path: Path) -> None:
    """A pipe that nobody writes to in the place of a file."""
    path.unlink()
    os.mkfifo(path)


def loop(path: Path) -> None:
    """A link to itself."""
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packaged checkpoints, and an empty cache; what is not packaged is built by the fake recipe."""
    fake_recipe.builds.clear()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    recipes = dict.fromkeys((BASE, PART, "ernie-image"), RECIPE)
    monkeypatch.setattr(embedded, "RECIPES", MappingProxyType(recipes))
    folder = write_packaged(tmp_path / "embedded_models")
    monkeypatch.setattr(embedded, "PACKAGED_MODELS", folder)
    return folder


def test_the_index_of_this_checkout_lists_what_lies_there() -> None:
    folder = packaged_models.PACKAGED_MODELS
    found = {path.name for path in folder.iterdir() if path.is_dir()} if folder.is_dir() else set()
    assert found == set(packaged_names()) <= set(RECIPES)
    for name in packaged_names():
        model = packaged_models.packaged_model(name)
        assert model is not None and model is packaged_models.verified(model)


def test_a_whole_folder_is_used_where_it_lies(models: Path, tmp_path: Path) -> None:
    resolved = resolve_model(f"embedded:{BASE}", None)
    assert (models / BASE, "packaged") == (resolved.folder, resolved.cache_state)
    assert folder_sha256(models / BASE) == resolved.content_sha256
    assert "trained" == embedded_weights(BASE)
    assert not (tmp_path / "cache").exists()


def test_parts_are_put_together_once_in_the_cache(models: Path, tmp_path: Path) -> None:
    assert find_embedded(PART) is None
    first, second = (resolve_model(f"embedded:{PART}", None) for _ in range(2))
    assert ("built", "cached") == (first.cache_state, second.cache_state)
    assert first.folder == second.folder and first.folder.is_relative_to(tmp_path / "cache")
    assert (models / BASE / WEIGHTS).read_bytes() == (first.folder / WEIGHTS).read_bytes()
    assert (models / PART / "model_index.json").read_bytes() == (first.folder / "model_index.json").read_bytes()
    assert not (first.folder / "parts.json").exists()
    assert [] == fake_recipe.builds


def test_what_is_not_packaged_stays_random(models: Path) -> None:
    assert "random" == embedded_weights("ernie-image")
    assert "built" == resolve_model("embedded:ernie-image", None).cache_state
    assert 1 == len(fake_recipe.builds)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda folder: (folder / WEIGHTS).unlink(), f"{WEIGHTS}, a part of .* is missing", id="lost"),
        pytest.param(lambda folder: (folder / WEIGHTS).write_bytes(b"x"), f"{WEIGHTS}, .* has SHA-256 2d7", id="cut"),
        pytest.param(lambda folder: (folder / "README.md").write_text("!"), "README.md, .* was packaged", id="card"),
        pytest.param(lambda folder: (folder / "new").write_text(""), "new lies in the packaged folder", id="one more"),
        pytest.param(lambda folder: folder.rename(folder.with_name("gone")), "README.md, .* is missing", id="all gone"),
        pytest.param(lambda folder: pipe(folder / "README.md"), "README.md, .* read .it is a pipe", id="card a pipe"),
        pytest.param(lambda folder: loop(folder / "README.md"), "README.md, .* read .Too many", id="card a loop"),
        pytest.param(lambda folder: os.mkfifo(folder / "new"), "new lies in the packaged folder", id="one more pipe"),
        pytest.param(lambda folder: (folder / "new").symlink_to("no"), "new lies in the packaged", id="a dead link"),
        pytest.param(lambda folder: (folder / "vae" / "new").mkdir(parents=True), None, id="empty folders"),
        pytest.param(lambda folder: loop(folder / "new"), "new lies in the packaged folder", id="one more loop"),
        pytest.param(lambda folder: (folder / "new").symlink_to("transformer"), "new lies in", id="a linked folder"),
    ],
)
@pytest.mark.parametrize("name", [BASE, PART])
def test_damage_is_an_error_that_names_the_file(change: Change, said: str | None, name: str, models: Path) -> None:
    """In the base's folder; whoever shares its files meets it too. ``None``: it is no damage."""
    change(models / BASE)
    if said is None:
        assert "trained" == embedded_weights(name) and resolve_model(f"embedded:{name}", None).content_sha256
        return
    with pytest.raises(FuseproofError, match=said) as caught:
        resolve_model(f"embedded:{name}", None)
    assert any(word in str(caught.value.next_step) for word in ("Install fuseproof again", "Move it away"))
    assert [] == fake_recipe.builds
    with pytest.raises(FuseproofError, match=said):
        find_embedded(name)


@pytest.mark.parametrize(
    ("closed", "name", "said"),
    [
        ("", BASE, f"README.md, a part of embedded:longcat-image, {DENIED}"),
        ("", "ernie-image", f"ernie-image, where packaged weights of embedded:ernie-image would lie, {DENIED}"),
        (BASE, BASE, f"README.md, a part of embedded:longcat-image, {DENIED}"),
        (f"{BASE}/transformer", BASE, f"{WEIGHTS}, a part of embedded:longcat-image, {DENIED}"),
        (f"{BASE}/new", BASE, "new lies in the packaged folder of embedded:longcat-image and was not packaged"),
        (PART, PART, f"{MARKER}, a part of embedded:longcat-image-edit, {DENIED}"),
    ],
    ids=["all", "all, and another", "base", "sub-folder", "one more", "part"],
)
def test_a_folder_that_cannot_be_read_is_an_error(
    closed: str, name: str, said: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models / closed).mkdir(exist_ok=True)
    close_folder(models / closed, monkeypatch)
    for act in (lambda: resolve_model(f"embedded:{name}", None), lambda: write_embedded(name, tmp_path / "copy")):
        with pytest.raises(FuseproofError) as caught:
            act()
        assert said in caught.value.message
        assert str(tmp_path / "copy") not in caught.value.message
    assert [] == fake_recipe.builds and not (tmp_path / "copy").exists()


@pytest.mark.parametrize("closed", [BASE, f"{BASE}/transformer"])
def test_a_folder_that_can_be_entered_and_not_listed_is_an_error(
    closed: str, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says what else it holds."""
    close_folder(models / closed, monkeypatch, to=("scandir",))
    with pytest.raises(FuseproofError, match=f"{closed}, a part of embedded:{BASE}, cannot be read .Permission"):
        resolve_model(f"embedded:{BASE}", None)


@pytest.mark.parametrize(
    ("listed", "said"),
    [("x" * 300, "cannot be read (File name too long)"), ("x\0", "cannot be read (embedded null byte)")],
    ids=["long", "null"],
)
def test_a_listed_name_that_no_file_can_have_is_an_error(listed: str, said: str, models: Path) -> None:
    index = json.loads(models.with_name(INDEX).read_text())
    index["checkpoints"][BASE]["files"][listed] = "0" * 64
    models.with_name(INDEX).write_text(json.dumps(index))
    with pytest.raises(FuseproofError) as caught:
        resolve_model(f"embedded:{BASE}", None)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(lambda index: index.unlink(), "cannot be read: No such file", id="lost"),
        pytest.param(lambda index: index.write_text("{"), "cannot be read: Expecting", id="broken"),
        pytest.param(pipe, "cannot be read: it is a pipe", id="a pipe"),
        pytest.param(lambda index: index.write_text("[" * 100_000), "cannot be read", id="nested"),
        pytest.param(lambda index: index.write_text("{}"), "is no list of schema", id="another schema"),
        pytest.param(
            lambda index: index.write_text(index.read_text().replace('"content_sha256": "', '"content_sha256": "x')),
            "is no list of schema",
            id="no hash",
        ),
    ],
)
def test_a_lost_index_is_an_error_too(change: Change, said: str, models: Path) -> None:
    change(models.with_name(INDEX))
    for name in (BASE, PART, "ernie-image"):
        with pytest.raises(FuseproofError, match=said) as caught:
            resolve_model(f"embedded:{name}", None)
        assert INDEX in caught.value.message and "Install fuseproof again" in str(caught.value.next_step)
    assert [] == fake_recipe.builds


@pytest.mark.parametrize("is_dead_link", [False, True])
def test_a_folder_that_no_index_lists_is_refused(is_dead_link: bool, models: Path) -> None:
    if is_dead_link:
        (models / BASE).rename(models / "elsewhere")
        (models / BASE).symlink_to("gone")
    models.with_name(INDEX).write_text(json.dumps({"schema": packaged_models.SCHEMA, "checkpoints": {}}))
    with pytest.raises(FuseproofError, match="does not list it"):
        resolve_model(f"embedded:{BASE}", None)


def test_a_cached_copy_with_another_content_is_put_together_again(models: Path) -> None:
    """Its manifest was changed with it, so it agrees with itself."""
    whole = resolve_model(f"embedded:{PART}", None)
    (whole.folder / WEIGHTS).write_bytes(b"others")
    manifest = whole.folder.parent / "manifest.json"
    manifest.write_text(json.dumps({"content_sha256": folder_sha256(whole.folder)}))
    again = resolve_model(f"embedded:{PART}", None)
    assert ("built", 1) == (again.cache_state, len(again.warnings))
    assert whole.content_sha256 == again.content_sha256 == folder_sha256(again.folder)


def test_a_part_whose_result_is_not_the_pinned_one_leaves_no_entry(models: Path, tmp_path: Path) -> None:
    index = json.loads(models.with_name(INDEX).read_text())
    index["checkpoints"][PART]["content_sha256"] = "0" * 64
    models.with_name(INDEX).write_text(json.dumps(index))
    with pytest.raises(FuseproofError, match="was put together with content hash"):
        resolve_model(f"embedded:{PART}", None)
    assert [] == [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


@pytest.mark.parametrize("name", [BASE, PART])
def test_a_packaged_checkpoint_can_be_written_anywhere(name: str, models: Path, tmp_path: Path) -> None:
    written = write_embedded(name, tmp_path / "copy")
    assert written == folder_sha256(tmp_path / "copy") == resolve_model(f"embedded:{name}", None).content_sha256


@pytest.mark.parametrize("weights", [None, "random"])
def test_only_trained_weights_are_packaged(weights: str | None, tmp_path: Path) -> None:
    folder = write_base(tmp_path / "embedded_models")
    (folder / MARKER).unlink()
    if weights is not None:
        (folder / MARKER).write_text(Marker(weights="random").to_json())
    with pytest.raises(FuseproofError, match='"trained" was expected'):
        index_packaged(folder.parent)
    assert not folder.parent.with_name(INDEX).exists()


def test_a_read_only_installation_can_be_put_together(models: Path, tmp_path: Path) -> None:
    """Whoever runs this as root may write anywhere, so the modes of the copy are looked at."""
    folders = [models / BASE, models / BASE / "transformer"]
    for folder in folders:
        folder.chmod(0o555)
    (models / BASE / WEIGHTS).chmod(0o444)
    try:
        put_together(models / PART, models / BASE, {}, tmp_path / "whole")
        assert PART in (resolve_model(f"embedded:{PART}", None).folder / MARKER).read_text()
    finally:
        for folder in folders:
            folder.chmod(0o755)
    written = [tmp_path / "whole", tmp_path / "whole" / "transformer", tmp_path / "whole" / WEIGHTS]
    assert all(path.stat().st_mode & stat.S_IWUSR for path in written)
