"""A small real Wan transformer and the way a loop calls it: a timestep for each token, or for each sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from diffusers import WanTransformer3DModel

FRAMES, HEIGHT, WIDTH, TEXT, CHANNELS, PROMPT_WIDTH = 3, 4, 6, 7, 4, 24
TOKENS_OF_A_FRAME = HEIGHT // 2 * (WIDTH // 2)
TOKENS = FRAMES * TOKENS_OF_A_FRAME
CONFIG = {
    "num_attention_heads": 2,
    "attention_head_dim": 128,
    "in_channels": CHANNELS,
    "out_channels": CHANNELS,
    "text_dim": PROMPT_WIDTH,
    "freq_dim": 32,
    "ffn_dim": 384,
    "num_layers": 2,
    "rope_max_seq_len": 32,
}
KEPT = frozenset(WanTransformer3DModel._keep_in_fp32_modules)


def small_pipe(dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """What ``mount`` needs of a pipeline; the same weights every time, in fp32 where ``from_pretrained`` keeps it."""
    generator = torch.Generator().manual_seed(0)
    transformer = WanTransformer3DModel(**{**CONFIG, **changes}).eval()
    for name, parameter in transformer.named_parameters():
        mean, spread = (1.0, 0.1) if parameter.ndim == 1 and name.endswith("weight") else (0.0, 0.05)
        parameter.data.normal_(mean, spread, generator=generator)
        if KEPT.isdisjoint(name.split(".")):
            parameter.data = parameter.data.to(dtype)
    return SimpleNamespace(transformer=transformer)


def prompt(batch: int = 1, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    """What a request hands to every one of its calls."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, TEXT, PROMPT_WIDTH, generator=generator).to(dtype)


def timestep_of(kind: str, seed: int, batch: int = 1) -> torch.Tensor:
    """``text``: one for all tokens; ``image``: 0 in the first frame; ``sample``: one a sample; ``mixed``: many."""
    value = 900 - 100 * seed
    if kind == "sample":
        return torch.full((batch,), value)
    told = torch.full((batch, TOKENS), float(value))
    if kind == "image":
        told[:, :TOKENS_OF_A_FRAME] = 0
    elif kind == "three":
        told[:, TOKENS_OF_A_FRAME : 2 * TOKENS_OF_A_FRAME] = value / 2
        told[:, :2] = 0
    elif kind == "mixed":
        told -= torch.arange(TOKENS)
    return told


def step(seed: int, batch: int = 1, dtype: torch.dtype = torch.float32, kind: str = "text") -> dict[str, Any]:
    """What a loop hands to one call."""
    generator = torch.Generator().manual_seed(10 + seed)
    latents = torch.randn(batch, CHANNELS, FRAMES, HEIGHT, WIDTH, generator=generator).to(dtype)
    return {"hidden_states": latents, "timestep": timestep_of(kind, seed, batch)}


@torch.no_grad()
def forwards(pipe: Any, times: int = 3, batch: int = 1, kind: str = "text", **changes: Any) -> list[torch.Tensor]:
    """The results of the calls of one request."""
    dtype = pipe.transformer.proj_out.weight.dtype
    text = prompt(batch, dtype)
    return [
        pipe.transformer(
            **{**step(seed, batch, dtype, kind), "encoder_hidden_states": text, "return_dict": False, **changes}
        )[0]
        for seed in range(times)
    ]
