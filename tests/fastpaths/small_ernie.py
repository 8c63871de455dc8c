"""A small real ERNIE-Image transformer and the way a loop calls it. Zero-initialised layers are random here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from diffusers import ErnieImageTransformer2DModel

HEIGHT, WIDTH, TEXT, CHANNELS, PROMPT_WIDTH = 4, 6, 7, 16, 24
CONFIG = {
    "hidden_size": 256,
    "num_attention_heads": 2,
    "num_layers": 2,
    "ffn_hidden_size": 512,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "text_in_dim": PROMPT_WIDTH,
}


def small_pipe(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """What ``mount`` needs of a pipeline; the same weights every time."""
    generator = torch.Generator().manual_seed(0)
    transformer = ErnieImageTransformer2DModel(**{**CONFIG, **changes}).eval()
    for name, parameter in transformer.named_parameters():
        mean, spread = (1.0, 0.1) if parameter.ndim == 1 and name.endswith("weight") else (0.0, 0.05)
        parameter.data.normal_(mean, spread, generator=generator)
        parameter.data = parameter.data.to(dtype)
    return SimpleNamespace(transformer=transformer)


def prompt(batch: int = 1, dtype: torch.dtype = torch.float32, lengths: tuple[int, ...] = (5, TEXT)) -> dict[str, Any]:
    """What a request hands to every one of its calls."""
    generator = torch.Generator().manual_seed(1)
    text = torch.randn(batch, TEXT, PROMPT_WIDTH, generator=generator).to(dtype)
    return {"text_bth": text, "text_lens": torch.tensor(lengths[-batch:])}


def step(seed: int, batch: int = 1, dtype: torch.dtype = torch.float32, size: tuple[int, int] = (HEIGHT, WIDTH)) -> Any:
    """What a loop hands to one call."""
    generator = torch.Generator().manual_seed(10 + seed)
    latents = torch.randn(batch, CHANNELS, *size, generator=generator).to(dtype)
    return {"hidden_states": latents, "timestep": torch.full((batch,), 900.0 - 100 * seed, dtype=dtype)}


@torch.no_grad()
def forwards(pipe: Any, times: int = 3, batch: int = 1, **changes: Any) -> list[torch.Tensor]:
    """The results of the calls of one request."""
    dtype = next(pipe.transformer.parameters()).dtype
    request = prompt(batch, dtype)
    return [
        pipe.transformer(**{**step(seed, batch, dtype), **request, "return_dict": False, **changes})[0]
        for seed in range(times)
    ]
