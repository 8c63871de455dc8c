"""The shortcut of the Wan VAE's encoder in one pass: means over small cubes of frames, rows and columns, added.

Formula: ``h = R(x + bias_c)``, ``out = R(h + R(mean))``; ``mean`` is of the ``group`` elements ``u = c group + g`` of
the shortcut unfolded by ``ft`` frames, ``fs`` rows and ``fs`` columns: channel ``u // (ft fs^2)`` at frame
``t ft + a - pad``, row ``h fs + b``, column ``w fs + d``, where ``a``, ``b`` and ``d`` are the remainders; ``pad``
frames of zeros stand in front so that ``ft`` divides their number. ``group = Cs ft fs^2 / C``.

Shapes: x [B, C, T, H, W] bf16 or fp32, of any strides; bias [C] bf16 or fp32, rounded to x's dtype, or None; shortcut
[B, Cs, Ts, H fs, W fs] of x's dtype and any strides, with ``T = ceil(Ts / ft)``. The result is contiguous or has its
channels last in memory.

Rounds: the mean is summed in fp32, four accumulators in turn added from left to right, times ``fp32(n) /
fp32(n group)``; then to x's dtype after the mean and after every addition, as the separate kernels do.

Replaces: ``output.add_(bias)`` inside torch's cuDNN convolution, and ``x + avg_shortcut(x_copy)`` of
``WanResidualDownBlock``: ``clone``, ``pad``, a transposing copy, ``mean`` and the sum (diffusers 0.42.1).

Exact: yes where the mean is torch's on CUDA: one thread sums fewer than 256 elements that are not next to each other.

Declines: other dtypes, sizes and factors that do not fit, groups of more than 64, 2^31 elements a sample or more; CPU
tensors.

Bytes: x and shortcut in once, the result out once: 20 per bf16 element of the result where the shortcut is halved three
times, where eager moves 90.

Check first: if the trace shows ``MeanOps`` or ``constant_pad`` in an encode, check whether ``wan_vae_downsampling`` was
rejected or declined.

Source: diffusers autoencoder_kl_wan.py; aten/src/ATen/native/cuda/Reduce.cuh and ReduceMomentKernel.cu.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import wan_norm_silu
from fuseproof.fastpaths.kernels.arguments import first_of
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, on_device_of
from fuseproof.fastpaths.kernels.rms_statistics import factor_of
from fuseproof.fastpaths.kernels.wan_norm_silu import as_fp32, rounded_if, stored_as

POSITIONS, WIDEST_TILE = 32, 64
LARGEST_GROUP = 64
LARGEST_SAMPLE = 2**31


def reference(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor,
    frame_factor: int,
    side_factor: int,
    channels_last: bool,
) -> torch.Tensor:
    """diffusers' eager chain, ``AvgDown3D`` included."""
    result = x if bias is None else x + bias.to(x.dtype).view(-1, 1, 1, 1)
    result = result + averaged(shortcut, x.shape[1], frame_factor, side_factor)
    return result.clone(memory_format=torch.channels_last_3d if channels_last else torch.contiguous_format)


def averaged(x: torch.Tensor, channels: int, frame_factor: int, side_factor: int) -> torch.Tensor:
    """``AvgDown3D``: frames, rows and columns folded into channels, and means of groups of those."""
    x = F.pad(x, (0, 0, 0, 0, -x.shape[2] % frame_factor, 0))
    samples, own, frames, height, width = x.shape
    frames, height, width = frames // frame_factor, height // side_factor, width // side_factor
    x = x.reshape(samples, own, frames, frame_factor, height, side_factor, width, side_factor)
    x = x.permute(0, 1, 3, 5, 7, 2, 4, 6).contiguous().view(samples, channels, -1, frames, height, width)
    return x.mean(2)


@triton.jit(do_not_specialize=["frames", "height", "width", "pad"])
def _average_downsample_add_kernel(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, shortcut_ptr, out_ptr, channels, frames, height, width, pad, factor,
    x_b, x_c, x_t, x_h, x_w, s_b, s_c, s_t, s_h, s_w,
    FRAME_FACTOR: tl.constexpr, SIDE_FACTOR: tl.constexpr, GROUP: tl.constexpr, POSITIONS: tl.constexpr,
    WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr, CHANNELS_LAST: tl.constexpr,
    X_BF16: tl.constexpr, BIAS_BF16: tl.constexpr,
):  # fmt: skip
    """A tile of positions and channels of the result."""
    sample = tl.program_id(2).to(tl.int64)
    positions = frames * height * width
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_channel = channel < channels
    mask = (position < positions)[:, None] & is_channel[None, :]
    frame = position // (height * width)
    row = (position % (height * width)) // width
    column = position % width
    place = frame.to(tl.int64) * x_t + row.to(tl.int64) * x_h + column * x_w
    pointers = x_ptr + sample * x_b + place[:, None] + channel[None, :] * x_c
    result = as_fp32(tl.load(pointers, mask=mask, other=0.0), X_BF16)
    if HAS_BIAS:
        bias = rounded_if(as_fp32(tl.load(bias_ptr + channel, mask=is_channel, other=0.0), BIAS_BF16), X_BF16)
        result = rounded_if(result + bias[None, :], X_BF16)
    first = tl.zeros((POSITIONS, WIDTH), tl.float32)
    second = tl.zeros((POSITIONS, WIDTH), tl.float32)
    third = tl.zeros((POSITIONS, WIDTH), tl.float32)
    fourth = tl.zeros((POSITIONS, WIDTH), tl.float32)
    for turn in tl.static_range(GROUP):
        unfolded = channel * GROUP + turn
        source = unfolded // (FRAME_FACTOR * SIDE_FACTOR * SIDE_FACTOR)
        later = (unfolded // (SIDE_FACTOR * SIDE_FACTOR)) % FRAME_FACTOR
        down = (unfolded // SIDE_FACTOR) % SIDE_FACTOR
        right = unfolded % SIDE_FACTOR
        from_frame = (frame * FRAME_FACTOR - pad)[:, None] + later[None, :]
        from_row = (row * SIDE_FACTOR)[:, None] + down[None, :]
        from_column = (column * SIDE_FACTOR)[:, None] + right[None, :]
        place = from_frame.to(tl.int64) * s_t + from_row.to(tl.int64) * s_h + from_column * s_w
        pointers = shortcut_ptr + sample * s_b + place + source[None, :] * s_c
        value = as_fp32(tl.load(pointers, mask=mask & (from_frame >= 0), other=0.0), X_BF16)
        if turn % 4 == 0:
            first += value
        elif turn % 4 == 1:
            second += value
        elif turn % 4 == 2:
            third += value
        else:
            fourth += value
    mean = rounded_if((((first + second) + third) + fourth) * factor, X_BF16)
    result = rounded_if(result + mean, X_BF16)
    if CHANNELS_LAST:
        target = (sample * positions + position)[:, None] * channels + channel[None, :]
    else:
        target = (sample * channels + channel)[None, :] * positions + position[:, None]
    tl.store(out_ptr + target, stored_as(result, X_BF16), mask=mask)


def reject_reason(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor,
    frame_factor: int,
    side_factor: int,
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
        else _shortcut_reason(x, shortcut, frame_factor, side_factor),
        f"a sample of the shortcut has {shortcut[0].numel()} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
        if shortcut[0].numel() >= LARGEST_SAMPLE
        else None,
    )


def fused(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor,
    frame_factor: int,
    side_factor: int,
    channels_last: bool,
) -> torch.Tensor:
    """Bias and averaged shortcut on a convolution's output."""
    samples, channels, frames, height, width = x.shape
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=layout)
    group = shortcut.shape[1] * frame_factor * side_factor**2 // channels
    tile_width = min(WIDEST_TILE, triton.next_power_of_2(channels))
    grid = (triton.cdiv(frames * height * width, POSITIONS), triton.cdiv(channels, tile_width), samples)
    with on_device_of(x):
        _average_downsample_add_kernel[grid](
            x, x if bias is None else bias, shortcut, out, channels, frames, height, width,
            -shortcut.shape[2] % frame_factor, factor_of(x.numel(), group), *x.stride(), *shortcut.stride(),
            FRAME_FACTOR=frame_factor, SIDE_FACTOR=side_factor, GROUP=group, POSITIONS=POSITIONS, WIDTH=tile_width,
            HAS_BIAS=bias is not None, CHANNELS_LAST=channels_last, X_BF16=x.dtype == torch.bfloat16,
            BIAS_BF16=bias is not None and bias.dtype == torch.bfloat16, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor,
    frame_factor: int,
    side_factor: int,
    channels_last: bool,
) -> int:
    """Fewest bytes: every input once, the result once."""
    return 2 * x.nbytes + shortcut.nbytes + (0 if bias is None else bias.nbytes)


def compile_cases() -> list[CompileCase]:
    """Halved in time and space, in space alone, and not at all."""
    sizes = dict.fromkeys(("channels", "frames", "height", "width", "pad"), "i32") | {"factor": "fp32"}
    strides = dict.fromkeys([f"{name}_{axis}" for name in "xs" for axis in "bcthw"], "i32")
    cases = []
    for kind, factors, group, has_bias, last in (
        ("bf16", (2, 2), 4, True, True),
        ("bf16", (1, 2), 4, True, True),
        ("bf16", (1, 1), 1, False, False),
        ("fp32", (2, 2), 4, True, True),
    ):
        pointers = {"x_ptr": f"*{kind}", "bias_ptr": "*fp32", "shortcut_ptr": f"*{kind}", "out_ptr": f"*{kind}"}
        flags = {"HAS_BIAS": has_bias, "CHANNELS_LAST": last, "X_BF16": kind == "bf16", "BIAS_BF16": False}
        tile = {"FRAME_FACTOR": factors[0], "SIDE_FACTOR": factors[1], "GROUP": group}
        tile |= {"POSITIONS": POSITIONS, "WIDTH": WIDEST_TILE}
        options = {"num_warps": 4, "enable_fp_fusion": False}
        signature = {**pointers, **sizes, **strides}
        cases.append(CompileCase(_average_downsample_add_kernel, signature, {**tile, **flags}, options))
    return cases


def _shortcut_reason(x: torch.Tensor, shortcut: torch.Tensor, frame_factor: int, side_factor: int) -> str | None:
    samples, channels, frames, height, width = x.shape
    if shortcut.dtype != x.dtype or shortcut.device != x.device:
        return f"shortcut is {shortcut.dtype} on {shortcut.device}; the kernel needs one like x"
    whole = (samples, frames, height * side_factor, width * side_factor)
    seen = shortcut.ndim == 5 and (shortcut.shape[0], -(-shortcut.shape[2] // frame_factor), *shortcut.shape[3:])
    elements = frame_factor * side_factor**2
    if seen != whole or shortcut.shape[1] * elements % channels:
        return f"shortcut has shape {list(shortcut.shape)}, which does not make {list(x.shape)} by these factors"
    group = shortcut.shape[1] * elements // channels
    return f"means are of {group} elements; the kernel needs at most {LARGEST_GROUP}" if group > LARGEST_GROUP else None


@torch.library.custom_op("fuseproof::average_downsample_add", mutates_args=())
def average_downsample_add(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor,
    frame_factor: int,
    side_factor: int,
    channels_last: bool,
) -> torch.Tensor:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    return fused(x, bias, shortcut, frame_factor, side_factor, channels_last)


@average_downsample_add.register_fake
def _fake(
    x: torch.Tensor,
    bias: torch.Tensor | None,
    shortcut: torch.Tensor,
    frame_factor: int,
    side_factor: int,
    channels_last: bool,
) -> torch.Tensor:
    layout = torch.channels_last_3d if channels_last else torch.contiguous_format
    return torch.empty(x.shape, dtype=x.dtype, device=x.device).contiguous(memory_format=layout)
