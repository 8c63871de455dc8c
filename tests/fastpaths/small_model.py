"""A small real transformer and the way a loop calls it, for tests of what a mount does to both."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from diffusers import LongCatImageTransformer2DModel

TEXT, IMAGE, CHANNELS, PROMPT_WIDTH = 3, 5, 16, 8
CONFIG = {
    "in_channels": CHANNELS,
    "num_layers": 1,
    "num_single_layers": 2,
    "attention_head_dim": 128,
    "num_attention_heads": 1,
    "joint_attention_dim": PROMPT_WIDTH,
    "pooled_projection_dim": 8,
    "axes_dims_rope": [16, 56, 56],
}


def small_pipe(dtype: torch.dtype = torch.float32) -> Any:
    """What ``mount`` needs of a pipeline; the same weights every time."""
    torch.manual_seed(0)
    return SimpleNamespace(transformer=LongCatImageTransformer2DModel(**CONFIG).to(dtype).eval())


def meta_transformer(dtype: torch.dtype) -> Any:
    """The same model as shapes alone."""
    with torch.device("meta"):
        return LongCatImageTransformer2DModel(**CONFIG).to(dtype).eval()


@torch.no_grad()
def forwards(pipe: Any, times: int = 3) -> torch.Tensor:
    """The results of several calls as one request makes them: one prompt, the same positions, another step each."""
    dtype = next(pipe.transformer.parameters()).dtype
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randn(1, TEXT, PROMPT_WIDTH, generator=generator).to(dtype)
    text_ids, image_ids = torch.zeros(TEXT, 3), torch.rand(IMAGE, 3, generator=generator)
    outputs = []
    for step in range(times):
        latents = torch.randn(1, IMAGE, CHANNELS, generator=generator).to(dtype)
        timestep = torch.tensor([1.0 - step / 8]).to(dtype)
        velocity = pipe.transformer(
            hidden_states=latents, timestep=timestep, encoder_hidden_states=prompt,
            txt_ids=text_ids, img_ids=image_ids, return_dict=False,
        )[0]  # fmt: skip
        outputs.append(velocity)
    return torch.cat(outputs)
