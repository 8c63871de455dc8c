"""Desks: the real program around a model that is a stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuseproof.cli import hash_seed
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.embedded import ResolvedModel
from fuseproof.pipelines.families import LONGCAT_IMAGE
from tests.cli.desk import Desk
from tests.cli.fake_session import install


@pytest.fixture
def real_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Desk:
    """The real resolver and checks; only loading is a stand-in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.delenv(hash_seed.MARKER, raising=False)
    return Desk(tmp_path, install(monkeypatch), capsys)


@pytest.fixture
def desk(real_models: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A model that is always found and whole."""

    def resolve(model_path: str, revision: str | None) -> ResolvedModel:
        return ResolvedModel(
            folder=Path("/models/fake"),
            source="embedded",
            requested=model_path,
            revision=revision,
            content_sha256="a" * 64,
            cache_state="cached",
        )

    from fuseproof.cli import generation

    monkeypatch.setattr(generation, "resolve_model", resolve)
    monkeypatch.setattr(generation, "check_checkpoint", lambda folder, *_: Checkpoint(folder, LONGCAT_IMAGE, {}, {}))
    return real_models
