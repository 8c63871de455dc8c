"""A small LongLive 2 and what a clip is made of, for tests of its model and of its loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.pipelines.dummy_weights import cast
from fuseproof.pipelines.longlive2_model import LongLive2Transformer3DModel, as_longlive2
from fuseproof.pipelines.longlive2_steps import ChunkSteps, denoise, draw_noise
from fuseproof.pipelines.tiny.wan import small_transformer

CPU = torch.device("cpu")
CHANNELS = 48
HEIGHT, WIDTH = 4, 6
TOKENS = (HEIGHT // 2) * (WIDTH // 2)
TEXT_TOKENS = 5


def small_longlive2(dtype: torch.dtype) -> LongLive2Transformer3DModel:
    """Two blocks with the released heads, in ``dtype`` as a model is loaded: some modules stay in fp32."""
    transformer = small_transformer(CHANNELS)
    cast(transformer, dtype)
    # Only parameters follow the dtype when a model is loaded; the rotary tables stay as they were computed.
    transformer.rope = type(transformer.rope)(128, (1, 2, 2), 1024)
    return as_longlive2(transformer)


@dataclass(frozen=True)
class Clip:
    """What one clip is made of: ``noise`` [B, 48, F, 4, 6] fp32, ``text`` [B, 5, 64], ``image`` [B, 48, 1, 4, 6]."""

    noise: torch.Tensor
    text: torch.Tensor
    image: torch.Tensor | None


def clip(chunks: int, dtype: torch.dtype, *, has_image: bool = False, batch: int = 1, seed: int = 0) -> Clip:
    """Seeded inputs of a clip of ``chunks`` chunks."""
    generator = torch.Generator().manual_seed(seed)
    noise = draw_noise((batch, CHANNELS, 8 * chunks, HEIGHT, WIDTH), generator, CPU)
    text = torch.randn(batch, TEXT_TOKENS, 64, generator=generator).to(dtype)
    image = torch.randn(batch, CHANNELS, 1, HEIGHT, WIDTH, generator=generator)
    return Clip(noise, text, image if has_image else None)


def new_caches(transformer: LongLive2Transformer3DModel, made_of: Clip, *, frames: int | None = None) -> Any:
    """Memory for the clip, or for ``frames`` latent frames of its size."""
    batch, _, clip_frames, height, width = made_of.noise.shape
    return transformer.new_caches(batch, height, width, CPU, transformer.dtype, frames or clip_frames)


def native(
    transformer: LongLive2Transformer3DModel, made_of: Clip, caches: Any = None, num_inference_steps: int = 4
) -> torch.Tensor:
    """The clip's latents by the native loop."""
    steps = ChunkSteps(num_inference_steps, CPU, made_of.noise.shape[0])
    caches = caches or new_caches(transformer, made_of)
    return torch.cat(list(denoise(transformer, made_of.noise, made_of.text, made_of.image, steps, caches)), dim=2)
