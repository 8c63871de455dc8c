"""The tiny random checkpoints, built once a session through the resolver, whatever is packaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.pipelines import embedded
from fuseproof.pipelines.embedded import ResolvedModel, resolve_model
from fuseproof.pipelines.model_cache import CACHE_VARIABLE
from tests.pipelines.packaged_stand_in import write_none


@pytest.fixture(scope="session")
def tiny_longcat_model(tmp_path_factory: pytest.TempPathFactory) -> ResolvedModel:
    """What ``resolve_model("embedded:longcat-image")`` returns on first use, in a cache folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("model-cache")))
        patch.setattr(embedded, "PACKAGED_MODELS", write_none(tmp_path_factory.mktemp("none") / "embedded_models"))
        return resolve_model("embedded:longcat-image", None)


@pytest.fixture(scope="session")
def tiny_longcat_folder(tiny_longcat_model: ResolvedModel) -> Path:
    """The folder of the tiny checkpoint. Read only: copy it before changing it."""
    return tiny_longcat_model.folder


@pytest.fixture(scope="session")
def tiny_edit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``embedded:longcat-image-edit``. Read only: copy it before changing it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("edit-cache")))
        patch.setattr(embedded, "PACKAGED_MODELS", write_none(tmp_path_factory.mktemp("none") / "embedded_models"))
        return resolve_model("embedded:longcat-image-edit", None).folder


@pytest.fixture(scope="session")
def tiny_ernie_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``embedded:ernie-image``. Read only: copy it before changing it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("ernie-cache")))
        return resolve_model("embedded:ernie-image", None).folder


@pytest.fixture(scope="session")
def tiny_wan22_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``embedded:wan2.2-ti2v-5b``. Read only: copy it before changing it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("wan22-cache")))
        return resolve_model("embedded:wan2.2-ti2v-5b", None).folder


@pytest.fixture(scope="session")
def tiny_wan21_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``embedded:wan2.1-t2v-1.3b``. Read only: copy it before changing it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("wan21-cache")))
        return resolve_model("embedded:wan2.1-t2v-1.3b", None).folder


@pytest.fixture(scope="session")
def tiny_longlive2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``embedded:longlive2``. Read only: copy it before changing it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("longlive2-cache")))
        return resolve_model("embedded:longlive2", None).folder
