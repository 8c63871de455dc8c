"""One forward of each architecture's transformer on the meta device: what it is called with, and how it is narrowed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch

from fuseproof.fastpaths.replacements import Forward, Replacement

META = torch.device("meta")
LONGCAT, ERNIE = "LongCatImageTransformer2DModel", "ErnieImageTransformer2DModel"
WAN, LONGLIVE2 = "WanTransformer3DModel", "LongLive2Transformer3DModel"
LONGEST_GRID_SIDE = 64
CHANNELS_TOLD_BY_TOKEN = 48
"""Latent channels of the Wan that is told a timestep for each token (2.2 TI2V-5B); its config does not say so."""
LARGEST_CHUNK = 8
"""Latent frames of LongLive 2."""

NARROW_WAN = MappingProxyType({"num_layers": 1, "num_attention_heads": 2, "text_dim": 64, "ffn_dim": 512})
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
        WAN: NARROW_WAN,
        LONGLIVE2: NARROW_WAN,
    }
)
"""By class, what is changed in a config for a few rows in Triton's interpreter; heads keep their width."""


def forward_inputs(transformer: Any, batch: int, text_rows: int, image_rows: int, dtype: torch.dtype) -> dict[str, Any]:
    """What one call is given, by the argument's name: tensors of ``batch`` samples of ``text_rows`` + ``image_rows``
    tokens.
    """
    if type(transformer).__name__ == LONGLIVE2:
        return _longlive2_inputs(transformer, batch, text_rows, image_rows, dtype)
    make = {ERNIE: _ernie_inputs, WAN: _wan_inputs}.get(type(transformer).__name__, _longcat_inputs)
    return make(transformer.config, batch, text_rows, image_rows, dtype)


def eager_forward(transformer: Any, inputs: Mapping[str, Any]) -> Any:
    """The model's own forward of :func:`forward_inputs`: a tuple of tensors."""
    with runnable_on_meta(transformer):
        if type(transformer).__name__ == LONGLIVE2:
            return (transformer(**inputs, write=False),)
        return transformer(**inputs, return_dict=False)


def ways_to_tell(inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """``inputs`` of one call, and before them those with one timestep a sample where each token has one of its own."""
    if inputs["timestep"].ndim == 2 and "caches" not in inputs:  # there each frame has one
        yield {**inputs, "timestep": inputs["timestep"][:, 0]}
    yield dict(inputs)


def prepared_calls(rewritten: Any, inputs: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """What the core of a ``rewritten`` forward takes, for each way in which tokens can be told their timesteps."""
    for one in ways_to_tell(inputs):
        prepared = rewritten.prepare(**one)
        yield prepared
        if "caches" in inputs:
            latents, timestep, _, *place = prepared
            yield latents, timestep, None, *place  # as where all frames share a row


def dtype_of(transformer: Any) -> torch.dtype:
    """The dtype of its matrices: a few small parameters may be kept in another one."""
    largest = max(transformer.parameters(), key=lambda parameter: parameter.numel())
    dtype: torch.dtype = largest.dtype
    return dtype


@contextmanager
def runnable_on_meta(transformer: Any) -> Iterator[None]:
    """Within, the eager forward can be called: ERNIE-Image's angles ask for an autocast that the meta device lacks."""
    if type(transformer).__name__ != ERNIE:
        yield
        return

    def angles_of(_eager: Forward) -> Forward:
        width = head_width(transformer)
        return lambda ids: torch.empty((*ids.shape[:2], 1, width), dtype=torch.float32, device=META)

    replacement = Replacement(transformer.pos_embed, angles_of)
    try:
        yield
    finally:
        replacement.take_off()


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


def quantized_parts(
    transformer: Any, batch: int, rows: int, dtype: torch.dtype
) -> tuple[tuple[torch.Tensor | None, torch.Tensor | None], ...]:
    """The rows that FP8 products quantise, and the MLP that goes through a GELU on the way, call by call.

    LongCat: before a projection, an MLP, and both side by side. ERNIE-Image: before its projections, and before the
    last one of its feed-forward, which is gated already.
    """
    width = width_of(transformer)

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    if type(transformer).__name__ == ERNIE:
        return (empty(rows, batch, width), None), (empty(rows, batch, int(transformer.config.ffn_hidden_size)), None)
    plain, mlp = empty(batch, rows, width), empty(batch, rows, 4 * width)
    return (plain, None), (None, mlp), (plain, mlp)


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


def _wan_inputs(
    config: Any, batch: int, text_rows: int, image_rows: int, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Frames, rows and columns of patches whose product the rows are, none of the last two above 64."""
    columns = _largest_divisor(image_rows)
    rows = _largest_divisor(image_rows // columns)
    _, high, wide = config.patch_size
    latents = (batch, config.in_channels, image_rows // columns // rows, rows * high, columns * wide)
    told = (batch, image_rows) if config.in_channels == CHANNELS_TOLD_BY_TOKEN else (batch,)
    kind = torch.float32 if len(told) == 2 else torch.long
    return {
        "hidden_states": torch.empty(latents, dtype=dtype, device=META),
        "timestep": torch.empty(told, dtype=kind, device=META),
        "encoder_hidden_states": torch.empty(batch, text_rows, config.text_dim, dtype=dtype, device=META),
    }


def _longlive2_inputs(
    transformer: Any, batch: int, text_rows: int, image_rows: int, dtype: torch.dtype
) -> dict[str, Any]:
    """The first chunk of a clip: as many frames as divide the rows, up to those of a whole one."""
    frames = _largest_divisor(image_rows, LARGEST_CHUNK)
    columns = _largest_divisor(image_rows // frames)
    config, rows = transformer.config, image_rows // frames // columns
    _, high, wide = config.patch_size
    height, width = rows * high, columns * wide
    latents = torch.empty(batch, config.in_channels, frames, height, width, dtype=dtype, device=META)
    return {
        "hidden_states": latents,
        "timestep": torch.empty(batch, frames, dtype=torch.float32, device=META),
        "encoder_hidden_states": torch.empty(batch, text_rows, config.text_dim, dtype=dtype, device=META),
        "caches": transformer.new_caches(batch, height, width, META, dtype, LARGEST_CHUNK),
        "start_frame": 0,
    }


def _largest_divisor(number: int, at_most: int = LONGEST_GRID_SIDE) -> int:
    return next(side for side in range(at_most, 0, -1) if number % side == 0)
