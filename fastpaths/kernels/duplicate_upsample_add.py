"""What follows a convolution of the Wan VAE in one pass: its bias, and a shortcut that is duplicated in time and space.

Formula: ``h = R(x + bias_c)``; with a shortcut ``out = R(h + s)`` with ``s`` the shortcut's element at frame
``(t + skip) // ft``, row ``h // fs``, column ``w // fs`` and channel ``(((c * ft + a) * fs + b) * fs + d) // repeats``,
where ``a``, ``b`` and ``d`` are the remainders and ``repeats = C ft fs^2 / Cs``; ``R(s + shortcut_bias)`` in its place
if the shortcut is itself a convolution whose bias is still to be added. Factors of 1 make it an ordinary residual.

Shapes: x [B, C, T, H, W] bf16 or fp32, of any strides; shortcut [B, Cs, Ts, H / fs, W / fs] of the same dtype and any
strides, with ``T + skip = ft Ts``; both biases bf16 or fp32, rounded to x's dtype first. The result is contiguous or
has its channels last in memory.

Rounds: to x's dtype after every addition, as the separate kernels do.

Replaces: ``output.add_(bias)`` inside torch's cuDNN convolution; ``x + h`` at the end of ``WanResidualBlock``; and
``x + avg_shortcut(x_copy)`` of ``WanResidualUpBlock``: ``clone``, ``repeat_interleave`` and two copies of the full size
in ``DupUp3D`` (diffusers 0.42.1).

Exact: yes, pointwise. Whether the convolution without bias gives the same bits is the site's to verify.

Declines: other dtypes, sizes and factors that do not fit, 2^31 elements a sample or more; CPU tensors.

Bytes: x and shortcut in once, the result out once: 4.25 per bf16 element where the shortcut is doubled three times,
where eager moves 20.

Check first: if the trace shows ``repeat_interleave`` or an ``add`` right behind a convolution, check whether
``wan_vae_convolutions`` was rejected or declined.

Source: diffusers autoencoder_kl_wan.py; ``ConvBackend::Cudnn`` in aten/src/ATen/native/Convolution.cpp.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import wan_norm_silu
from fuseproof.fastpaths.kernels.arguments import first_of
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, on_device_of
from fuseproof.fastpaths.kernels.wan_norm_silu import as_fp32, in_fours, rounded_if, stored_as

POSITIONS, WIDEST_TILE = 32, 64
"""Of a tile: 128 bytes of bf16 a position, 64 a channel where the layout turns."""
WARPS = 4
LARGEST_SAMPLE = 2**31


def reference(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor | None,
    shortcut_bias: torch.Tensor | None,
    frame_factor: int,
    side_factor: int,
    skip: int,
    channels_last: bool,
) -> torch.Tensor:
    """diffusers' eager chain, ``DupUp3D`` included."""
    result = x if bias is None else x + bias.to(x.dtype).view(-1, 1, 1, 1)
    if shortcut is not None:
        other = shortcut
        if shortcut_bias is not None:
            other = shortcut + shortcut_bias.to(x.dtype).view(-1, 1, 1, 1)
        result = result + duplicated(other, x.shape[1], frame_factor, side_factor)[:, :, skip:]
    return result.clone(memory_format=torch.channels_last_3d if channels_last else torch.contiguous_format)


def duplicated(x: torch.Tensor, channels: int, frame_factor: int, side_factor: int) -> torch.Tensor:
    """``DupUp3D``: channels repeated and unfolded into frames, rows and columns."""
    samples, own, frames, height, width = x.shape
    x = x.repeat_interleave(channels * frame_factor * side_factor**2 // own, dim=1)
    x = x.reshape(samples, channels, frame_factor, side_factor, side_factor, frames, height, width)
    x = x.permute(0, 1, 5, 2, 6, 3, 7, 4)
    return x.reshape(samples, channels, frames * frame_factor, height * side_factor, width * side_factor)


@triton.jit
def _duplicated(  # type: ignore[no-untyped-def]
    pointers, first_channel, c_stride, channels, remainder, is_position,
    WIDTH: tl.constexpr, COPIES: tl.constexpr, REPEATS: tl.constexpr,
):  # fmt: skip
    """[P] pointers to a position's first element -> [P, WIDTH]: channel (c COPIES + remainder) // REPEATS of each.

    Copies that fill whole channels are read side by side, so that one load takes several channels.
    """
    channel = first_channel + tl.arange(0, WIDTH)
    mask = is_position[:, None] & (channel < channels)[None, :]
    if COPIES == REPEATS:
        values = tl.load(pointers[:, None] + channel[None, :] * c_stride, mask=mask, other=0.0)
    elif COPIES == 2 * REPEATS:
        source = 2 * first_channel + tl.arange(0, 2 * WIDTH)
        is_there = is_position[:, None] & (source < 2 * channels)[None, :]
        both = tl.load(pointers[:, None] + source[None, :] * c_stride, mask=is_there, other=0.0)
        even, odd = tl.split(tl.reshape(both, (both.shape[0], WIDTH, 2)))
        values = tl.where((remainder >= REPEATS)[:, None], odd, even)
    else:
        source = (channel[None, :] * COPIES + remainder[:, None]) // REPEATS
        values = tl.load(pointers[:, None] + source * c_stride, mask=mask, other=0.0)
    return values


@triton.jit(do_not_specialize=["frames", "height", "width", "skip"])
def _duplicate_upsample_add_kernel(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, shortcut_ptr, shortcut_bias_ptr, out_ptr, channels, frames, height, width, skip,
    x_b, x_c, x_t, x_h, x_w, s_b, s_c, s_t, s_h, s_w,
    FRAME_FACTOR: tl.constexpr, SIDE_FACTOR: tl.constexpr, REPEATS: tl.constexpr,
    POSITIONS: tl.constexpr, WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SHORTCUT: tl.constexpr, HAS_SHORTCUT_BIAS: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    X_BF16: tl.constexpr, BIAS_BF16: tl.constexpr, SHORTCUT_BIAS_BF16: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    """A tile of positions and channels of the result."""
    sample = tl.program_id(2).to(tl.int64)
    positions = frames * height * width
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    first_channel = tl.program_id(1) * WIDTH
    channel = first_channel + tl.arange(0, WIDTH)
    is_position, is_channel = position < positions, channel < channels
    mask = is_position[:, None] & is_channel[None, :]
    frame = position // (height * width)
    row = (position % (height * width)) // width
    column = position % width
    place = frame.to(tl.int64) * x_t + row.to(tl.int64) * x_h + column * x_w
    pointers = x_ptr + sample * x_b + place[:, None] + channel[None, :] * x_c
    result = as_fp32(tl.load(pointers, mask=mask, other=0.0), X_BF16)
    if HAS_BIAS:
        bias = rounded_if(as_fp32(tl.load(bias_ptr + channel, mask=is_channel, other=0.0), BIAS_BF16), X_BF16)
        result = rounded_if(result + bias[None, :], X_BF16, FOURS)
    if HAS_SHORTCUT:
        COPIES: tl.constexpr = FRAME_FACTOR * SIDE_FACTOR * SIDE_FACTOR
        whole = frame + skip
        remainder = ((whole % FRAME_FACTOR) * SIDE_FACTOR + row % SIDE_FACTOR) * SIDE_FACTOR + column % SIDE_FACTOR
        place = (whole // FRAME_FACTOR).to(tl.int64) * s_t + (row // SIDE_FACTOR).to(tl.int64) * s_h
        place += (column // SIDE_FACTOR) * s_w
        pointers = shortcut_ptr + sample * s_b + place
        values = _duplicated(pointers, first_channel, s_c, channels, remainder, is_position, WIDTH, COPIES, REPEATS)
        other = as_fp32(values, X_BF16)
        if HAS_SHORTCUT_BIAS:
            if COPIES == REPEATS:
                loaded = tl.load(shortcut_bias_ptr + channel, mask=is_channel, other=0.0)
                more = rounded_if(as_fp32(loaded, SHORTCUT_BIAS_BF16), X_BF16)[None, :]
            else:
                source = (channel[None, :] * COPIES + remainder[:, None]) // REPEATS
                loaded = tl.load(shortcut_bias_ptr + source, mask=mask, other=0.0)
                more = rounded_if(as_fp32(loaded, SHORTCUT_BIAS_BF16), X_BF16)
            other = rounded_if(other + more, X_BF16, FOURS)
        result = result + other
    if CHANNELS_LAST:
        target = (sample * positions + position)[:, None] * channels + channel[None, :]
    else:
        target = (sample * channels + channel)[None, :] * positions + position[:, None]
    tl.store(out_ptr + target, stored_as(result, X_BF16), mask=mask)


def reject_reason(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor | None,
    shortcut_bias: torch.Tensor | None,
    frame_factor: int,
    side_factor: int,
    skip: int,
    channels_last: bool,
) -> str | None:
    """Why the kernel cannot take these arguments, or None."""
    if x.ndim != 5 or x.numel() == 0:
        return f"x has shape {list(x.shape)}; the kernel needs [B, C, T, H, W] with at least one element"
    return first_of(
        device_reason("x", x),
        wan_norm_silu.dtype_reason("x", x.dtype),
        None if bias is None else wan_norm_silu.vector_reason("bias", bias, x),
        f"factors are {frame_factor} and {side_factor}; the kernel needs 1 or more"
        if min(frame_factor, side_factor) < 1
        else None,
        f"skip is {skip}; the kernel needs 0 to {frame_factor - 1}" if skip not in range(frame_factor) else None,
        None if shortcut is None else _shortcut_reason(x, shortcut, frame_factor, side_factor, skip),
        None if shortcut_bias is None else _shortcut_bias_reason(shortcut, shortcut_bias),
        f"a sample has {x[0].numel()} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
        if x[0].numel() >= LARGEST_SAMPLE
        else None,
    )


def fused(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor | None,
    shortcut_bias: torch.Tensor | None,
    frame_factor: int,
    side_factor: int,
    skip: int,
    channels_last: bool,
) -> torch.Tensor:
    """Bias and duplicated shortcut on a convolution's output."""
    samples, channels, frames, height, width = x.shape
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=layout)
    other = x if shortcut is None else shortcut
    repeats = channels * frame_factor * side_factor**2 // other.shape[1]
    tile_width = min(WIDEST_TILE, triton.next_power_of_2(channels))
    grid = (triton.cdiv(frames * height * width, POSITIONS), triton.cdiv(channels, tile_width), samples)
    with on_device_of(x):
        _duplicate_upsample_add_kernel[grid](
            x, x if bias is None else bias, other, x if shortcut_bias is None else shortcut_bias, out,
            channels, frames, height, width, skip, *x.stride(), *other.stride(),
            FRAME_FACTOR=frame_factor, SIDE_FACTOR=side_factor, REPEATS=repeats, POSITIONS=POSITIONS, WIDTH=tile_width,
            HAS_BIAS=bias is not None, HAS_SHORTCUT=shortcut is not None, HAS_SHORTCUT_BIAS=shortcut_bias is not None,
            CHANNELS_LAST=channels_last, X_BF16=x.dtype == torch.bfloat16,
            BIAS_BF16=bias is not None and bias.dtype == torch.bfloat16,
            SHORTCUT_BIAS_BF16=shortcut_bias is not None and shortcut_bias.dtype == torch.bfloat16,
            FOURS=in_fours(POSITIONS * tile_width, WARPS), num_warps=WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor | None,
    shortcut_bias: torch.Tensor | None,
    frame_factor: int,
    side_factor: int,
    skip: int,
    channels_last: bool,
) -> int:
    """Fewest bytes: every input once, the result once."""
    return 2 * x.nbytes + sum(part.nbytes for part in (bias, shortcut, shortcut_bias) if part is not None)


def compile_cases() -> list[CompileCase]:
    """A bias alone, a residual, a shortcut's convolution, and duplicates in both layouts."""
    sizes = dict.fromkeys(("channels", "frames", "height", "width", "skip"), "i32")
    strides = dict.fromkeys([f"{name}_{axis}" for name in "xs" for axis in "bcthw"], "i32")
    cases = []
    for kind, factors, repeats, has, last in (
        ("bf16", (1, 1), 1, (False, False), False),
        ("bf16", (1, 1), 1, (True, True), True),
        ("bf16", (2, 2), 8, (True, False), True),
        ("bf16", (1, 2), 2, (True, False), True),
        ("fp32", (1, 2), 3, (True, True), False),
    ):
        pointers = dict.fromkeys(("x_ptr", "shortcut_ptr", "out_ptr"), f"*{kind}")
        pointers |= {"bias_ptr": "*fp32", "shortcut_bias_ptr": "*fp32"}
        flags = {"HAS_BIAS": True, "HAS_SHORTCUT": has[0], "HAS_SHORTCUT_BIAS": has[1], "CHANNELS_LAST": last}
        flags |= {"X_BF16": kind == "bf16", "BIAS_BF16": False, "SHORTCUT_BIAS_BF16": False}
        flags["FOURS"] = kind == "bf16"
        tile = {"FRAME_FACTOR": factors[0], "SIDE_FACTOR": factors[1], "REPEATS": repeats}
        tile |= {"POSITIONS": POSITIONS, "WIDTH": WIDEST_TILE}
        options = {"num_warps": WARPS, "enable_fp_fusion": False}
        signature = {**pointers, **sizes, **strides}
        cases.append(CompileCase(_duplicate_upsample_add_kernel, signature, {**tile, **flags}, options))
    return cases


def _shortcut_reason(
    x: torch.Tensor, shortcut: torch.Tensor, frame_factor: int, side_factor: int, skip: int
) -> str | None:
    samples, channels, frames, height, width = x.shape
    if shortcut.dtype != x.dtype or shortcut.device != x.device:
        return f"shortcut is {shortcut.dtype} on {shortcut.device}; the kernel needs one like x"
    whole = (samples, frames + skip, height, width)
    seen = shortcut.ndim == 5 and (
        shortcut.shape[0],
        shortcut.shape[2] * frame_factor,
        shortcut.shape[3] * side_factor,
        shortcut.shape[4] * side_factor,
    )
    if seen != whole or channels * frame_factor * side_factor**2 % shortcut.shape[1]:
        return f"shortcut has shape {list(shortcut.shape)}, which does not make {list(x.shape)} by these factors"
    return None


def _shortcut_bias_reason(shortcut: torch.Tensor | None, shortcut_bias: torch.Tensor) -> str | None:
    if shortcut is None:
        return "shortcut_bias without shortcut; the kernel adds it to one"
    return wan_norm_silu.vector_reason("shortcut_bias", shortcut_bias, shortcut)


@torch.library.custom_op("fuseproof::duplicate_upsample_add", mutates_args=())
def duplicate_upsample_add(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor | None,
    shortcut_bias: torch.Tensor | None,
    frame_factor: int,
    side_factor: int,
    skip: int,
    channels_last: bool,
) -> torch.Tensor:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    return fused(x, bias, shortcut, shortcut_bias, frame_factor, side_factor, skip, channels_last)


@duplicate_upsample_add.register_fake
def _fake(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor | None,
    shortcut_bias: torch.Tensor | None,
    frame_factor: int,
    side_factor: int,
    skip: int,
    channels_last: bool,
) -> torch.Tensor:
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).contiguous(memory_format=layout)
