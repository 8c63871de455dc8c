"""``--load-format dummy``: a family's real pipeline on seeded random weights, made where it will run.

No file is read and nothing is downloaded. Models are built on the meta device, counted, and refused while nothing is
allocated yet if they do not fit; then each gets its memory on the target device and is drawn there
(:mod:`fuseproof.pipelines.dummy_weights`). The gains that make random weights behave like a model are those of the tiny
checkpoint (:mod:`fuseproof.pipelines.tiny.longcat_image`): they do not depend on width, so 50 steps stay finite in bf16
and the picture depends on seed and prompt. The tokenizer is the tiny checkpoint's too, one token a byte: prompts are
padded to their fixed length all the same, and only the chat template around them is longer than with real merges.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fuseproof.errors import FuseproofError
from fuseproof.pipelines import memory
from fuseproof.pipelines.dummy_geometry import DummyGeometry, geometry_of
from fuseproof.pipelines.dummy_weights import materialise
from fuseproof.pipelines.families import Family
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.tiny.longcat_image import (
    byte_level_tokenizer,
    dynamic_scheduler,
    point_velocity_along_latents,
    transformer_gain,
    vae_gain,
)
from fuseproof.pipelines.tiny.weights import Gain
from fuseproof.pipelines.vision_processor import released_text_processor

GIB = 1024**3
META = torch.device("meta")

GAINS: Mapping[str, Gain] = {
    "transformer": transformer_gain,
    "text_encoder": lambda name: 1.0,
    "vae": vae_gain,
}


def load_dummy_pipeline(
    family: Family, *, dtype: torch.dtype, device: torch.device, seed: int = 0, geometry: DummyGeometry | None = None
) -> Any:
    """The diffusers pipeline of ``family`` in eval mode, every parameter drawn on ``device`` in ``dtype``.

    ``seed`` selects the weights; the same seed, device and dtype give the same bits. ``geometry`` replaces the released
    sizes, for tests. torch's global generators are not touched. A FuseproofError says how much memory is missing,
    before any is taken.
    """
    silence_libraries()
    import diffusers

    tokenizer = byte_level_tokenizer()
    models = build_on_meta(geometry or geometry_of(family), tokenizer)
    needed = sum(parameter.numel() for model in models.values() for parameter in model.parameters()) * dtype.itemsize
    free = memory.free_bytes(device)
    if needed > free:
        raise _too_little_memory(family, needed, dtype, device, f"only {free / GIB:.1f} GiB are free")
    try:
        for name, model in models.items():
            materialise(model, name, dtype=dtype, device=device, seed=seed, gain=GAINS[name])
    except torch.OutOfMemoryError as error:
        raise _too_little_memory(family, needed, dtype, device, "the allocation failed") from error
    point_velocity_along_latents(models["transformer"])
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # drawing belongs to the load time, not to what runs next
    pipeline = getattr(diffusers, family.pipeline_class)(
        scheduler=dynamic_scheduler(),
        tokenizer=tokenizer,
        text_processor=released_text_processor(tokenizer) if family.takes_image else None,
        **models,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def build_on_meta(geometry: DummyGeometry, tokenizer: Any) -> dict[str, torch.nn.Module]:
    """Every model component of ``geometry`` on the meta device, in eval mode: shapes without memory."""
    builders: dict[str, Callable[[], Any]] = {
        "transformer": lambda: _transformer(geometry),
        "text_encoder": lambda: _text_encoder(geometry, tokenizer),
        "vae": lambda: _vae(geometry),
    }
    with META:
        return {name: build().eval() for name, build in builders.items()}


def _transformer(geometry: DummyGeometry) -> Any:
    from diffusers import LongCatImageTransformer2DModel

    arguments = dict(geometry.transformer)
    return LongCatImageTransformer2DModel(**arguments | {"axes_dims_rope": list(arguments["axes_dims_rope"])})


def _text_encoder(geometry: DummyGeometry, tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    token = tokenizer.convert_tokens_to_ids
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


def _too_little_memory(
    family: Family, needed: int, dtype: torch.dtype, device: torch.device, found: str
) -> FuseproofError:
    name = str(dtype).removeprefix("torch.")
    half = " --dtype bfloat16 needs half of it." if dtype == torch.float32 else ""
    return FuseproofError(
        f"the dummy weights of {family.title} need {needed / GIB:.1f} GiB in {name} on {device}, and {found}.",
        next_step=f"Use a device with more memory, or --model-path embedded:{family.name}, which is small.{half}",
    )
