"""Where a training run keeps its files, and the checkpoint folder that comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

LARGEST_PACKAGE_BYTES = 25_000_000


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


def as_stored(model: Any) -> Any:
    """The model with every weight rounded to bf16, as it is packaged, in eval mode; changed in place."""
    return model.to(torch.bfloat16).eval()


def write_checkpoint(
    folder: Path, vae: Any, text_encoder: Any, transformer: Any, tokenizer: Any, scheduler: Any
) -> int:
    """Write a LongCat-Image checkpoint, weights in bf16; return the bytes of its safetensors.

    A ValueError says where they are more than a package may hold.
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
    pipeline.save_pretrained(folder)
    stored = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    if stored > LARGEST_PACKAGE_BYTES:
        raise ValueError(f"{folder} holds {stored} bytes of weights; {LARGEST_PACKAGE_BYTES} are the most")
    return stored
