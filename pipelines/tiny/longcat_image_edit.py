"""Builds the small editing checkpoints, LongCat-Image-Edit and its Turbo: the real classes and layout, offline.

Made of the parts of the small LongCat-Image (:mod:`fuseproof.pipelines.tiny.longcat_image`), which was built with a VAE
encoder and a vision tower for this. What is added: the ``text_processor`` folder with Qwen2-VL's image settings, and a
``fuseproof.json`` that says which of the two families it is and shrinks the canvas from 1 megapixel to 256 x 256, so
that a request takes seconds on a CPU. The Turbo has the same weights; what differs is its name, and so its defaults.

``model_index.json`` names the processor as the published checkpoint does. diffusers alone cannot load it without
torchvision, like the published one; fuseproof can (:mod:`fuseproof.pipelines.vision_processor`).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fuseproof.pipelines.checkpoint_marker import MARKER, RANDOM, Marker
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.tiny.longcat_image import (
    byte_level_tokenizer,
    dynamic_scheduler,
    small_text_encoder,
    small_transformer,
    small_vae,
)
from fuseproof.pipelines.vision_processor import released_text_processor

CANVAS_PIXELS = 256 * 256


def build(folder: Path) -> None:
    """Write the small LongCat-Image-Edit into ``folder`` (created if needed): float32 safetensors, about 37 MB."""
    build_family(folder, "longcat-image-edit")


def build_family(folder: Path, family: str) -> None:
    """Write the small checkpoint of ``family``, one of the two editing families, into ``folder``."""
    silence_libraries()
    from diffusers import LongCatImageEditPipeline

    # The constructors draw throw-away weights from torch's global generator; the caller's state must not notice.
    with torch.random.fork_rng(devices=[]):
        tokenizer = byte_level_tokenizer()
        processor = released_text_processor(tokenizer)
        pipeline = LongCatImageEditPipeline(
            scheduler=dynamic_scheduler(),
            vae=small_vae(),
            text_encoder=small_text_encoder(tokenizer),
            tokenizer=tokenizer,
            text_processor=processor,
            transformer=small_transformer(),
        )
    # The processor is saved by hand, as the published checkpoint lays it out, and its slot left to the next lines.
    pipeline.register_modules(text_processor=None)
    pipeline._optional_components = ["text_processor"]
    pipeline.save_pretrained(folder)
    processor.image_processor.save_pretrained(folder / "text_processor")
    _name_processor(folder / "model_index.json")
    (folder / MARKER).write_text(Marker(family, CANVAS_PIXELS, RANDOM).to_json(), encoding="utf-8")


def _name_processor(index_path: Path) -> None:
    """Saving would name our own subclass, which nobody else could load."""
    index = json.loads(index_path.read_text(encoding="utf-8"))
    index["text_processor"] = ["transformers", "Qwen2VLProcessor"]
    index_path.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
