"""A tensor turned to channels-last on its way into a convolution: as it is, doubled, or with a border of zeros.

Formula: ``out[n, c, i, j] = x[n, c, i // factor, j // factor]``, and 0 in the last ``border`` rows and columns.

Shapes: x [N, C, H, W] bf16, contiguous; factor 1 or 2; border 0 or more. The result is [N, C, factor * H + border,
factor * W + border] in channels-last memory, which cuDNN's convolutions take without a conversion.

Rounds: nothing; bits are moved.

Replaces: ``F.interpolate(x, scale_factor=2.0, mode="nearest")`` of ``Upsample2D`` and ``F.pad(x, (0, 1, 0, 1))`` of
``Downsample2D`` (diffusers 0.42.1), and the conversion of their result inside cuDNN, or torch's strided copy.

Exact: yes, by construction.

Declines: other dtypes, x not contiguous, a factor other than 1 and 2, a negative border, more than 65,535 samples or
2^31 elements a sample in the result; CPU tensors.

Bytes: 2 per element read and 2 per element written; doubling 256 channels to 1024 x 1024 moves 0.67 GB, where eager and
cuDNN's conversion move 1.74 GB.

Check first: if the trace shows ``upsample_nearest2d`` or ``constant_pad`` in a decode or encode, check whether
``vae_convolutions`` was rejected or declined for the samplers.

Source: our own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import first_of
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, on_device_of

TILE = 4096
TILE_CHANNELS = 64
"""Runs of 128 bytes on either side of the turn."""
LARGEST_GRID_AXIS = 65535
LARGEST_SAMPLE = 2**31


def reference(x: torch.Tensor, factor: int = 1, border: int = 0) -> torch.Tensor:
    """diffusers' sampler in front of its convolution, turned by torch."""
    result = F.interpolate(x, scale_factor=float(factor), mode="nearest") if factor != 1 else x
    result = F.pad(result, (0, border, 0, border)) if border else result
    return result.contiguous(memory_format=torch.channels_last)


@triton.jit
def _turn_kernel(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, channels, width, positions_in_units, out_width, out_positions,
    UNIT: tl.constexpr, FACTOR: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """A tile of channels and source positions; UNIT is a power of two that divides their number, for wider loads."""
    positions = positions_in_units * UNIT
    sample = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)[None, :]
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    is_inside = (channel < channels) & (position < positions)
    x = tl.load(x_ptr + sample * channels * positions + channel * positions + position, mask=is_inside, other=0.0)
    corner = (position // width) * FACTOR * out_width + (position % width) * FACTOR
    out_ptr += sample * channels * out_positions
    for down in tl.static_range(FACTOR):
        for right in tl.static_range(FACTOR):
            pixel = corner + (down * out_width + right)
            tl.store(out_ptr + pixel * channels + channel, x, mask=is_inside)


def reject_reason(x: torch.Tensor, factor: int = 1, border: int = 0) -> str | None:
    """Why the kernel cannot take these arguments, or None."""
    if x.ndim != 4 or x.numel() == 0:
        return f"x has shape {list(x.shape)}; the kernel needs [N, C, H, W] with at least one element"
    samples, channels, height, width = x.shape
    elements = channels * (factor * height + border) * (factor * width + border)
    return first_of(
        device_reason("x", x),
        f"x is {x.dtype}; the kernel needs torch.bfloat16" if x.dtype != torch.bfloat16 else None,
        None if x.is_contiguous() else f"x has strides {list(x.stride())}; the kernel needs a contiguous x",
        f"factor is {factor}; the kernel needs 1 or 2" if factor not in (1, 2) else None,
        f"border is {border}; the kernel needs 0 or more" if border < 0 else None,
        f"x has {samples} samples; the kernel needs at most {LARGEST_GRID_AXIS}"
        if samples > LARGEST_GRID_AXIS
        else None,
        f"a sample of the result has {elements} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
        if elements >= LARGEST_SAMPLE
        else None,
    )


def fused(x: torch.Tensor, factor: int = 1, border: int = 0) -> torch.Tensor:
    """``x`` doubled or not, bordered or not, in channels-last memory."""
    samples, channels, height, width = x.shape
    shape = (samples, channels, factor * height + border, factor * width + border)
    out = torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    if border:
        out[:, :, factor * height :].zero_()
        out[..., factor * width :].zero_()
    positions = height * width
    unit = min(8, positions & -positions)
    tile = min(TILE_CHANNELS, triton.next_power_of_2(channels))
    along = min(1024, TILE // tile)
    with on_device_of(x):
        _turn_kernel[(triton.cdiv(positions, along), triton.cdiv(channels, tile), samples)](
            x, out, channels, width, positions // unit, shape[3], shape[2] * shape[3],
            UNIT=unit, FACTOR=factor, CHANNELS=tile, POSITIONS=along, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(x: torch.Tensor, factor: int = 1, border: int = 0) -> int:
    """Fewest bytes: the input once, the result once."""
    samples, channels, height, width = x.shape
    written = samples * channels * (factor * height + border) * (factor * width + border)
    return (x.numel() + written) * x.element_size()


def compile_cases() -> list[CompileCase]:
    """Doubled and not, for a number of positions that 8 divides and one that it does not."""
    names = ("channels", "width", "positions_in_units", "out_width", "out_positions")
    signature = {"x_ptr": "*bf16", "out_ptr": "*bf16", **dict.fromkeys(names, "i32")}
    tile = {"CHANNELS": TILE_CHANNELS, "POSITIONS": TILE // TILE_CHANNELS}
    options = {"num_warps": 4, "enable_fp_fusion": False}
    return [
        CompileCase(_turn_kernel, signature, {"UNIT": unit, "FACTOR": factor, **tile}, options)
        for unit, factor in ((8, 1), (8, 2), (4, 2))
    ]


@torch.library.custom_op("fuseproof::channels_last_copy", mutates_args=())
def channels_last_copy(x: torch.Tensor, factor: int = 1, border: int = 0) -> torch.Tensor:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    return fused(x, factor, border)


@channels_last_copy.register_fake
def _fake(x: torch.Tensor, factor: int = 1, border: int = 0) -> torch.Tensor:
    samples, channels, height, width = x.shape
    shape = (samples, channels, factor * height + border, factor * width + border)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
