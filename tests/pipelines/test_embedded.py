from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines import embedded, model_cache
from fuseproof.pipelines.checkpoint_marker import MARKER, Marker
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.embedded import (
    ResolvedModel,
    embedded_weights,
    find_embedded,
    resolve_model,
    write_embedded,
)
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.model_cache import CACHE_VARIABLE, cache_directory, ensure_cached, entry_name, find_cached
from fuseproof.pipelines.packaged_models import index_packaged
from tests.pipelines import fake_recipe
from tests.pipelines.fake_recipe import RECIPE
from tests.pipelines.packaged_stand_in import write_none


@pytest.fixture(autouse=True)
def fresh_fake_recipe() -> Iterator[None]:
    fake_recipe.builds.clear()
    fake_recipe.met.clear()
    yield
    fake_recipe.fault = None
    fake_recipe.meeting = None


@pytest.fixture
def fake_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for ``embedded:longcat-image`` built by the fake recipe; nothing is packaged."""
    monkeypatch.setattr(embedded, "PACKAGED_MODELS", write_none(tmp_path / "nothing" / "embedded_models"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "RECIPES", MappingProxyType({"longcat-image": RECIPE}))
    return tmp_path / "cache"


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


# Content hash


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda folder: (folder / "a").write_bytes(b"12x"), id="other-bytes"),
        pytest.param(lambda folder: (folder / "a").rename(folder / "c"), id="other-name"),
        pytest.param(lambda folder: (folder / "sub" / "b").rename(folder / "b"), id="other-folder"),
        pytest.param(lambda folder: (folder / "new").write_bytes(b""), id="one-more-empty-file"),
    ],
)
def test_the_content_hash_covers_names_and_bytes(change: Any, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "sub" / "b").write_bytes(b"45")
    before = folder_sha256(tmp_path)
    os.utime(tmp_path / "a", (1, 1))
    assert folder_sha256(tmp_path) == before
    change(tmp_path)
    assert folder_sha256(tmp_path) != before


# The cache, with the fake recipe


def test_an_entry_is_built_once_and_then_found(tmp_path: Path) -> None:
    first = ensure_cached(RECIPE, tmp_path)
    second = ensure_cached(RECIPE, tmp_path)
    assert (first.state, second.state) == ("built", "cached")
    assert first.folder == second.folder == tmp_path / entry_name(RECIPE) / "model"
    assert first.content_sha256 == second.content_sha256 == folder_sha256(first.folder)
    assert len(fake_recipe.builds) == 1
    assert names_in(tmp_path) == [entry_name(RECIPE)]


def test_the_manifest_records_what_the_key_covers(tmp_path: Path) -> None:
    entry = ensure_cached(RECIPE, tmp_path).folder.parent
    manifest = json.loads((entry / "manifest.json").read_text())
    assert sorted(manifest) == ["builder", "content_sha256", "libraries", "name", "schema"]
    assert sorted(manifest["libraries"]) == ["diffusers", "numpy", "safetensors", "tokenizers", "transformers"]


def test_another_library_version_gets_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    before = entry_name(RECIPE)
    monkeypatch.setattr(model_cache, "version", lambda library: "999")
    assert entry_name(RECIPE) != before


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda entry: (entry / "model/vae/weights").write_bytes(b"1234x"), id="changed-byte"),
        pytest.param(lambda entry: (entry / "model/vae/weights").unlink(), id="lost-file"),
        pytest.param(lambda entry: (entry / "model/more").write_bytes(b""), id="extra-file"),
        pytest.param(lambda entry: (entry / "manifest.json").unlink(), id="lost-manifest"),
        pytest.param(lambda entry: (entry / "manifest.json").write_text("{"), id="broken-manifest"),
        pytest.param(lambda entry: (entry / "manifest.json").write_text("{}"), id="empty-manifest"),
        pytest.param(lambda entry: (entry / "manifest.json").write_text("[" * 100_000), id="nested-manifest"),
        pytest.param(lambda entry: (entry / "manifest.json").write_text('{"content_sha256": 1}'), id="hash-a-number"),
    ],
)
def test_a_damaged_entry_is_built_again_with_a_warning(
    damage: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ensure_cached(RECIPE, tmp_path)
    damage(whole.folder.parent)
    assert find_cached(RECIPE, tmp_path) is None
    repaired = ensure_cached(RECIPE, tmp_path)
    assert (repaired.state, repaired.content_sha256) == ("built", whole.content_sha256)
    assert folder_sha256(repaired.folder) == whole.content_sha256
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fuseproof: warning: The cached checkpoint")
    assert captured.err.count("\n") == len(repaired.warnings) == 1


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), ValueError("bug")], ids=["interrupt", "bug"])
def test_a_failed_build_leaves_nothing_behind(fault: BaseException, tmp_path: Path) -> None:
    fake_recipe.fault = fault
    with pytest.raises(type(fault)):
        ensure_cached(RECIPE, tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "link", "dangling-link"])
def test_an_entry_that_is_no_folder_is_named_and_kept(kind: str, tmp_path: Path) -> None:
    entry = tmp_path / "cache" / entry_name(RECIPE)
    entry.parent.mkdir()
    if kind == "file":
        entry.write_text("mine")
    else:
        entry.symlink_to(tmp_path / "elsewhere")
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
    with pytest.raises(FuseproofError) as caught:
        ensure_cached(RECIPE, tmp_path / "cache")
    assert str(entry) in caught.value.message
    assert "Move it away" in str(caught.value.next_step)
    assert entry.is_symlink() or "mine" == entry.read_text()


def test_leftovers_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    leftover = tmp_path / f".{entry_name(RECIPE)}.building-abc123"
    leftover.mkdir()
    ensure_cached(RECIPE, tmp_path)
    assert names_in(tmp_path) == [entry_name(RECIPE)]


def test_two_at_once_build_one_entry(tmp_path: Path) -> None:
    fake_recipe.meeting = threading.Barrier(2, timeout=0.3)  # broken by the one builder that waits in vain
    with ThreadPoolExecutor(2) as pool:
        states = sorted(found.state for found in pool.map(lambda _: ensure_cached(RECIPE, tmp_path), range(2)))
    assert states == ["built", "cached"]
    assert fake_recipe.met == []
    assert len(fake_recipe.builds) == 1


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    fake_recipe.fault = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FuseproofError, match=r"cannot be used to build longcat-image: No space left on device\.$"):
        ensure_cached(RECIPE, tmp_path)
    assert names_in(tmp_path) == []


def test_an_unwritable_cache_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FuseproofError) as caught:
        ensure_cached(RECIPE, tmp_path / "file" / "cache")
    assert str(tmp_path / "file" / "cache") in caught.value.message
    assert CACHE_VARIABLE in str(caught.value.next_step)


@pytest.mark.parametrize(
    ("expected", "environment"),
    [("/x/y", {CACHE_VARIABLE: "/x/y"}), (str(Path.cwd() / "rel"), {CACHE_VARIABLE: "rel"})],
    ids=["absolute", "relative"],
)
def test_the_variable_overrides_the_cache_folder(expected: str, environment: dict[str, str]) -> None:
    assert expected == str(cache_directory(environment))


@pytest.mark.parametrize("environment", [{}, {CACHE_VARIABLE: ""}], ids=["unset", "empty"])
def test_the_cache_folder_is_the_users_own_by_default(environment: dict[str, str]) -> None:
    assert cache_directory(environment).name == "fuseproof"


# Resolving


def test_an_embedded_name_resolves_through_the_cache(fake_cache: Path) -> None:
    assert find_embedded("longcat-image") is None
    built = resolve_model("embedded:longcat-image", None)
    cached = resolve_model("embedded:longcat-image", None)
    assert (built.source, built.cache_state, cached.cache_state) == ("embedded", "built", "cached")
    assert (built.requested, built.revision) == ("embedded:longcat-image", None)
    assert built.folder == fake_cache / entry_name(RECIPE) / "model"
    assert built.content_sha256 == cached.content_sha256 == folder_sha256(built.folder)


def test_a_packaged_folder_comes_first(fake_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = tmp_path / "packaged" / "longcat-image"
    packaged.mkdir(parents=True)
    (packaged / "model_index.json").write_bytes(b"trained")
    (packaged / MARKER).write_text(Marker(weights="trained").to_json())
    index_packaged(packaged.parent)
    monkeypatch.setattr(embedded, "PACKAGED_MODELS", packaged.parent)
    resolved = resolve_model("embedded:longcat-image", None)
    assert (resolved.folder, resolved.cache_state) == (packaged, "packaged")
    assert resolved.content_sha256 == folder_sha256(packaged)
    assert not fake_cache.exists()


def test_a_local_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    resolved = resolve_model(str(tmp_path), None)
    assert (resolved.folder, resolved.source, resolved.cache_state) == (tmp_path, "local", None)


@pytest.mark.parametrize("path", ["", "./no/such/folder", "/no/such/folder", "a b", "https://example.org/x", "x:y"])
def test_a_path_that_is_nothing_is_one_sentence(path: str) -> None:
    with pytest.raises(UsageError, match="is neither an existing folder") as caught:
        resolve_model(path, None)
    assert repr(path) in caught.value.message


@pytest.mark.parametrize(
    ("tiny", "published", "path"),
    [
        ("longcat-image", "meituan-longcat/LongCat-Image", "longcat-image"),
        ("longcat-image-edit", "meituan-longcat/LongCat-Image-Edit", "longcat-image-edit"),
        ("longcat-image-edit-turbo", "meituan-longcat/LongCat-Image-Edit-Turbo", "LongCat-Image-Edit-Turbo"),
    ],
)
def test_the_name_of_a_family_is_answered_with_what_has_that_family(tiny: str, published: str, path: str) -> None:
    with pytest.raises(FuseproofError) as caught:
        resolve_model(path, None)
    expected = (
        f"Try embedded:{tiny} (tiny, {embedded_weights(tiny)} weights) or {published} (the published model), "
        "or add --load-format dummy for its released geometry."
    )
    assert expected == caught.value.next_step


def test_an_unknown_embedded_name_lists_what_exists() -> None:
    with pytest.raises(UsageError, match=r"'flux'.*embedded:longcat-image"):
        resolve_model("embedded:flux", None)


@pytest.mark.parametrize("path", ["embedded:longcat-image", "."])
def test_a_revision_belongs_to_hub_repositories_only(path: str) -> None:
    with pytest.raises(UsageError, match="--revision v1 cannot be used"):
        resolve_model(path, "v1")


# Writing elsewhere


@pytest.mark.parametrize("is_cached", [False, True], ids=["built", "copied"])
def test_a_checkpoint_can_be_written_anywhere(is_cached: bool, fake_cache: Path, tmp_path: Path) -> None:
    if is_cached:
        resolve_model("embedded:longcat-image", None)
    fake_recipe.builds.clear()
    destination = tmp_path / "new parent" / "model"
    assert write_embedded("longcat-image", destination) == folder_sha256(destination)
    assert names_in(destination) == ["model_index.json", "vae"]
    assert names_in(destination.parent) == ["model"]
    assert len(fake_recipe.builds) == (0 if is_cached else 1)


def test_an_empty_folder_may_be_written_to(fake_cache: Path, tmp_path: Path) -> None:
    destination = tmp_path / "empty"
    destination.mkdir()
    write_embedded("longcat-image", destination)
    assert names_in(destination) == ["model_index.json", "vae"]


def test_a_folder_in_use_is_refused_untouched(fake_cache: Path, tmp_path: Path) -> None:
    destination = tmp_path / "used"
    destination.mkdir()
    (destination / "mine").write_bytes(b"")
    with pytest.raises(UsageError, match="is not empty"):
        write_embedded("longcat-image", destination)
    with pytest.raises(UsageError, match="is a file"):
        write_embedded("longcat-image", destination / "mine")
    assert names_in(destination) == ["mine"]


def test_a_failed_write_leaves_nothing_behind(fake_cache: Path, tmp_path: Path) -> None:
    fake_recipe.fault = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FuseproofError, match="cannot be written: No space left on device"):
        write_embedded("longcat-image", tmp_path / "parent" / "model")
    assert names_in(tmp_path / "parent") == []


# The real checkpoint


BUILD_AND_LOAD = """
import sys
from pathlib import Path
import torch
from fuseproof.pipelines.checkpoint_marker import MARKER, Marker
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.tiny.longcat_image import build
state = torch.random.get_rng_state()
build(Path(sys.argv[1]))
assert torch.equal(state, torch.random.get_rng_state())
load_pipeline(check_checkpoint(Path(sys.argv[1])), dtype=torch.float32, device=torch.device("cpu"))
print(folder_sha256(Path(sys.argv[1])))
"""


@pytest.mark.slow_process
def test_two_processes_build_the_same_bytes_and_print_nothing(
    tiny_longcat_model: ResolvedModel, tmp_path: Path
) -> None:
    process = subprocess.run(
        [sys.executable, "-c", BUILD_AND_LOAD, str(tmp_path / "again")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "3", "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout.strip() == tiny_longcat_model.content_sha256
    assert process.stderr == ""


def test_the_folder_has_the_real_layout(tiny_longcat_folder: Path) -> None:
    assert sorted(path.relative_to(tiny_longcat_folder).as_posix() for path in tiny_longcat_folder.rglob("*.*")) == [
        "fuseproof.json",
        "model_index.json",
        "scheduler/scheduler_config.json",
        "text_encoder/config.json",
        "text_encoder/generation_config.json",
        "text_encoder/model.safetensors",
        "tokenizer/chat_template.jinja",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "transformer/config.json",
        "transformer/diffusion_pytorch_model.safetensors",
        "vae/config.json",
        "vae/diffusion_pytorch_model.safetensors",
    ]
    assert {path.stat().st_mode & 0o777 for path in tiny_longcat_folder.rglob("*") if path.is_file()} == {0o644}


def test_the_geometry_is_narrow_but_real(tiny_longcat_folder: Path) -> None:
    checkpoint = check_checkpoint(tiny_longcat_folder)
    transformer, vae, scheduler = (checkpoint.config(name) for name in ("transformer", "vae", "scheduler"))
    assert (transformer["num_attention_heads"], transformer["attention_head_dim"]) == (2, 128)
    assert (transformer["num_layers"], transformer["num_single_layers"]) == (2, 4)
    assert transformer["axes_dims_rope"] == [16, 56, 56]
    assert (vae["latent_channels"], len(vae["block_out_channels"])) == (16, 4)
    assert (scheduler["use_dynamic_shifting"], scheduler["base_shift"], scheduler["max_shift"]) == (True, 0.5, 1.15)
    assert checkpoint.weight_bytes < 40e6


def picture(pipeline: Any, prompt: str, *, renormalise: bool = True, seed: int = 42) -> Any:
    """128x128 pixels after 4 steps at guidance 4.5, as uint8 [128, 128, 3]."""
    images = pipeline(
        prompt,
        height=128,
        width=128,
        num_inference_steps=4,
        guidance_scale=4.5,
        generator=torch.Generator("cpu").manual_seed(seed),
        enable_cfg_renorm=renormalise,
        enable_prompt_rewrite=False,
        output_type="np",
    ).images
    return (images[0] * 255).round().astype(np.uint8)


@pytest.fixture(scope="module")
def pipeline(tiny_longcat_folder: Path) -> Iterator[Any]:
    """The loaded checkpoint on one thread, which another busy process cannot slow down twentyfold."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load_pipeline(check_checkpoint(tiny_longcat_folder), dtype=torch.float32, device=torch.device("cpu"))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def panda(pipeline: Any) -> Any:
    return picture(pipeline, "a red panda")


@pytest.mark.parametrize("prompt", ["a bowl of fruit on a table", "a red pandb", "夜晚的城市 🌃"])
def test_another_prompt_changes_more_than_half_of_the_values(prompt: str, pipeline: Any, panda: Any) -> None:
    assert np.mean(picture(pipeline, prompt) != panda) > 0.5


def test_renormalisation_changes_more_than_a_tenth_of_the_values(pipeline: Any, panda: Any) -> None:
    assert np.mean(picture(pipeline, "a red panda", renormalise=False) != panda) > 0.1


def test_another_seed_changes_the_picture(pipeline: Any, panda: Any) -> None:
    assert np.mean(picture(pipeline, "a red panda", seed=43) != panda) > 0.9


def test_the_picture_has_structure(panda: Any) -> None:
    values = panda.astype(np.float64)
    spread = values.std(axis=(0, 1))
    steps_to_neighbour = np.abs(np.diff(values, axis=1)).mean(axis=(0, 1))
    assert panda.shape == (128, 128, 3)
    assert np.mean((panda == 0) | (panda == 255)) < 0.15  # hardly clipped
    assert spread.min() > 15  # not flat
    assert (steps_to_neighbour / spread).max() < 0.25  # smooth: white noise has 1.13
