"""One forward of each architecture's transformer on the meta device: what it is called with, and how it is narrowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

META = torch.device("meta")
LONGCAT, ERNIE = "LongCatImageTransformer2DModel", "ErnieImageTransformer2DModel"

NARROW: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        LONGCAT: {"num_layers": 1, "num_single_layers": 1, "num_attention_heads": 2, "joint_attention_dim": 64},
        ERNIE: {
            "num_layers": 1,
            "num_attention_heads": 2,
            "hidden_size": 256,
            "ffn_hidden_size": 768,
            "text_in_dim": 64,
        },
    }
)
"""By class, what is changed in a config for a few rows in Triton's interpreter; heads keep their width."""


def forward_inputs(
    transformer: Any, batch: int, text_rows: int, image_rows: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """The tensors of one call, by the argument's name: ``batch`` samples of ``text_rows`` + ``image_rows`` tokens."""
    make = _ernie_inputs if type(transformer).__name__ == ERNIE else _longcat_inputs
    return make(transformer.config, batch, text_rows, image_rows, dtype)


def width_of(transformer: Any) -> int:
    """Channels of a token inside the blocks."""
    config = transformer.config
    if type(transformer).__name__ == ERNIE:
        return int(config.hidden_size)
    return int(config.num_attention_heads * config.attention_head_dim)


def changes_for_width(transformer: Any, heads: int) -> dict[str, int]:
    """What makes the transformer ``heads`` heads wide, in its config's words."""
    if type(transformer).__name__ != ERNIE:
        return {"num_attention_heads": heads}
    config, width = transformer.config, heads * head_width(transformer)
    ratio = config.ffn_hidden_size // config.hidden_size
    return {"num_attention_heads": heads, "hidden_size": width, "ffn_hidden_size": ratio * width}


def head_width(transformer: Any) -> int:
    """Channels of an attention head."""
    return width_of(transformer) // int(transformer.config.num_attention_heads)


def _longcat_inputs(
    config: Any, batch: int, text_rows: int, image_rows: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    return {
        "hidden_states": torch.empty(batch, image_rows, config.in_channels, dtype=dtype, device=META),
        "encoder_hidden_states": torch.empty(batch, text_rows, config.joint_attention_dim, dtype=dtype, device=META),
        "timestep": torch.empty(batch, dtype=dtype, device=META),
        "img_ids": torch.empty(image_rows, 3, device=META),
        "txt_ids": torch.empty(text_rows, 3, device=META),
    }


def _ernie_inputs(
    config: Any, batch: int, text_rows: int, image_rows: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """A square picture where the rows make one, else one line of them."""
    side = math.isqrt(image_rows)
    height = side if side * side == image_rows else 1
    latents = (batch, config.in_channels, height, image_rows // height)
    return {
        "hidden_states": torch.empty(latents, dtype=dtype, device=META),
        "timestep": torch.empty(batch, dtype=dtype, device=META),
        "text_bth": torch.empty(batch, text_rows, config.text_in_dim, dtype=dtype, device=META),
        "text_lens": torch.empty(batch, dtype=torch.long, device=META),
    }
