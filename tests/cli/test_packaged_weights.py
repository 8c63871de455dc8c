"""A packaged checkpoint as the program calls it: trained in dump and profile, without a word of random or dummy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fuseproof.cli.generate_requests import NOISE_WRITTEN
from fuseproof.pipelines import embedded
from fuseproof.pipelines.checkpoint_marker import MARKER, RANDOM_WARNING, Marker
from fuseproof.pipelines.embedded import write_embedded
from fuseproof.pipelines.packaged_models import INDEX, index_packaged
from tests.cli.desk import SMALL, Desk
from tests.pipelines.test_packaged_models import close_folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real checkpoint; read only."""
    folder = tmp_path_factory.mktemp("built") / "longcat-image"
    write_embedded("longcat-image", folder)
    return folder


@pytest.fixture
def packaged(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a packaged longcat-image: real files, whose random weights call themselves trained."""
    folder = tmp_path / "embedded_models" / "longcat-image"
    shutil.copytree(built, folder)
    (folder / MARKER).write_text(Marker(weights="trained").to_json())
    index_packaged(folder.parent)
    monkeypatch.setattr(embedded, "PACKAGED_MODELS", folder.parent)
    return folder


@pytest.mark.parametrize("kind", ["trained", "random", "given", "dummy"])
def test_what_the_weights_are_has_one_word(kind: str, packaged: Path, real_models: Desk) -> None:
    """As a folder, but for the packaged ones; ``given``: the folder says nothing of them."""
    model = {"trained": "embedded:longcat-image", "dummy": "longcat-image"}.get(kind, str(packaged))
    if kind in ("random", "given"):
        (packaged / MARKER).write_text(Marker(weights="random" if kind == "random" else None).to_json())
    flags = ["--load-format=dummy"] if kind == "dummy" else []
    assert 0 == real_models.run(f"--model-path={model}", "--prompt=a", *SMALL, "--perf-dump-path=p.json", *flags)
    dump = real_models.dump()
    assert kind == dump["config"]["weights_kind"]
    assert (kind == "random") == (RANDOM_WARNING in dump["warnings"]) == (RANDOM_WARNING in real_models.err)
    assert NOISE_WRITTEN not in dump["warnings"]


def test_damaged_weights_stop_a_request_before_anything_is_opened(packaged: Path, real_models: Desk) -> None:
    (packaged / "vae" / "config.json").write_text("{}")
    assert 1 == real_models.run("--prompt=a", *SMALL, "--perf-dump-path=p.json")
    assert "vae/config.json, a part of embedded:longcat-image, has SHA-256" in real_models.err
    assert "next: Install fuseproof again" in real_models.err
    assert real_models.session.opened_with is None


def test_a_pipe_in_the_place_of_the_index_stops_a_request_and_does_not_hang_it(
    packaged: Path, real_models: Desk
) -> None:
    index = packaged.parent.with_name(INDEX)
    index.unlink()
    os.mkfifo(index)
    assert 1 == real_models.run("--prompt=a", *SMALL)
    assert f"{INDEX}, which lists the packaged weights, cannot be read: it is a pipe or a device" in real_models.err
    assert real_models.session.opened_with is None


def test_a_folder_that_cannot_be_read_stops_a_request(
    packaged: Path, real_models: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_folder(packaged / "vae", monkeypatch)
    assert 1 == real_models.run("--prompt=a", *SMALL)
    assert "vae/config.json, a part of embedded:longcat-image, cannot be read (Permission denied)." in real_models.err
    assert real_models.session.opened_with is None
