"""Where a training run keeps its files, and the checkpoint folder that comes out of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.parts import TRAINING

LARGEST_PACKAGE_BYTES = 25_000_000
PLACES = ("_name_or_path", "is_local", "local_files_only")
"""Keys with which diffusers and transformers note where a part was read from."""


@dataclass(frozen=True)
class Run:
    """The folder of one training run."""

    folder: Path

    def state(self, stage: str) -> Path:
        """Everything a stage needs to go on."""
        return self.folder / "state" / f"{stage}.pt"

    @property
    def curves(self) -> Path:
        """Loss curves."""
        return self.folder / "curves"

    @property
    def vae(self) -> Path:
        """The finished VAE in diffusers' layout, as packaged."""
        return self.folder / "parts" / "vae"

    @property
    def checkpoint(self) -> Path:
        """The whole checkpoint in the layout of LongCat-Image."""
        return self.folder / "longcat-image"

    @property
    def models(self) -> Path:
        """What the stages ``edit`` and ``turbo`` leave, in the layout of the package (:mod:`training.parts`)."""
        return self.folder / "models"


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """An empty folder to fill, which then stands in the place of ``folder``; that one stays where filling fails."""
    new, old = (folder.with_name(folder.name + ending) for ending in (".new", ".old"))
    for left in (new, old):
        shutil.rmtree(left, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def as_stored(model: Any) -> Any:
    """The model with every weight rounded to bf16, as it is packaged, in eval mode; changed in place."""
    return model.to(torch.bfloat16).eval()


def write_checkpoint(
    folder: Path,
    vae: Any,
    text_encoder: Any,
    transformer: Any,
    tokenizer: Any,
    scheduler: Any,
    progress: Mapping[str, Any],
) -> int:
    """Write a LongCat-Image checkpoint, weights in bf16, and how far it is; return the bytes of its safetensors.

    It is whole or the one before it. A ValueError says where it is more than a package may hold.
    """
    from diffusers import LongCatImagePipeline

    pipeline = LongCatImagePipeline(
        scheduler=scheduler,
        vae=as_stored(vae),
        text_encoder=as_stored(text_encoder),
        tokenizer=tokenizer,
        text_processor=None,
        transformer=as_stored(transformer),
    )
    with replacing(folder) as new:
        pipeline.save_pretrained(new)
        _forget_where_it_was_read(new)
        (new / TRAINING).write_text(json.dumps(progress) + "\n", encoding="utf-8")
    stored = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    if stored > LARGEST_PACKAGE_BYTES:
        raise ValueError(f"{folder} holds {stored} bytes of weights; {LARGEST_PACKAGE_BYTES} are the most")
    return stored


def _forget_where_it_was_read(folder: Path) -> None:
    """Take out of the configurations what tells of the machine that trained them."""
    for path in sorted(folder.glob("*/*config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        kept = {key: value for key, value in config.items() if key not in PLACES}
        if kept != config:
            path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
