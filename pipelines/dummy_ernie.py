"""ERNIE-Image on dummy weights: the classes, and what makes random ones behave. It has no prompt enhancer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fuseproof.pipelines.dummy_geometry import DummyGeometry
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.tiny.ernie_image import (
    LONGEST_PROMPT,
    byte_level_tokenizer,
    point_velocity_along_latents,
    shifted_scheduler,
    transformer_gain,
    vae_gain,
)
from fuseproof.pipelines.tiny.weights import Gain

GAINS: Mapping[str, Gain] = {
    "transformer": transformer_gain,
    "text_encoder": lambda name: 1.0,
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


def other_components(_family: Family) -> dict[str, Any]:
    """What the pipeline takes besides models."""
    return {"scheduler": shifted_scheduler(), "tokenizer": byte_level_tokenizer(LONGEST_PROMPT)}


def _transformer(geometry: DummyGeometry) -> Any:
    from diffusers import ErnieImageTransformer2DModel

    return ErnieImageTransformer2DModel(**geometry.transformer)


def _text_encoder(geometry: DummyGeometry) -> Any:
    from transformers import Mistral3Config, Mistral3Model

    tokenizer = byte_level_tokenizer(LONGEST_PROMPT)
    special = {
        "model_type": "ministral3",
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "tie_word_embeddings": False,
    }
    config = Mistral3Config(
        text_config=copy.deepcopy(dict(geometry.text_model)) | special,
        vision_config=dict(geometry.vision_model) | {"model_type": "pixtral"},
        image_token_index=tokenizer.pad_token_id,
    )
    return Mistral3Model(config)


def _vae(geometry: DummyGeometry) -> Any:
    from diffusers import AutoencoderKLFlux2

    arguments = dict(geometry.vae)
    stages = len(arguments["block_out_channels"])
    return AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * stages, up_block_types=("UpDecoderBlock2D",) * stages, **arguments
    )
