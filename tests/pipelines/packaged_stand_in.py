"""A packaged family of checkpoints as small as can be: one whole, one in parts that shares its weights."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import save

from fuseproof.pipelines.checkpoint_marker import MARKER, Marker
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.packaged_models import index_packaged
from fuseproof.pipelines.packaged_parts import PARTS, Parts, put_together

BASE, PART = "longcat-image", "longcat-image-edit"
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


def write_base(models: Path) -> Path:
    """``models/longcat-image``: weights, a vocabulary in text, a card and a marker that calls them trained."""
    folder = models / BASE
    (folder / "transformer").mkdir(parents=True)
    (folder / "tokenizer").mkdir()
    (folder / WEIGHTS).write_bytes(save({"w": np.arange(4, dtype=np.float32)}))
    (folder / "tokenizer" / "merges.txt").write_text("a b\n")
    (folder / "model_index.json").write_text("{}\n")
    (folder / "README.md").write_text("# A card\n")
    (folder / MARKER).write_text(Marker(weights="trained").to_json())
    return folder


def write_part(models: Path) -> Path:
    """``models/longcat-image-edit``, which adds its own marker and index to the base's files."""
    folder = models / PART
    folder.mkdir()
    (folder / "model_index.json").write_text('{"edits": true}\n')
    (folder / MARKER).write_text(Marker(PART, weights="trained").to_json())
    with TemporaryDirectory() as trial:
        put_together(folder, models / BASE, {}, Path(trial))
        content_sha256 = folder_sha256(Path(trial))
    (folder / PARTS).write_text(Parts(BASE, {}, content_sha256).to_json())
    return folder


def write_none(models: Path) -> Path:
    """No packaged checkpoint at all, and an index that says so: what every embedded name then means is random."""
    models.mkdir(parents=True)
    index_packaged(models)
    return models


def write_packaged(models: Path) -> Path:
    """Both of them, and their index beside ``models``."""
    write_base(models)
    write_part(models)
    index_packaged(models)
    return models
