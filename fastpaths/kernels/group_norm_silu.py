"""GroupNorm, with or without SiLU after it, at the speed of memory.

Formula: ``R(silu(R(scale_c * x + offset_c)))`` with one fma, where ``scale_c = rstd_g * weight_c``,
``offset_c = fma(-scale_c, mean_g, bias_c)`` in fp32, and ``silu(y) = y / (1 + exp(-y))`` in fp32. Mean and rstd of a
group are aten's: its Welford order, its eps rounded to bf16, and its rounding of both to bf16 where the installed torch
has that (pull request 183946 of May 2026 took it out).

Shapes: x [N, C, *] bf16, contiguous, at least two positions in *; weight and bias [C] bf16; ``groups`` divides C. The
result has x's shape; with ``channels_last`` (x of four dimensions) its memory is channels-last, which is what cuDNN's
convolutions want, so that no conversion is left between the norm and the convolution that follows.

Rounds: to bf16 after the affine and, with ``silu``, once more after it; statistics as above.

Replaces: ``silu(group_norm(x))`` of ``ResnetBlock2D`` and of ``conv_norm_out`` + ``conv_act`` in ``Encoder`` and
``Decoder`` (diffusers 0.42.1, ``AutoencoderKL``), and with ``silu=False`` the ``group_norm`` of its attention: four
kernels and, in channels-last convolutions, a layout conversion.

Exact: yes. The order of every addition in the statistics is aten's; exp and the divisions are those of CUDA's math
library. ``torch.native_group_norm`` returns the same mean and rstd, but only together with the whole normalised tensor
and at its own speed, which is the slow part, so nothing is left to torch here.

Declines: other dtypes, non-contiguous input, a single position per channel (aten takes another path), C not divisible
by groups, more than 65,535 rows, 2^31 elements a sample or 2^29 elements a group; CPU tensors.

Bytes: 6 per element (statistics read 2, the normalisation reads 2 and writes 2) where eager moves 10 (2 + 4 + 4); at
1024 x 1024 x 128 channels 0.81 GB, or 0.19 ms at 4.2 TB/s. Eager's statistics take far longer than their 2 bytes: one
block a group, so 32 of 132 multiprocessors, each waiting for a load and a division 8,192 times.

Check first: if the trace shows ``RowwiseMomentsCUDAKernel`` for milliseconds, check that the site is mounted and not
declined; if ``_chains_kernel`` takes longer than reading its input, check that its loads still stand before the barrier
in the machine code (the assembler decides that), then try other values of ``STEPS``.

Source: the order of operations is read from ``aten/src/ATen/native/cuda/group_norm_kernel.cu``,
``SharedReduceOps.h`` and ``ActivationSiluKernel.cu`` of PyTorch; the kernels are our own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice

from fuseproof.fastpaths.kernels import group_norm_statistics as statistics
from fuseproof.fastpaths.kernels.arguments import first_of, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import rounded, widened
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, is_interpreted, on_device_of

BLOCK = 4096
"""Elements of one program: 16 bytes a load, two to four loads a thread."""
TILE_CHANNELS = 64
LARGEST_GRID_AXIS = 65535
LARGEST_SAMPLE = 2**31


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
    eps: float,
    silu: bool = True,
    channels_last: bool = False,
    rounded_statistics: bool = True,
) -> torch.Tensor:
    """diffusers' eager chain; ``rounded_statistics`` only says what the installed torch does by itself."""
    normed = F.group_norm(x, groups, weight, bias, eps)
    result = F.silu(normed) if silu else normed
    return result.contiguous(memory_format=torch.channels_last) if channels_last else result


@triton.jit
def _normalise(x, scale, offset, SILU: tl.constexpr, INTERPRETED: tl.constexpr):  # type: ignore[no-untyped-def]
    """bf16 elements and fp32 scale and offset -> bf16."""
    y = rounded(statistics.fused_multiply_add(scale, widened(x), offset, INTERPRETED))
    if SILU:
        exponential = tl.exp(0.0 - y) if INTERPRETED else libdevice.exp(0.0 - y)
        y = tl.math.div_rn(y, 1.0 + exponential)
    return y.to(tl.bfloat16)


@triton.jit
def _rows_kernel(  # type: ignore[no-untyped-def]
    x_ptr, affine_ptr, out_ptr, positions_in_units, rows,
    UNIT: tl.constexpr, BLOCK: tl.constexpr, SILU: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """One row is one channel of one sample; UNIT is a power of two that divides its length, for wider loads."""
    positions = positions_in_units * UNIT
    row = tl.program_id(1)
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = position < positions
    start = row.to(tl.int64) * positions
    scale = tl.load(affine_ptr + row)
    offset = tl.load(affine_ptr + rows + row)
    x = tl.load(x_ptr + start + position, mask=is_inside, other=0.0)
    tl.store(out_ptr + start + position, _normalise(x, scale, offset, SILU, INTERPRETED), mask=is_inside)


@triton.jit
def _channels_last_kernel(  # type: ignore[no-untyped-def]
    x_ptr, affine_ptr, out_ptr, positions_in_units, channels, samples,
    UNIT: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr, SILU: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    """A tile of channels and positions is read along the positions and written along the channels."""
    positions = positions_in_units * UNIT
    sample = tl.program_id(2)
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_inside = (channel < channels)[:, None] & (position < positions)[None, :]
    start = sample.to(tl.int64) * channels * positions
    affine = affine_ptr + sample * channels + channel
    scale = tl.load(affine, mask=channel < channels, other=0.0)
    offset = tl.load(affine + samples * channels, mask=channel < channels, other=0.0)
    x = tl.load(x_ptr + start + channel[:, None] * positions + position[None, :], mask=is_inside, other=0.0)
    y = _normalise(x, scale[:, None], offset[:, None], SILU, INTERPRETED)
    tl.store(out_ptr + start + position[None, :] * channels + channel[:, None], y, mask=is_inside)


def reject_reason(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
    eps: float,
    silu: bool = True,
    channels_last: bool = False,
    rounded_statistics: bool = True,
    out: torch.Tensor | None = None,
) -> str | None:
    """Why the kernel cannot take these arguments, or None."""
    if x.ndim < 3 or x.numel() == 0:
        return f"x has shape {list(x.shape)}; the kernel needs [N, C, *] with at least one element"
    samples, channels = x.shape[:2]
    positions = x.numel() // (samples * channels)
    return first_of(
        device_reason("x", x),
        f"x is {x.dtype}; the kernel needs torch.bfloat16" if x.dtype != torch.bfloat16 else None,
        None if x.is_contiguous() else f"x has strides {list(x.stride())}; the kernel needs a contiguous x",
        tensor_reason("weight", weight, (channels,), x.dtype, x.device),
        tensor_reason("bias", bias, (channels,), x.dtype, x.device),
        f"groups is {groups}; the kernel needs a divisor of {channels}" if groups < 1 or channels % groups else None,
        f"x has shape {list(x.shape)}; the kernel needs two positions or more per channel" if positions < 2 else None,
        f"x has {x.ndim} dimensions; channels_last needs 4" if channels_last and x.ndim != 4 else None,
        _size_reason(samples, channels, positions, groups),
        _output_reason(x, out, channels_last),
    )


def fused(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
    eps: float,
    silu: bool = True,
    channels_last: bool = False,
    rounded_statistics: bool = True,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """GroupNorm (and SiLU) of ``x``; ``out`` may be ``x`` itself unless ``channels_last``."""
    affine = statistics.channel_affine(x, weight, bias, groups, eps, rounded_statistics)
    samples, channels = x.shape[:2]
    positions = x.numel() // (samples * channels)
    unit = unit_of(positions)
    interpreted = is_interpreted()
    with on_device_of(x):
        if channels_last:
            out = torch.empty_like(x, memory_format=torch.channels_last) if out is None else out
            tile = tile_of(channels)
            grid = (triton.cdiv(positions, tile[1]), triton.cdiv(channels, tile[0]), samples)
            _channels_last_kernel[grid](
                x, affine, out, positions // unit, channels, samples,
                UNIT=unit, CHANNELS=tile[0], POSITIONS=tile[1], SILU=silu, INTERPRETED=interpreted,
                num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
            return out
        out = torch.empty_like(x) if out is None else out
        block = min(BLOCK, triton.next_power_of_2(positions))
        _rows_kernel[(triton.cdiv(positions, block), samples * channels)](
            x, affine, out, positions // unit, samples * channels,
            UNIT=unit, BLOCK=block, SILU=silu, INTERPRETED=interpreted,
            num_warps=8 if block == BLOCK else 4, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
    eps: float,
    silu: bool = True,
    channels_last: bool = False,
    rounded_statistics: bool = True,
    out: torch.Tensor | None = None,
) -> int:
    """Fewest bytes: the input twice, since no element can be normalised before the last one was seen; the output."""
    return 3 * x.numel() * x.element_size() + weight.nbytes + bias.nbytes


def unit_of(positions: int) -> int:
    """The largest power of two up to 8 (16 bytes of bf16) that divides ``positions``."""
    return min(8, positions & -positions)


def tile_of(channels: int) -> tuple[int, int]:
    """Channels and positions of one transposing program: 4096 elements, runs of 128 bytes either way."""
    tile_channels = min(TILE_CHANNELS, triton.next_power_of_2(channels))
    return tile_channels, min(1024, BLOCK // tile_channels)


def rounds_statistics(device: torch.device) -> bool:
    """Whether this torch rounds mean and rstd to bf16 on ``device``: asked of itself. Waits for the device.

    A mean of 1 + 2^-8 is no bf16 number: rounded to 1, it takes the smaller half of these values to 0, not to -0.97.
    """
    x = torch.ones(1, 1, 1024, dtype=torch.bfloat16, device=device)
    x[..., ::2] += 2**-7
    ones = torch.ones(1, dtype=torch.bfloat16, device=device)
    return bool(F.group_norm(x, 1, ones, torch.zeros_like(ones), 1e-6).min() > -0.5)


def compile_cases() -> list[CompileCase]:
    """Both layouts with and without SiLU, for lengths that 8 divides and that it does not."""
    cases = []
    pointers = {"x_ptr": "*bf16", "affine_ptr": "*fp32", "out_ptr": "*bf16", "positions_in_units": "i32"}
    for unit, silu in ((8, True), (8, False), (4, True)):
        flags = {"UNIT": unit, "SILU": silu, "INTERPRETED": False}
        rows = {"BLOCK": BLOCK, **flags}
        options = {"num_warps": 8, "enable_fp_fusion": False}
        cases.append(CompileCase(_rows_kernel, {**pointers, "rows": "i32"}, rows, options))
        tile = {"CHANNELS": TILE_CHANNELS, "POSITIONS": BLOCK // TILE_CHANNELS, **flags}
        sizes = {**pointers, "channels": "i32", "samples": "i32"}
        cases.append(CompileCase(_channels_last_kernel, sizes, tile, {"num_warps": 4, "enable_fp_fusion": False}))
    return cases


def _size_reason(samples: int, channels: int, positions: int, groups: int) -> str | None:
    sample, rows = channels * positions, samples * channels
    group = sample // max(groups, 1)
    if rows > LARGEST_GRID_AXIS or samples * groups > LARGEST_GRID_AXIS:
        return f"x has {rows} channels in all samples together; the kernel needs at most {LARGEST_GRID_AXIS}"
    if sample >= LARGEST_SAMPLE:
        return f"a sample has {sample} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
    if group > statistics.LARGEST_GROUP:
        return f"a group has {group} elements; the kernel needs at most {statistics.LARGEST_GROUP}"
    return None


def _output_reason(x: torch.Tensor, out: torch.Tensor | None, channels_last: bool) -> str | None:
    if out is None:
        return None
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        return f"out is {list(out.shape)} {out.dtype} on {out.device}; the kernel needs an out like x"
    if channels_last and out.data_ptr() == x.data_ptr():
        return "out is x; the kernel needs another tensor where the layout changes"
    if not out.is_contiguous(memory_format=memory_format):
        return f"out has strides {list(out.stride())}; the kernel needs {memory_format}"
    return None


@torch.library.custom_op("fuseproof::group_norm_silu", mutates_args=())
def group_norm_silu(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
    eps: float,
    silu: bool = True,
    channels_last: bool = False,
    rounded_statistics: bool = True,
) -> torch.Tensor:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    return fused(x, weight, bias, groups, eps, silu, channels_last, rounded_statistics)


@group_norm_silu.register_fake
def _fake(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    groups: int,
    eps: float,
    silu: bool = True,
    channels_last: bool = False,
    rounded_statistics: bool = True,
) -> torch.Tensor:
    return torch.empty_like(x, memory_format=torch.channels_last if channels_last else torch.contiguous_format)
