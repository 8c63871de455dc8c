"""Nearest upsampling by two in space, and two frames out of two halves of the channels, into channels-last memory.

Formula: ``out[b, c, frames * t + k, i, j] = R(x[b, k C + c, t, i // 2, j // 2] + bias[k C + c])`` for k below
``frames``; without a bias bits are moved.

Shapes: x [B, frames * C, T, H, W] bf16 or fp32, of any strides; bias [frames * C] bf16 or fp32, rounded to x's dtype,
or None; frames 1 or 2. The result is [B, C, frames * T, 2 H, 2 W] with its channels last in memory, which is also
[B * frames * T, C, 2 H, 2 W] in channels-last memory, as the convolution behind it wants it.

Rounds: to x's dtype after the bias.

Replaces: ``output.add_(bias)`` of the time convolution, ``reshape``, ``stack`` and ``reshape``, ``permute`` and
``reshape``, and ``WanUpsample`` (to fp32, ``nearest-exact`` by 2.0, and back) of ``WanResample`` (diffusers 0.42.1): up
to seven copies, and the conversion of the result inside cuDNN.

Exact: yes, by construction: by a factor of two, ``nearest-exact`` takes element ``i // 2``.

Declines: other dtypes, frames other than 1 and 2, channels that they do not divide, 2^31 elements a sample or more; CPU
tensors.

Bytes: x in once and the result out once: 2.5 per bf16 element of the result, where eager moves 18.

Check first: if the trace shows ``upsample_nearest`` in a decode, check whether ``wan_vae_convolutions`` was rejected or
declined for the samplers.

Source: diffusers autoencoder_kl_wan.py; aten/src/ATen/native/cuda/UpSampleNearest2d.cu.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import wan_norm_silu
from fuseproof.fastpaths.kernels.arguments import first_of
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, on_device_of
from fuseproof.fastpaths.kernels.wan_norm_silu import as_fp32, rounded_if, stored_as

POSITIONS, WIDEST_TILE = 64, 64
LARGEST_SAMPLE = 2**31


def reference(x: torch.Tensor, bias: torch.Tensor | None, frames: int) -> torch.Tensor:
    """diffusers' eager chain between the time convolution and the one of the pictures."""
    hidden = x if bias is None else x + bias.to(x.dtype).view(-1, 1, 1, 1)
    samples, channels, count, height, width = hidden.shape
    channels = channels // frames
    if frames > 1:
        hidden = hidden.reshape(samples, frames, channels, count, height, width)
        hidden = hidden.permute(0, 2, 3, 1, 4, 5).reshape(samples, channels, frames * count, height, width)
    pictures = hidden.permute(0, 2, 1, 3, 4).reshape(-1, channels, height, width)
    large = F.interpolate(pictures.float(), scale_factor=(2.0, 2.0), mode="nearest-exact").type_as(x)
    large = large.view(samples, frames * count, channels, 2 * height, 2 * width).permute(0, 2, 1, 3, 4)
    return large.clone(memory_format=torch.channels_last_3d)


@triton.jit(do_not_specialize=["count", "height", "width"])
def _nearest_upsample_kernel(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, out_ptr, channels, count, height, width, x_b, x_c, x_t, x_h, x_w,
    FRAMES: tl.constexpr, POSITIONS: tl.constexpr, WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr, X_BF16: tl.constexpr, BIAS_BF16: tl.constexpr,
):  # fmt: skip
    """A tile of source positions and channels, each written four times."""
    sample = tl.program_id(2).to(tl.int64)
    source = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_channel = source < FRAMES * channels
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    mask = (position < count * height * width)[:, None] & is_channel[None, :]
    frame = position // (height * width)
    row = (position % (height * width)) // width
    column = position % width
    place = frame.to(tl.int64) * x_t + row.to(tl.int64) * x_h + column * x_w
    x = tl.load(x_ptr + sample * x_b + place[:, None] + source[None, :] * x_c, mask=mask, other=0.0)
    if HAS_BIAS:
        bias = rounded_if(as_fp32(tl.load(bias_ptr + source, mask=is_channel, other=0.0), BIAS_BF16), X_BF16)
        x = stored_as(as_fp32(x, X_BF16) + bias[None, :], X_BF16)
    target = (frame * FRAMES)[:, None] + (source // channels)[None, :]
    corner = (target * (2 * height) + (2 * row)[:, None]) * (2 * width) + (2 * column)[:, None]
    corner = corner.to(tl.int64) + sample * FRAMES * count * 4 * height * width
    out = out_ptr + corner * channels + (source % channels)[None, :]
    for down in tl.static_range(2):
        for right in tl.static_range(2):
            tl.store(out + (down * 2 * width + right) * channels, x, mask=mask)


def reject_reason(x: torch.Tensor, bias: torch.Tensor | None, frames: int) -> str | None:
    """Why the kernel cannot take these arguments, or None."""
    if x.ndim != 5 or x.numel() == 0:
        return f"x has shape {list(x.shape)}; the kernel needs [B, C, T, H, W] with at least one element"
    return first_of(
        device_reason("x", x),
        wan_norm_silu.dtype_reason("x", x.dtype),
        None if bias is None else wan_norm_silu.vector_reason("bias", bias, x),
        f"frames is {frames}; the kernel needs 1 or 2" if frames not in (1, 2) else None,
        f"x has {x.shape[1]} channels; the kernel needs a multiple of {frames}" if x.shape[1] % frames else None,
        f"a sample of the result has {4 * x[0].numel()} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
        if 4 * x[0].numel() >= LARGEST_SAMPLE
        else None,
    )


def fused(x: torch.Tensor, bias: torch.Tensor | None, frames: int) -> torch.Tensor:
    """``x``, twice as high and wide, in channels-last memory."""
    samples, channels, count, height, width = x.shape
    shape = (samples, channels // frames, frames * count, 2 * height, 2 * width)
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last_3d)
    tile_width = min(WIDEST_TILE, triton.next_power_of_2(channels))
    grid = (triton.cdiv(count * height * width, POSITIONS), triton.cdiv(channels, tile_width), samples)
    with on_device_of(x):
        _nearest_upsample_kernel[grid](
            x, x if bias is None else bias, out, channels // frames, count, height, width, *x.stride(),
            FRAMES=frames, POSITIONS=POSITIONS, WIDTH=tile_width, HAS_BIAS=bias is not None,
            X_BF16=x.dtype == torch.bfloat16, BIAS_BF16=bias is not None and bias.dtype == torch.bfloat16,
            num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(x: torch.Tensor, bias: torch.Tensor | None, frames: int) -> int:
    """Fewest bytes: the input once, the result once."""
    return 5 * x.nbytes + (0 if bias is None else bias.nbytes)


def compile_cases() -> list[CompileCase]:
    """One frame and two, of both dtypes."""
    sizes = ("channels", "count", "height", "width", "x_b", "x_c", "x_t", "x_h", "x_w")
    cases = []
    for kind, frames in (("bf16", 1), ("bf16", 2), ("fp32", 2)):
        pointers = {"x_ptr": f"*{kind}", "bias_ptr": "*fp32", "out_ptr": f"*{kind}"}
        flags = {"HAS_BIAS": frames == 2, "X_BF16": kind == "bf16", "BIAS_BF16": False}
        constants = {"FRAMES": frames, "POSITIONS": POSITIONS, "WIDTH": WIDEST_TILE, **flags}
        options = {"num_warps": 4, "enable_fp_fusion": False}
        signature = {**pointers, **dict.fromkeys(sizes, "i32")}
        cases.append(CompileCase(_nearest_upsample_kernel, signature, constants, options))
    return cases


@torch.library.custom_op("fuseproof::nearest_upsample", mutates_args=())
def nearest_upsample(x: torch.Tensor, bias: torch.Tensor | None, frames: int) -> torch.Tensor:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    return fused(x, bias, frames)


@nearest_upsample.register_fake
def _fake(x: torch.Tensor, bias: torch.Tensor | None, frames: int) -> torch.Tensor:
    samples, channels, count, height, width = x.shape
    shape = (samples, channels // frames, frames * count, 2 * height, 2 * width)
    return torch.empty(shape, dtype=x.dtype, device=x.device).contiguous(memory_format=torch.channels_last_3d)
