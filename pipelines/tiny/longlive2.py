"""Builds a small LongLive 2: the parts of the small Wan 2.2 TI2V 5B, in the layout that LongLive 2 is published in.

What is small, and what makes random weights behave, is :mod:`fuseproof.pipelines.tiny.wan`'s. The pipeline and its
transformer stand in ``model_index.json`` under diffusers' name, as in the published one, though diffusers has neither.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from fuseproof.pipelines.checkpoint_marker import MARKER, RANDOM, Marker
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.tiny.wan import (
    flow_scheduler,
    letter_tokenizer,
    small_text_encoder,
    small_transformer,
    small_vae,
)

FLOW_SHIFT = 5.0
INDEX = "model_index.json"
TRANSFORMER_CLASS = "LongLive2Transformer3DModel"


def build(folder: Path) -> None:
    """Write the small LongLive 2 into ``folder`` (created if needed): float32 safetensors, under 20 MB."""
    silence_libraries()
    from fuseproof.pipelines.longlive2_model import as_longlive2
    from fuseproof.pipelines.longlive2_pipeline import LongLive2Pipeline

    # The constructors draw throw-away weights from torch's global generator; the caller's state must not notice.
    with torch.random.fork_rng(devices=[]):
        tokenizer = letter_tokenizer()
        vae = small_vae(is_22=True)
        pipeline = LongLive2Pipeline(
            tokenizer=tokenizer,
            text_encoder=small_text_encoder(tokenizer),
            vae=vae,
            scheduler=flow_scheduler(FLOW_SHIFT),
            transformer=as_longlive2(small_transformer(vae.config.z_dim)),
        )
    pipeline.save_pretrained(folder)
    _name_as_published(folder / INDEX)
    (folder / MARKER).write_text(Marker("longlive2", weights=RANDOM).to_json(), encoding="utf-8")


def _name_as_published(index: Path) -> None:
    """diffusers writes where it found a class; who loads the folder elsewhere finds it by the library's name."""
    components = json.loads(index.read_text(encoding="utf-8"))
    components["transformer"] = ["diffusers", TRANSFORMER_CLASS]
    index.write_text(json.dumps(components, indent=2, sort_keys=True) + "\n", encoding="utf-8")
