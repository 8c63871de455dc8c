"""Wan on dummy weights: the classes, and what makes random ones behave. Its text encoder has no image part."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fuseproof.pipelines.dummy_geometry import DummyGeometry
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.tiny.wan import (
    FLOW_SHIFT,
    align_pixels_of_a_patch,
    flow_scheduler,
    letter_tokenizer,
    point_velocity_along_latents,
    text_gain,
    transformer_gain,
    vae_gain,
)
from fuseproof.pipelines.tiny.weights import Gain

RELEASED_TEXT_HEAD_DIM = 64
GAINS: Mapping[str, Gain] = {
    "transformer": transformer_gain,
    "text_encoder": text_gain(RELEASED_TEXT_HEAD_DIM),
    "vae": vae_gain,
}


def builders(geometry: DummyGeometry) -> dict[str, Callable[[], Any]]:
    """What makes each model component, by its name."""
    return {
        "transformer": lambda: _transformer(geometry),
        "text_encoder": lambda: _text_encoder(geometry),
        "vae": lambda: _vae(geometry),
    }


def finish(models: Mapping[str, torch.nn.Module]) -> None:
    """What is changed in drawn ``models``, in place, so that a denoising loop denoises."""
    point_velocity_along_latents(models["transformer"])
    align_pixels_of_a_patch(models["vae"])


def other_components(family: Family) -> dict[str, Any]:
    """What the pipeline takes besides models."""
    return {"scheduler": flow_scheduler(FLOW_SHIFT[family.name]), "tokenizer": letter_tokenizer()}


def _transformer(geometry: DummyGeometry) -> Any:
    from diffusers import WanTransformer3DModel

    return WanTransformer3DModel(**geometry.transformer)


def _text_encoder(geometry: DummyGeometry) -> Any:
    from transformers import UMT5Config, UMT5EncoderModel

    tokenizer = letter_tokenizer()
    special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    return UMT5EncoderModel(UMT5Config(feed_forward_proj="gated-gelu", **geometry.text_model, **special))


def _vae(geometry: DummyGeometry) -> Any:
    from diffusers import AutoencoderKLWan

    return AutoencoderKLWan(**geometry.vae)
