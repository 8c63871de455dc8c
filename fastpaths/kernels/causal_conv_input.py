"""The padded input of a causal 3D convolution and the next chunk's cache, with or without an RMS norm, in one pass.

Formula: of the frames ``zeros, cache, norm(x)``, the last ``T + front`` with a border of zeros of ``pad_h`` and
``pad_w``; and of ``cache, norm(x)`` the last ``min(2, K + T)``, without a border. ``norm(x)`` is x itself without a
``gamma``; else, of ``x' = R(x + x_bias_c)`` where the convolution before left its bias out, all of ``wan_norm_silu``
with ``d = max(sqrt(sum over c of x'^2), 1e-12)``, which is summed here in torch's order (``order``, three numbers of
``fastpaths/kernels/channel_norms.py``) or given (``denominator``).

Shapes: x [B, C, T, H, W] bf16 or fp32, of any strides; gamma [C, 1, 1, 1] and x_bias [C], bf16 or fp32; denominator
[B, 1, T, H, W] fp32, contiguous; cache [B, C, K, H, W], K 1 or 2, bf16 or fp32, of any strides, or None; front 1 or 2.
Both results have x's dtype, or bf16 (``to_bf16``), with the channels last in memory or contiguous.

Rounds: as ``wan_norm_silu``, then to the dtype of the results; without a norm nothing but that. A cache that holds what
was rounded before instead of after the padding holds the same numbers.

Replaces: in ``WanResidualBlock``, ``WanResample``, the coders and ``WanCausalConv3d.forward`` of ``AutoencoderKLWan``
(diffusers 0.42.1) the norm and the SiLU, ``clone`` and ``cat`` for the cache, ``cat`` and ``pad`` for the convolution,
and the casts that autocast puts between them: 9 to 14 kernels.

Exact: yes where ``order`` is the card's, which the gate finds out; with a ``denominator`` pointwise.

Declines: other dtypes, more than two cached frames, a front other than 1 and 2, 2^31 elements a sample or more; CPU
tensors.

Bytes: x and cache in once, both results out once; the second reading of x, after its norm is known, comes from the
caches of the card.

Check first: if the trace shows ``CatArrayBatchedCopy`` or ``constant_pad`` in a decode, check whether the site was
rejected or declined; if ``vector_norm`` is there, torch's order was not followed and ``denominator`` is in use.

Source: diffusers autoencoder_kl_wan.py; aten/src/ATen/native/cuda/Reduce.cuh for the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import channel_norms, wan_norm_silu
from fuseproof.fastpaths.kernels.arguments import first_of
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.quotients import reciprocal
from fuseproof.fastpaths.kernels.wan_norm_silu import after_reduction, as_fp32, in_fours, rounded_if, stored_as

POSITIONS, WIDEST_TILE = 16, 64
"""Of a tile: 128 bytes of bf16 a position; more positions leave too few registers for the programs beside it."""
AHEAD = 4
"""Steps of the sums whose loads may be under way at once."""
WARPS = 4
MOST_CACHED = 2
LARGEST_SAMPLE = 2**31
Pair = tuple[torch.Tensor, torch.Tensor]


def reference(
    x: torch.Tensor,
    gamma: torch.Tensor | None,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    denominator: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    channels_last: bool,
    to_bf16: bool = False,
    order: tuple[int, int, int] | None = None,
) -> Pair:
    """diffusers' eager chain; ``order`` only says what torch does by itself."""
    hidden = x if x_bias is None else x + x_bias.to(x.dtype).view(-1, 1, 1, 1)
    if gamma is not None:
        floats = hidden.float().contiguous()
        norm = floats.norm(2, 1, keepdim=True).clamp_min(channel_norms.EPS) if denominator is None else denominator
        hidden = wan_norm_silu.reference(hidden, norm, gamma, None, scale, silu)
    hidden = hidden.to(_result_dtype(x, to_bf16))
    seen = hidden if cache is None else torch.cat([cache.to(hidden.dtype), hidden], 2)
    padded = F.pad(seen, (pad_w, pad_w, pad_h, pad_h, max(0, front - (seen.shape[2] - x.shape[2])), 0))
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    wanted = padded[:, :, -(x.shape[2] + front) :]
    return tuple(part.clone(memory_format=layout) for part in (wanted, seen[:, :, -MOST_CACHED:]))


@triton.jit
def _normalised_input(  # type: ignore[no-untyped-def]
    x_ptr, offset, c_stride, bias_ptr, channel, is_inside, is_channel,
    HAS_BIAS: tl.constexpr, X_BF16: tl.constexpr, BIAS_BF16: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    """[P] offsets and [C] channels -> [P, C] fp32: x, and the bias that the convolution before left out."""
    mask = is_inside[:, None] & is_channel[None, :]
    x = as_fp32(tl.load(x_ptr + offset[:, None] + channel[None, :] * c_stride, mask=mask, other=0.0), X_BF16)
    if HAS_BIAS:
        bias = rounded_if(as_fp32(tl.load(bias_ptr + channel, mask=is_channel, other=0.0), BIAS_BF16), X_BF16)
        x = tl.where(mask, rounded_if(x + bias[None, :], X_BF16, FOURS), 0.0)
    return x


@triton.jit
def _summed_norm(  # type: ignore[no-untyped-def]
    x_ptr, offset, c_stride, bias_ptr, is_x, eps, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr,
    LANES: tl.constexpr, BLOCKS: tl.constexpr, PADDED: tl.constexpr, VECTOR: tl.constexpr, AHEAD: tl.constexpr,
    HAS_BIAS: tl.constexpr, X_BF16: tl.constexpr, BIAS_BF16: tl.constexpr, INTERPRETED: tl.constexpr,
    FOURS: tl.constexpr,
):  # fmt: skip
    """[P] offsets -> [P] norms over all channels, ``eps`` at least, in the order of ``channel_norms.py``."""
    first, is_chain = channel_norms.chain_channels(LANES, BLOCKS, PADDED)
    sums = tl.zeros((POSITIONS, 4 * PADDED * LANES), tl.float32)
    for start in tl.range(0, CHANNELS, 4 * BLOCKS * LANES, loop_unroll_factor=AHEAD):
        channel = start + first
        is_channel = is_chain & (channel < CHANNELS)
        x = _normalised_input(
            x_ptr, offset, c_stride, bias_ptr, channel, is_x, is_channel, HAS_BIAS, X_BF16, BIAS_BF16, FOURS
        )
        sums = channel_norms.added_squares(x, sums, INTERPRETED)
    return channel_norms.denominator_of(sums, eps, POSITIONS, LANES, PADDED, VECTOR)


@triton.jit
def _offset(  # type: ignore[no-untyped-def]
    sample, channel, position, channels, positions, CHANNELS_LAST: tl.constexpr
):
    """[P, C] places in dense memory of either layout."""
    if CHANNELS_LAST:
        offset = (sample * positions + position)[:, None] * channels + channel[None, :]
    else:
        offset = (sample * channels + channel)[None, :] * positions + position[:, None]
    return offset


@triton.jit(do_not_specialize=["frames", "height", "width", "cached", "kept"])
def _causal_conv_input_kernel(  # type: ignore[no-untyped-def]
    x_ptr, gamma_ptr, bias_ptr, denominator_ptr, cache_ptr, out_ptr, next_ptr,
    frames, height, width, cached, kept, scale, eps,
    x_b, x_c, x_t, x_h, x_w, cache_b, cache_c, cache_t, cache_h, cache_w,
    CHANNELS: tl.constexpr, FRONT: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    POSITIONS: tl.constexpr, WIDTH: tl.constexpr, LANES: tl.constexpr, BLOCKS: tl.constexpr,
    PADDED: tl.constexpr, VECTOR: tl.constexpr, AHEAD: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_DENOMINATOR: tl.constexpr, HAS_BIAS: tl.constexpr, HAS_CACHE: tl.constexpr,
    SILU: tl.constexpr, CHANNELS_LAST: tl.constexpr, X_BF16: tl.constexpr, GAMMA_BF16: tl.constexpr,
    BIAS_BF16: tl.constexpr, CACHE_BF16: tl.constexpr, OUT_BF16: tl.constexpr, INTERPRETED: tl.constexpr,
    FOURS: tl.constexpr, SUMS_IN_FOURS: tl.constexpr,
):  # fmt: skip
    """A run of positions of the padded result, all channels of each."""
    sample = tl.program_id(1).to(tl.int64)
    out_width = width + 2 * PAD_W
    out_plane = (height + 2 * PAD_H) * out_width
    positions = (frames + FRONT) * out_plane
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    is_position = position < positions
    frame = position // out_plane - FRONT
    row = (position % out_plane) // out_width - PAD_H
    column = position % out_width - PAD_W
    is_picture = is_position & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    is_x = is_picture & (frame >= 0)
    offset = frame.to(tl.int64) * x_t + row.to(tl.int64) * x_h + column * x_w
    x_ptr += sample * x_b
    has_x = tl.sum(is_x.to(tl.int32)) > 0
    if HAS_NORM:
        denominator = tl.full((POSITIONS,), 1.0, tl.float32)
        if has_x:
            if HAS_DENOMINATOR:
                where = sample * frames * height * width + (frame * height + row) * width + column
                denominator = tl.load(denominator_ptr + where, mask=is_x, other=1.0)
            else:
                norm = _summed_norm(
                    x_ptr, offset, x_c, bias_ptr, is_x, eps, CHANNELS, POSITIONS, LANES, BLOCKS, PADDED, VECTOR, AHEAD,
                    HAS_BIAS, X_BF16, BIAS_BF16, INTERPRETED, SUMS_IN_FOURS,
                )  # fmt: skip
                denominator = tl.where(is_x, norm, 1.0)
        by = reciprocal(denominator) if FOURS else denominator
    is_kept = is_picture & (frame >= frames - kept)
    next_position = ((frame - (frames - kept)) * height + row) * width + column
    cache_frame = frame + cached
    is_cache = is_picture & (frame < 0) & (cache_frame >= 0)
    cache_offset = cache_frame.to(tl.int64) * cache_t + row.to(tl.int64) * cache_h + column * cache_w
    for start in range(0, CHANNELS, WIDTH):
        channel = start + tl.arange(0, WIDTH)
        is_channel = channel < CHANNELS
        y = tl.zeros((POSITIONS, WIDTH), tl.float32)
        if has_x:
            y = _normalised_input(
                x_ptr, offset, x_c, bias_ptr, channel, is_x, is_channel, HAS_BIAS, X_BF16, BIAS_BF16, FOURS
            )
            if HAS_NORM:
                gamma = as_fp32(tl.load(gamma_ptr + channel, mask=is_channel, other=0.0), GAMMA_BF16)[None, :]
                P_BF16: tl.constexpr = X_BF16 and GAMMA_BF16
                y = after_reduction(
                    tl.where(is_x[:, None], y, 1.0), denominator[:, None], by[:, None], gamma, 0.0, scale,
                    X_BF16, P_BF16, P_BF16, SILU, INTERPRETED, FOURS,
                )  # fmt: skip
                y = tl.where(is_x[:, None], y, 0.0)
        if HAS_CACHE:
            mask = is_cache[:, None] & is_channel[None, :]
            pointers = cache_ptr + sample * cache_b + cache_offset[:, None] + channel[None, :] * cache_c
            y = tl.where(is_cache[:, None], as_fp32(tl.load(pointers, mask=mask, other=0.0), CACHE_BF16), y)
        result = stored_as(y, OUT_BF16)
        out_offset = _offset(sample, channel, position, CHANNELS, positions, CHANNELS_LAST)
        next_offset = _offset(sample, channel, next_position, CHANNELS, kept * height * width, CHANNELS_LAST)
        tl.store(out_ptr + out_offset, result, mask=is_position[:, None] & is_channel[None, :])
        tl.store(next_ptr + next_offset, result, mask=is_kept[:, None] & is_channel[None, :])


def reject_reason(
    x: torch.Tensor,
    gamma: torch.Tensor | None,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    denominator: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    channels_last: bool,
    to_bf16: bool = False,
    order: tuple[int, int, int] | None = None,
) -> str | None:
    """Why the kernel cannot take these arguments, or None."""
    if x.ndim != 5 or x.numel() == 0:
        return f"x has shape {list(x.shape)}; the kernel needs [B, C, T, H, W] with at least one element"
    _, channels, frames, height, width = x.shape
    elements = channels * (frames + front) * (height + 2 * pad_h) * (width + 2 * pad_w)
    return first_of(
        device_reason("x", x),
        wan_norm_silu.dtype_reason("x", x.dtype),
        None if gamma is None else wan_norm_silu.vector_reason("gamma", gamma, x),
        None if x_bias is None else wan_norm_silu.vector_reason("x_bias", x_bias, x),
        None if cache is None else cache_reason(x, cache),
        None if denominator is None else wan_norm_silu.denominator_reason(x, denominator),
        f"front is {front}; the kernel needs 1 or 2" if front not in (1, 2) else None,
        f"pads are {pad_h} and {pad_w}; the kernel needs 0 or more" if min(pad_h, pad_w) < 0 else None,
        "neither denominator nor order is given; the kernel needs one of them for a norm"
        if gamma is not None and denominator is None and order is None
        else None,
        f"a sample of the result has {elements} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
        if elements >= LARGEST_SAMPLE
        else None,
    )


def fused(
    x: torch.Tensor,
    gamma: torch.Tensor | None,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    denominator: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    channels_last: bool,
    to_bf16: bool = False,
    order: tuple[int, int, int] | None = None,
) -> Pair:
    """The convolution's input [B, C, T + front, H + 2 pad_h, W + 2 pad_w], and the next cache."""
    samples, channels, frames, height, width = x.shape
    cached = 0 if cache is None else cache.shape[2]
    kept = min(MOST_CACHED, cached + frames)
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    options = {"dtype": _result_dtype(x, to_bf16), "device": x.device, "memory_format": layout}
    out = torch.empty((samples, channels, frames + front, height + 2 * pad_h, width + 2 * pad_w), **options)
    following = torch.empty((samples, channels, kept, height, width), **options)
    positions = out.numel() // (samples * channels)
    sums = channel_norms.Order(*(order or (1, 1, 0)))
    chains = 4 * sums.padded_blocks * sums.lanes
    block, tile_width = tile_of(channels)
    other = x if cache is None else cache
    with on_device_of(x):
        _causal_conv_input_kernel[(triton.cdiv(positions, block), samples)](
            x, x if gamma is None else gamma, x if x_bias is None else x_bias,
            x if denominator is None else denominator, other, out, following,
            frames, height, width, cached, kept, scale, channel_norms.EPS, *x.stride(), *other.stride(),
            CHANNELS=channels, FRONT=front, PAD_H=pad_h, PAD_W=pad_w, POSITIONS=block, WIDTH=tile_width,
            LANES=sums.lanes, BLOCKS=sums.blocks, PADDED=sums.padded_blocks, VECTOR=sums.vector,
            AHEAD=AHEAD, HAS_NORM=gamma is not None, HAS_DENOMINATOR=denominator is not None,
            HAS_BIAS=x_bias is not None, HAS_CACHE=cache is not None, SILU=silu, CHANNELS_LAST=channels_last,
            X_BF16=_is_bf16(x),
            GAMMA_BF16=_is_bf16(gamma), BIAS_BF16=_is_bf16(x_bias), CACHE_BF16=_is_bf16(other), OUT_BF16=_is_bf16(out),
            INTERPRETED=is_interpreted(), FOURS=in_fours(block * tile_width, WARPS),
            SUMS_IN_FOURS=in_fours(block * chains, WARPS), num_warps=WARPS,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out, following


def settle(arguments: Sequence[Any]) -> None:
    """Make the denominators of a made-up call, where it has any, what ``x`` with its bias has."""
    x, _, x_bias, _, denominator = arguments[:5]
    if denominator is not None:
        hidden = x if x_bias is None else x + x_bias.to(x.dtype).view(-1, 1, 1, 1)
        wan_norm_silu.settle((hidden, denominator))


def traffic_bytes(
    x: torch.Tensor,
    gamma: torch.Tensor | None,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    denominator: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    channels_last: bool,
    to_bf16: bool = False,
    order: tuple[int, int, int] | None = None,
) -> int:
    """Fewest bytes: every input once, both results once."""
    samples, channels, frames, height, width = x.shape
    kept = min(MOST_CACHED, frames + (0 if cache is None else cache.shape[2]))
    positions = (frames + front) * (height + 2 * pad_h) * (width + 2 * pad_w) + kept * height * width
    read = sum(part.nbytes for part in (x, gamma, x_bias, cache, denominator) if part is not None)
    return read + samples * channels * positions * _result_dtype(x, to_bf16).itemsize


def tile_of(channels: int) -> tuple[int, int]:
    """Positions and channels of a tile."""
    return POSITIONS, min(WIDEST_TILE, triton.next_power_of_2(channels))


def compile_cases() -> list[CompileCase]:
    """With a norm of either kind and without, of all dtypes, in both layouts."""
    names = ("frames", "height", "width", "cached", "kept")
    strides = [f"{name}_{axis}" for name in ("x", "cache") for axis in "bcthw"]
    sizes = {**dict.fromkeys(names, "i32"), "scale": "fp32", "eps": "fp32", **dict.fromkeys(strides, "i32")}
    cases = []
    for x, gamma, norm, order, last in (
        ("bf16", "fp32", "own", (4, 1, 0), True),
        ("bf16", "bf16", "own", (4, 16, 0), True),
        ("bf16", "fp32", "own", (32, 1, 1), True),
        ("fp32", "fp32", "own", (4, 3, 0), False),
        ("bf16", "bf16", "given", (1, 1, 0), False),
        ("bf16", "bf16", "none", (1, 1, 0), True),
    ):
        sums = channel_norms.Order(*order)
        pointers = {"x_ptr": f"*{x}", "gamma_ptr": f"*{gamma}", "bias_ptr": f"*{gamma}", "denominator_ptr": "*fp32"}
        pointers |= {"cache_ptr": f"*{x}", "out_ptr": f"*{x}", "next_ptr": f"*{x}"}
        flags = {"HAS_NORM": norm != "none", "HAS_DENOMINATOR": norm == "given", "HAS_BIAS": norm == "own"}
        flags |= {"HAS_CACHE": True, "SILU": norm != "none", "CHANNELS_LAST": last, "INTERPRETED": False}
        flags |= {f"{name}_BF16": kind == "bf16" for name, kind in (("X", x), ("GAMMA", gamma), ("BIAS", gamma))}
        flags |= {"CACHE_BF16": x == "bf16", "OUT_BF16": x == "bf16"}
        block, width = tile_of(1024)
        shape = {"CHANNELS": 1024, "FRONT": 2, "PAD_H": 1, "PAD_W": 1, "POSITIONS": block, "WIDTH": width}
        shape |= {"LANES": sums.lanes, "BLOCKS": sums.blocks, "PADDED": sums.padded_blocks, "VECTOR": sums.vector}
        shape |= {"AHEAD": AHEAD, "FOURS": x == "bf16", "SUMS_IN_FOURS": x == "bf16"}
        options = {"num_warps": WARPS, "enable_fp_fusion": False}
        cases.append(CompileCase(_causal_conv_input_kernel, {**pointers, **sizes}, {**shape, **flags}, options))
    return cases


def _result_dtype(x: torch.Tensor, to_bf16: bool) -> torch.dtype:
    return torch.bfloat16 if to_bf16 else x.dtype


def _is_bf16(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.dtype == torch.bfloat16


def cache_reason(x: torch.Tensor, cache: torch.Tensor) -> str | None:
    frames = cache.shape[2] if cache.ndim == 5 else 0
    if frames not in range(1, MOST_CACHED + 1) or cache.shape != (*x.shape[:2], frames, *x.shape[3:]):
        return f"cache has shape {list(cache.shape)}; the kernel needs that of x with 1 or {MOST_CACHED} frames"
    if cache.device != x.device:
        return f"cache is on {cache.device}; x is on {x.device}"
    return wan_norm_silu.dtype_reason("cache", cache.dtype)


@torch.library.custom_op("fuseproof::causal_conv_input", mutates_args=())
def causal_conv_input(
    x: torch.Tensor,
    gamma: torch.Tensor | None,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    denominator: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    channels_last: bool,
    to_bf16: bool = False,
    order: list[int] | None = None,
) -> Pair:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    pair = None if order is None else (order[0], order[1], order[2])
    rest = (scale, silu, front, pad_h, pad_w, channels_last, to_bf16, pair)
    return fused(x, gamma, x_bias, cache, denominator, *rest)


@causal_conv_input.register_fake
def _fake(
    x: torch.Tensor,
    gamma: torch.Tensor | None,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    denominator: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    channels_last: bool,
    to_bf16: bool = False,
    order: list[int] | None = None,
) -> Pair:
    samples, channels, frames, height, width = x.shape
    kept = min(MOST_CACHED, frames + (0 if cache is None else cache.shape[2]))
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    shapes = ((frames + front, height + 2 * pad_h, width + 2 * pad_w), (kept, height, width))
    out, following = (
        torch.empty((samples, channels, *shape), dtype=_result_dtype(x, to_bf16), device=x.device).contiguous(
            memory_format=layout
        )
        for shape in shapes
    )
    return out, following
