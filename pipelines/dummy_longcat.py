"""LongCat-Image and its editing models on dummy weights: the classes, and what makes random ones behave."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fuseproof.pipelines.dummy_geometry import DummyGeometry
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.tiny.longcat_image import (
    byte_level_tokenizer,
    dynamic_scheduler,
    point_velocity_along_latents,
    transformer_gain,
    vae_gain,
)
from fuseproof.pipelines.tiny.weights import Gain
from fuseproof.pipelines.vision_processor import released_text_processor

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


def other_components(family: Family) -> dict[str, Any]:
    """What the pipeline takes besides models."""
    tokenizer = byte_level_tokenizer()
    return {
        "scheduler": dynamic_scheduler(),
        "tokenizer": tokenizer,
        "text_processor": released_text_processor(tokenizer) if family.takes_image else None,
    }


def _transformer(geometry: DummyGeometry) -> Any:
    from diffusers import LongCatImageTransformer2DModel

    arguments = dict(geometry.transformer)
    return LongCatImageTransformer2DModel(**arguments | {"axes_dims_rope": list(arguments["axes_dims_rope"])})


def _text_encoder(geometry: DummyGeometry) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    token = byte_level_tokenizer().convert_tokens_to_ids
    special = {
        "bos_token_id": token("<|endoftext|>"),
        "eos_token_id": token("<|im_end|>"),
        "pad_token_id": token("<|endoftext|>"),
    }
    config = Qwen2_5_VLConfig(
        text_config=copy.deepcopy(dict(geometry.text_model)) | special | {"tie_word_embeddings": False},
        vision_config=dict(geometry.vision_model),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        vision_token_id=token("<|vision_pad|>"),
        tie_word_embeddings=False,
    )
    return Qwen2_5_VLForConditionalGeneration(config)


def _vae(geometry: DummyGeometry) -> Any:
    from diffusers import AutoencoderKL

    arguments = dict(geometry.vae)
    stages = len(arguments["block_out_channels"])
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * stages,
        up_block_types=("UpDecoderBlock2D",) * stages,
        use_quant_conv=False,
        use_post_quant_conv=False,
        **arguments,
    )
