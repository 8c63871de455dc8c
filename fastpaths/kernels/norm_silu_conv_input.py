"""RMS norm and SiLU in front of a causal 3D convolution: its padded input and the next cache, from one reading of x.

Formula: of the frames ``zeros, cache, y``, the last ``T + front`` with a border of zeros of ``pad_h`` and ``pad_w``;
and of ``cache, y`` the last ``min(2, K + T)``, without a border. ``h = x + x_bias_c``, ``n = h scale gamma_c /
max(sqrt(sum over c of h^2), 1e-12)``, and ``y = n / (1 + exp(-n))`` with ``silu``, else ``n``.

Shapes: x [B, C, T, H, W] bf16 or fp32, of any strides, C up to 4096; gamma [C, 1, ...] and x_bias [C], bf16 or fp32;
cache [B, C, K, H, W], K 1 or 2, bf16 or fp32, of any strides, or None; front 1 or 2, or 0 without a cache. Both results
have x's dtype, or bf16 (``to_bf16``), and their channels last in memory.

Rounds: once, to the dtype of the results; sums, exp and divisions are the fast ones.

Replaces: what ``causal_conv_input`` replaces, at qualities that permit other roundings: nothing waits for torch's order
of sums, and x is read once.

Close: rounding moves, a kernel of quality ``extra-high``.

Declines: other dtypes, more than 4096 channels, more than two cached frames, 2^31 elements a sample or more; CPU
tensors.

Bytes: x and cache in once, both results out once.

Check first: if the trace shows ``_causal_conv_input_kernel`` between the convolutions of a residual block at these
qualities, check whether ``wan_vae_one_pass`` or ``wan_vae_bf16`` was rejected or declined.

Source: our own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import causal_conv_input, channel_norms, wan_norm_silu
from fuseproof.fastpaths.kernels.arguments import first_of
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, on_device_of
from fuseproof.fastpaths.kernels.wan_norm_silu import as_fp32, stored_as

TILE = 4096
"""Elements of one program: 32 a thread."""
MOST_CHANNELS = 4096
LARGEST_SAMPLE = 2**31
Pair = tuple[torch.Tensor, torch.Tensor]


def reference(
    x: torch.Tensor,
    gamma: torch.Tensor,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    to_bf16: bool = False,
) -> Pair:
    """The same mathematics in fp32, with one rounding."""
    hidden = x.float() if x_bias is None else x.float() + x_bias.float().view(-1, 1, 1, 1)
    norm = hidden.norm(2, 1, keepdim=True).clamp_min(channel_norms.EPS)
    hidden = hidden / norm * scale * gamma.float().view(-1, 1, 1, 1)
    hidden = (F.silu(hidden) if silu else hidden).to(torch.bfloat16 if to_bf16 else x.dtype)
    seen = hidden if cache is None else torch.cat([cache.to(hidden.dtype), hidden], 2)
    padded = F.pad(seen, (pad_w, pad_w, pad_h, pad_h, max(0, front - (seen.shape[2] - x.shape[2])), 0))
    parts = padded[:, :, padded.shape[2] - x.shape[2] - front :], seen[:, :, -causal_conv_input.MOST_CACHED :]
    return tuple(part.clone(memory_format=torch.channels_last_3d) for part in parts)


@triton.jit(do_not_specialize=["frames", "height", "width", "cached", "kept"])
def _norm_silu_conv_input_kernel(  # type: ignore[no-untyped-def]
    x_ptr, gamma_ptr, bias_ptr, cache_ptr, out_ptr, next_ptr, frames, height, width, cached, kept, scale, eps,
    x_b, x_c, x_t, x_h, x_w, cache_b, cache_c, cache_t, cache_h, cache_w,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, POSITIONS: tl.constexpr,
    FRONT: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_CACHE: tl.constexpr, SILU: tl.constexpr, X_BF16: tl.constexpr,
    GAMMA_BF16: tl.constexpr, BIAS_BF16: tl.constexpr, CACHE_BF16: tl.constexpr, OUT_BF16: tl.constexpr,
):  # fmt: skip
    """A run of positions of the padded result, all channels of each at once."""
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
    channel = tl.arange(0, WIDTH)
    is_channel = channel < CHANNELS
    offset = frame.to(tl.int64) * x_t + row.to(tl.int64) * x_h + column * x_w
    mask = is_x[:, None] & is_channel[None, :]
    x = tl.load(x_ptr + sample * x_b + offset[:, None] + channel[None, :] * x_c, mask=mask, other=0.0)
    y = as_fp32(x, X_BF16)
    if HAS_BIAS:
        bias = as_fp32(tl.load(bias_ptr + channel, mask=is_channel, other=0.0), BIAS_BF16)
        y = tl.where(mask, y + bias[None, :], 0.0)
    gamma = as_fp32(tl.load(gamma_ptr + channel, mask=is_channel, other=0.0), GAMMA_BF16)
    norm = tl.sqrt(tl.sum(y * y, 1))
    y = y * (scale / tl.where(norm < eps, eps, norm))[:, None] * gamma[None, :]
    if SILU:
        y = y / (1.0 + tl.exp(0.0 - y))
    if HAS_CACHE:
        cache_frame = frame + cached
        is_cache = is_picture & (frame < 0) & (cache_frame >= 0)
        place = cache_frame.to(tl.int64) * cache_t + row.to(tl.int64) * cache_h + column * cache_w
        pointers = cache_ptr + sample * cache_b + place[:, None] + channel[None, :] * cache_c
        before = tl.load(pointers, mask=is_cache[:, None] & is_channel[None, :], other=0.0)
        y = tl.where(is_cache[:, None], as_fp32(before, CACHE_BF16), y)
    result = stored_as(y, OUT_BF16)
    place = (sample * positions + position)[:, None] * CHANNELS + channel[None, :]
    tl.store(out_ptr + place, result, mask=is_position[:, None] & is_channel[None, :])
    is_kept = is_picture & (frame >= frames - kept)
    following = ((sample * kept + frame - (frames - kept)) * height + row) * width + column
    place = following[:, None] * CHANNELS + channel[None, :]
    tl.store(next_ptr + place, result, mask=is_kept[:, None] & is_channel[None, :])


def reject_reason(
    x: torch.Tensor,
    gamma: torch.Tensor,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    to_bf16: bool = False,
) -> str | None:
    """Why the kernel cannot take these arguments, or None."""
    if x.ndim != 5 or x.numel() == 0:
        return f"x has shape {list(x.shape)}; the kernel needs [B, C, T, H, W] with at least one element"
    _, channels, frames, height, width = x.shape
    elements = channels * (frames + front) * (height + 2 * pad_h) * (width + 2 * pad_w)
    return first_of(
        device_reason("x", x),
        wan_norm_silu.dtype_reason("x", x.dtype),
        f"x has {channels} channels; the kernel needs at most {MOST_CHANNELS}" if channels > MOST_CHANNELS else None,
        wan_norm_silu.vector_reason("gamma", gamma, x),
        None if x_bias is None else wan_norm_silu.vector_reason("x_bias", x_bias, x),
        None if cache is None else causal_conv_input.cache_reason(x, cache),
        f"front is {front}; the kernel needs 1 or 2, or 0 without a cache"
        if front not in ((0, 1, 2) if cache is None else (1, 2))
        else None,
        f"pads are {pad_h} and {pad_w}; the kernel needs 0 or more" if min(pad_h, pad_w) < 0 else None,
        f"a sample of the result has {elements} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
        if elements >= LARGEST_SAMPLE
        else None,
    )


def fused(
    x: torch.Tensor,
    gamma: torch.Tensor,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    to_bf16: bool = False,
) -> Pair:
    """The convolution's input [B, C, T + front, H + 2 pad_h, W + 2 pad_w], and the next cache."""
    samples, channels, frames, height, width = x.shape
    cached = 0 if cache is None else cache.shape[2]
    kept = min(causal_conv_input.MOST_CACHED, cached + frames, frames + front)
    dtype = torch.bfloat16 if to_bf16 else x.dtype
    options = {"dtype": dtype, "device": x.device, "memory_format": torch.channels_last_3d}
    out = torch.empty((samples, channels, frames + front, height + 2 * pad_h, width + 2 * pad_w), **options)
    following = torch.empty((samples, channels, kept, height, width), **options)
    positions = out.numel() // (samples * channels)
    lanes = triton.next_power_of_2(channels)
    block = min(512, max(1, TILE // lanes))
    other = x if cache is None else cache
    bf16 = torch.bfloat16
    with on_device_of(x):
        _norm_silu_conv_input_kernel[(triton.cdiv(positions, block), samples)](
            x, gamma, gamma if x_bias is None else x_bias, other, out, following,
            frames, height, width, cached, kept, scale, channel_norms.EPS, *x.stride(), *other.stride(),
            CHANNELS=channels, WIDTH=lanes, POSITIONS=block, FRONT=front, PAD_H=pad_h, PAD_W=pad_w,
            HAS_BIAS=x_bias is not None, HAS_CACHE=cache is not None, SILU=silu, X_BF16=x.dtype == bf16,
            GAMMA_BF16=gamma.dtype == bf16, BIAS_BF16=x_bias is not None and x_bias.dtype == bf16,
            CACHE_BF16=other.dtype == bf16, OUT_BF16=dtype == bf16, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return out, following


def traffic_bytes(
    x: torch.Tensor,
    gamma: torch.Tensor,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    to_bf16: bool = False,
) -> int:
    """Fewest bytes: every input once, both results once."""
    samples, channels, frames, height, width = x.shape
    kept = min(causal_conv_input.MOST_CACHED, frames + (0 if cache is None else cache.shape[2]))
    positions = (frames + front) * (height + 2 * pad_h) * (width + 2 * pad_w) + kept * height * width
    read = sum(part.nbytes for part in (x, gamma, x_bias, cache) if part is not None)
    return read + samples * channels * positions * (2 if to_bf16 else x.element_size())


def compile_cases() -> list[CompileCase]:
    """All dtypes, channels that are a power of two and that are not."""
    names = ("frames", "height", "width", "cached", "kept")
    strides = [f"{name}_{axis}" for name in ("x", "cache") for axis in "bcthw"]
    sizes = {**dict.fromkeys(names, "i32"), "scale": "fp32", "eps": "fp32", **dict.fromkeys(strides, "i32")}
    cases = []
    for x, gamma, out, channels in (
        ("bf16", "fp32", "bf16", 256),
        ("bf16", "bf16", "bf16", 160),
        ("fp32", "fp32", "fp32", 1024),
        ("fp32", "fp32", "bf16", 640),
    ):
        lanes = triton.next_power_of_2(channels)
        pointers = {"x_ptr": f"*{x}", "gamma_ptr": f"*{gamma}", "bias_ptr": f"*{gamma}", "cache_ptr": f"*{out}"}
        pointers |= {"out_ptr": f"*{out}", "next_ptr": f"*{out}"}
        shape = {"CHANNELS": channels, "WIDTH": lanes, "POSITIONS": TILE // lanes, "FRONT": 2, "PAD_H": 1, "PAD_W": 1}
        flags = {"HAS_BIAS": True, "HAS_CACHE": True, "SILU": True, "X_BF16": x == "bf16"}
        flags |= {"GAMMA_BF16": gamma == "bf16", "BIAS_BF16": gamma == "bf16"}
        flags |= {"CACHE_BF16": out == "bf16", "OUT_BF16": out == "bf16"}
        options = {"num_warps": 4, "enable_fp_fusion": True}
        cases.append(CompileCase(_norm_silu_conv_input_kernel, {**pointers, **sizes}, {**shape, **flags}, options))
    return cases


@torch.library.custom_op("fuseproof::norm_silu_conv_input", mutates_args=())
def norm_silu_conv_input(
    x: torch.Tensor,
    gamma: torch.Tensor,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    to_bf16: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    return fused(x, gamma, x_bias, cache, scale, silu, front, pad_h, pad_w, to_bf16)


@norm_silu_conv_input.register_fake
def _fake(
    x: torch.Tensor,
    gamma: torch.Tensor,
    x_bias: torch.Tensor | None,
    cache: torch.Tensor | None,
    scale: float,
    silu: bool,
    front: int,
    pad_h: int,
    pad_w: int,
    to_bf16: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    samples, channels, frames, height, width = x.shape
    cached = 0 if cache is None else cache.shape[2]
    kept = min(causal_conv_input.MOST_CACHED, cached + frames, frames + front)
    padded = (samples, channels, frames + front, height + 2 * pad_h, width + 2 * pad_w)
    dtype = torch.bfloat16 if to_bf16 else x.dtype
    first, second = (
        torch.empty(shape, dtype=dtype, device=x.device, memory_format=torch.channels_last_3d)
        for shape in (padded, (samples, channels, kept, height, width))
    )
    return first, second
