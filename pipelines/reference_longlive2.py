"""LongLive 2 as plainly as it can be written: the reference that its native model must equal bit for bit.

diffusers has no LongLive 2, but it has all parts of it. This file runs diffusers' own blocks, embeddings, norms, rotary
tables, attention dispatch and scheduler (0.42.1), and adds only what makes the model causal:

- in self-attention, keys and values of clean frames stand before the chunk's own; they are kept in a Python list, one
  entry a frame, from which the first 8 (the sink) and the latest are picked until 32 frames are seen;
- rotary tables are those of the whole clip up to the chunk's last frame, of which the chunk's rows are taken;
- timesteps are told frame by frame, and what is made of them is repeated for each of the frame's tokens.

Nothing is kept between requests, the text is embedded and projected anew in every forward, and nothing here is shared
with :mod:`fuseproof.pipelines.longlive2_model` or its loop. Only what nobody sees is left out here as well, the pass
over the last chunk's clean latents: times of the two are those of equal work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from diffusers import UniPCMultistepScheduler
from diffusers.models.attention_dispatch import dispatch_attention_fn

CHUNK = 8
WINDOW = 32
SINK = 8
SHIFT = 5.0
NOISIEST = torch.tensor(0.999).item()

FrameMemory = list[torch.Tensor]
"""Keys, or values, of clean frames: one [B, tokens of a frame, heads, head channels] each, in the clip's order."""


@torch.no_grad()
def generate_reference(
    transformer: Any,
    noise: torch.Tensor,
    text: torch.Tensor,
    image: torch.Tensor | None = None,
    num_inference_steps: int = 4,
    step_finished: Callable[[], object] = lambda: None,
) -> torch.Tensor:
    """Clean latents [B, C, F, h, w] fp32 of a clip, from ``noise`` of that shape (F a multiple of 8).

    ``transformer`` is a ``WanTransformer3DModel`` or of a class made of it; its processors are exchanged meanwhile.
    ``text`` [B, text tokens, text channels] has its dtype; ``image`` [B, C, 1, h, w] fp32 begins the clip.
    """
    with _remembering(transformer) as memories:
        chunks = []
        for start in range(0, noise.shape[2], CHUNK):
            latents = noise[:, :, start : start + CHUNK].clone()
            kept = image if start == 0 else None
            latents = _denoise(transformer, latents, text, kept, start, num_inference_steps, step_finished)
            chunks.append(latents)
            if start + CHUNK == noise.shape[2]:
                break
            for memory in memories:
                memory.keeps_next = True
            _forward(transformer, latents, torch.zeros(len(latents), CHUNK, device=noise.device), text, start)
    return torch.cat(chunks, dim=2)


def _denoise(
    transformer: Any,
    latents: torch.Tensor,
    text: torch.Tensor,
    image: torch.Tensor | None,
    start: int,
    num_inference_steps: int,
    step_finished: Callable[[], object],
) -> torch.Tensor:
    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=SHIFT)
    unshifted = np.linspace(NOISIEST, 0, num_inference_steps, endpoint=False)
    scheduler.set_timesteps(sigmas=unshifted, device=latents.device)
    for t in scheduler.timesteps:
        told = torch.full((len(latents), CHUNK), float(t), device=latents.device)
        if image is not None:
            latents[:, :, :1] = image
            told[:, :1] = 0
        velocity = _forward(transformer, latents, told, text, start)
        latents = scheduler.step(velocity, t, latents, return_dict=False)[0]
        step_finished()
    if image is not None:
        latents[:, :, :1] = image
    return latents


def _forward(
    transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor, start: int
) -> torch.Tensor:
    """The velocity of a chunk: ``WanTransformer3DModel.forward`` with the chunk's place in the clip."""
    latents = latents.to(transformer.dtype)
    batch, _, frames, height, width = latents.shape
    _, rows, columns = transformer.config.patch_size
    tokens = (height // rows) * (width // columns)

    whole_clip = latents.new_empty(batch, 1, start + frames, height, width)
    rotary = tuple(table[:, start * tokens :] for table in transformer.rope(whole_clip))
    hidden = transformer.patch_embedding(latents).flatten(2).transpose(1, 2).contiguous()
    temb, modulation, embedded, _ = transformer.condition_embedder(
        timestep.flatten(), text, None, timestep_seq_len=frames
    )
    temb = temb.repeat_interleave(tokens, dim=1)
    modulation = modulation.unflatten(2, (6, -1)).repeat_interleave(tokens, dim=1)
    for block in transformer.blocks:
        hidden = block(hidden, embedded, modulation, rotary)

    shift, scale = (transformer.scale_shift_table.unsqueeze(0) + temb.unsqueeze(2)).unbind(2)
    hidden = (transformer.norm_out(hidden.float()) * (1 + scale) + shift).type_as(hidden)
    patches = transformer.proj_out(hidden).view(batch, frames, height // rows, width // columns, rows, columns, -1)
    velocity: torch.Tensor = patches.permute(0, 6, 1, 2, 4, 3, 5).reshape(batch, -1, frames, height, width)
    return velocity


@dataclass
class _Memory:
    """A self-attention's processor: that of diffusers, but for the clean frames that it remembers.

    The forward after ``keeps_next`` was set is remembered, frame by frame.
    """

    backend: Any
    keys: FrameMemory = field(default_factory=list)
    values: FrameMemory = field(default_factory=list)
    keeps_next: bool = False

    def __call__(
        self,
        attention: Any,
        hidden: torch.Tensor,
        _text: None,
        _mask: None,
        rotary: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        split = (attention.heads, -1)
        query = _turn(attention.norm_q(attention.to_q(hidden)).unflatten(2, split), *rotary)
        key = _turn(attention.norm_k(attention.to_k(hidden)).unflatten(2, split), *rotary)
        value = attention.to_v(hidden).unflatten(2, split)
        seen_keys = torch.cat([*_still_seen(self.keys), key], dim=1)
        seen_values = torch.cat([*_still_seen(self.values), value], dim=1)
        if self.keeps_next:
            self.keys += key.chunk(CHUNK, dim=1)
            self.values += value.chunk(CHUNK, dim=1)
            self.keeps_next = False
        out = dispatch_attention_fn(query, seen_keys, seen_values, backend=self.backend)
        projected: torch.Tensor = attention.to_out[0](out.flatten(2, 3))
        return projected


def _still_seen(frames: FrameMemory) -> FrameMemory:
    """The clean frames that a chunk sees: the sink and the latest, so that with its own there are 32 at most."""
    latest = WINDOW - CHUNK - SINK
    return frames if len(frames) <= SINK + latest else frames[:SINK] + frames[-latest:]


def _turn(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of neighbouring channels, the products in fp32, rounded to the dtype of ``heads``."""
    first, second = heads[..., 0::2], heads[..., 1::2]
    cosine, sine = cosine[..., 0::2], sine[..., 0::2]
    turned = torch.stack([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    return turned.flatten(-2).type_as(heads)


@contextmanager
def _remembering(transformer: Any) -> Iterator[list[_Memory]]:
    """Every block's self-attention with a memory of its own; diffusers' processors stand there again afterwards."""
    attentions = [block.attn1 for block in transformer.blocks]
    earlier = [attention.processor for attention in attentions]
    memories = [_Memory(processor._attention_backend) for processor in earlier]
    for attention, memory in zip(attentions, memories, strict=True):
        attention.processor = memory
    try:
        yield memories
    finally:
        for attention, processor in zip(attentions, earlier, strict=True):
            attention.processor = processor
