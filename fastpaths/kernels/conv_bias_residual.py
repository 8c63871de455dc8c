"""What follows a convolution in one pass: its bias, the residual, and the change of layout between the two.

Formula: ``h = R(x + bias_c)``; with a residual ``out = R(r + h)``, where ``r`` is the residual, or
``R(residual + residual_bias_c)`` if the residual is itself a convolution whose bias is still to be added (a shortcut);
with ``scale_factor`` s other than 1 ``R(out * (1 / s))``, as torch divides by a Python number on CUDA.

Shapes: x [N, C, H, W] bf16, a convolution's output without bias, contiguous or channels-last; bias [C] bf16; residual
as x, in either layout; residual_bias [C] bf16. The result has the layout of the residual, as torch's sum has, whatever
that of x; without a residual it is contiguous (NCHW).

Rounds: to bf16 after every addition, as the separate kernels do.

Replaces: ``output.add_(bias)`` inside torch's cuDNN convolution, ``input + hidden`` and ``/ output_scale_factor`` at
the end of ``ResnetBlock2D`` (diffusers 0.42.1), a division by 1.0 included, and a layout conversion.

Exact: yes, pointwise. Whether the convolution without bias, or in channels-last, gives the same bits is the site's to
verify: it compares convolution and epilogue together.

Declines: other dtypes, x neither contiguous nor channels-last, shapes that differ, a scale_factor of 0, more than
65,535 rows or 2^31 elements a sample; CPU tensors.

Bytes: 4 per element, 6 with a residual, where eager moves 4 for the bias, 6 for the sum and 4 for the division (14),
and cuDNN 4 more to convert a channels-last kernel's output; at 1024 x 1024 x 128 channels 0.81 against 1.88 GB.

Check first: if the trace shows ``nchwToNhwc`` or ``nhwcToNchw`` kernels beside convolutions, check whether
``vae_convolutions`` was rejected or declined; if a residual block ends in one more elementwise kernel, look for the
division.

Source: ``ConvBackend::Cudnn`` in ``aten/src/ATen/native/Convolution.cpp`` adds the bias in place after the
convolution; ``BinaryDivTrueKernel.cu`` multiplies by the reciprocal of a scalar. The kernels are our own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import first_of, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import rounded, widened
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, on_device_of

BLOCK = 4096
"""Elements of one program: 16 bytes a load, two to four loads a thread."""
TILE_CHANNELS = 64
LARGEST_GRID_AXIS = 65535
LARGEST_SAMPLE = 2**31


def reference(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None = None,
    residual_bias: torch.Tensor | None = None,
    scale_factor: float = 1.0,
) -> torch.Tensor:
    """The eager chain after a convolution in NCHW; with a residual always ending in the division."""
    hidden = x.contiguous() + bias[:, None, None]
    if residual is None:
        return hidden
    other = residual if residual_bias is None else residual + residual_bias[:, None, None]
    return (other + hidden) / scale_factor


@triton.jit
def _rows_kernel(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, residual_ptr, residual_bias_ptr, out_ptr, channels, positions_in_units, inverse_factor,
    UNIT: tl.constexpr, BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_RESIDUAL_BIAS: tl.constexpr, IS_SCALED: tl.constexpr,
):  # fmt: skip
    """One row is one channel of one sample; UNIT is a power of two that divides its length, for wider loads."""
    positions = positions_in_units * UNIT
    row = tl.program_id(1)
    channel = row % channels
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_inside = position < positions
    start = row.to(tl.int64) * positions
    result = widened(tl.load(x_ptr + start + position, mask=is_inside, other=0.0))
    result = result + widened(tl.load(bias_ptr + channel))
    if HAS_RESIDUAL:
        other = widened(tl.load(residual_ptr + start + position, mask=is_inside, other=0.0))
        if HAS_RESIDUAL_BIAS:
            other = rounded(other + widened(tl.load(residual_bias_ptr + channel)))
        result = other + rounded(result)
    if IS_SCALED:
        result = rounded(result) * inverse_factor
    tl.store(out_ptr + start + position, result.to(tl.bfloat16), mask=is_inside)


@triton.jit
def _tiles_kernel(  # type: ignore[no-untyped-def]
    x_ptr, bias_ptr, residual_ptr, residual_bias_ptr, out_ptr, channels, positions_in_units, inverse_factor,
    UNIT: tl.constexpr, CHANNELS: tl.constexpr, POSITIONS: tl.constexpr,
    X_CHANNELS_LAST: tl.constexpr, OUT_CHANNELS_LAST: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr, HAS_RESIDUAL_BIAS: tl.constexpr, IS_SCALED: tl.constexpr,
):  # fmt: skip
    """A tile of channels and positions: x is read in its layout, the residual read and the result written in theirs."""
    positions = positions_in_units * UNIT
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)[None, :]
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    is_channel = channel < channels
    is_inside = is_channel & (position < positions)
    start = tl.program_id(2).to(tl.int64) * channels * positions
    planes = start + channel * positions + position
    pixels = start + position * channels + channel
    result = widened(tl.load(x_ptr + (pixels if X_CHANNELS_LAST else planes), mask=is_inside, other=0.0))
    result = result + widened(tl.load(bias_ptr + channel, mask=is_channel, other=0.0))
    if HAS_RESIDUAL:
        other = tl.load(residual_ptr + (pixels if OUT_CHANNELS_LAST else planes), mask=is_inside, other=0.0)
        other = widened(other)
        if HAS_RESIDUAL_BIAS:
            other = rounded(other + widened(tl.load(residual_bias_ptr + channel, mask=is_channel, other=0.0)))
        result = other + rounded(result)
    if IS_SCALED:
        result = rounded(result) * inverse_factor
    tl.store(out_ptr + (pixels if OUT_CHANNELS_LAST else planes), result.to(tl.bfloat16), mask=is_inside)


def reject_reason(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None = None,
    residual_bias: torch.Tensor | None = None,
    scale_factor: float = 1.0,
    out: torch.Tensor | None = None,
) -> str | None:
    """Why the kernel cannot take these arguments, or None."""
    if x.ndim != 4 or x.numel() == 0:
        return f"x has shape {list(x.shape)}; the kernel needs [N, C, H, W] with at least one element"
    samples, channels = x.shape[:2]
    return first_of(
        device_reason("x", x),
        f"x is {x.dtype}; the kernel needs torch.bfloat16" if x.dtype != torch.bfloat16 else None,
        _layout_reason("x", x),
        tensor_reason("bias", bias, (channels,), x.dtype, x.device),
        _residual_reason(x, residual, residual_bias),
        _scale_reason(residual, scale_factor),
        _output_reason(x, residual, out),
        f"x has {samples * channels} channels in all samples together; the kernel needs at most {LARGEST_GRID_AXIS}"
        if samples * channels > LARGEST_GRID_AXIS
        else None,
        f"a sample has {x[0].numel()} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
        if x[0].numel() >= LARGEST_SAMPLE
        else None,
    )


def fused(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None = None,
    residual_bias: torch.Tensor | None = None,
    scale_factor: float = 1.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Bias, residual and factor on a convolution's output; ``out`` may be the residual, or x where layouts agree."""
    samples, channels, height, width = x.shape
    positions = height * width
    unit = min(8, positions & -positions)
    out = _empty_result(x, residual) if out is None else out
    other = x if residual is None else residual
    arguments = (x, bias, other, bias if residual_bias is None else residual_bias, out, channels, positions // unit)
    inverse_factor = float(torch.tensor(1.0) / torch.tensor(scale_factor)) if scale_factor != 1.0 else 1.0
    flags = {
        "UNIT": unit,
        "HAS_RESIDUAL": residual is not None,
        "HAS_RESIDUAL_BIAS": residual_bias is not None,
        "IS_SCALED": scale_factor != 1.0,
        "enable_fp_fusion": False,
    }
    with on_device_of(x):
        if x.is_contiguous() and out.is_contiguous():
            block = min(BLOCK, triton.next_power_of_2(positions))
            rows = (triton.cdiv(positions, block), samples * channels)
            _rows_kernel[rows](*arguments, inverse_factor, BLOCK=block, num_warps=8 if block == BLOCK else 4, **flags)
            return out
        tile = min(TILE_CHANNELS, triton.next_power_of_2(channels))
        along = min(1024, BLOCK // tile)
        tiles = (triton.cdiv(positions, along), triton.cdiv(channels, tile), samples)
        _tiles_kernel[tiles](
            *arguments, inverse_factor, CHANNELS=tile, POSITIONS=along, num_warps=4,
            X_CHANNELS_LAST=not x.is_contiguous(), OUT_CHANNELS_LAST=not out.is_contiguous(), **flags,
        )  # fmt: skip
    return out


def traffic_bytes(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None = None,
    residual_bias: torch.Tensor | None = None,
    scale_factor: float = 1.0,
    out: torch.Tensor | None = None,
) -> int:
    """Fewest bytes: every input once, the result once."""
    optional = sum(tensor.nbytes for tensor in (residual, residual_bias) if tensor is not None)
    return 2 * x.numel() * x.element_size() + bias.nbytes + optional


def compile_cases() -> list[CompileCase]:
    """Both layouts with and without residual, with a shortcut's bias and with a factor."""
    pointers = dict.fromkeys(("x_ptr", "bias_ptr", "residual_ptr", "residual_bias_ptr", "out_ptr"), "*bf16")
    sizes = {"channels": "i32", "positions_in_units": "i32", "inverse_factor": "fp32"}
    cases = []
    for residual, residual_bias, scaled in ((False, False, False), (True, False, False), (True, True, True)):
        flags = {"HAS_RESIDUAL": residual, "HAS_RESIDUAL_BIAS": residual_bias, "IS_SCALED": scaled}
        rows = {"UNIT": 8, "BLOCK": BLOCK, **flags}
        options = {"num_warps": 8, "enable_fp_fusion": False}
        cases.append(CompileCase(_rows_kernel, {**pointers, **sizes}, rows, options))
        layouts = {"X_CHANNELS_LAST": True, "OUT_CHANNELS_LAST": residual_bias}
        tile = {"UNIT": 8, "CHANNELS": TILE_CHANNELS, "POSITIONS": BLOCK // TILE_CHANNELS, **layouts, **flags}
        options = {"num_warps": 4, "enable_fp_fusion": False}
        cases.append(CompileCase(_tiles_kernel, {**pointers, **sizes}, tile, options))
    return cases


def _layout_reason(name: str, tensor: torch.Tensor) -> str | None:
    if tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last):
        return None
    return f"{name} has strides {list(tensor.stride())}; the kernel needs a contiguous or channels-last tensor"


def _residual_reason(x: torch.Tensor, residual: torch.Tensor | None, residual_bias: torch.Tensor | None) -> str | None:
    if residual is None:
        return "residual_bias without residual; the kernel adds it to one" if residual_bias is not None else None
    if residual.shape != x.shape or residual.dtype != x.dtype or residual.device != x.device:
        seen = f"{list(residual.shape)} {residual.dtype} on {residual.device}"
        return f"residual is {seen}; the kernel needs a residual like x"
    bias_reason = None
    if residual_bias is not None:
        bias_reason = tensor_reason("residual_bias", residual_bias, (x.shape[1],), x.dtype, x.device)
    return first_of(_layout_reason("residual", residual), bias_reason)


def _scale_reason(residual: torch.Tensor | None, scale_factor: float) -> str | None:
    if scale_factor == 0.0:
        return "scale_factor is 0; the kernel needs another number"
    if residual is None and scale_factor != 1.0:
        return f"scale_factor is {scale_factor} without a residual; the kernel needs 1"
    return None


def _empty_result(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device) if residual is None else torch.empty_like(residual)


def _output_reason(x: torch.Tensor, residual: torch.Tensor | None, out: torch.Tensor | None) -> str | None:
    if out is None:
        return None
    layout = torch.contiguous_format if residual is None or residual.is_contiguous() else torch.channels_last
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device:
        return f"out is {list(out.shape)} {out.dtype} on {out.device}; the kernel needs an out like x"
    if not out.is_contiguous(memory_format=layout):
        return f"out has strides {list(out.stride())}; the kernel needs {layout}"
    if out.data_ptr() == x.data_ptr() and not x.is_contiguous(memory_format=layout):
        return "out is x; the kernel needs another tensor where the layout changes"
    return None


@torch.library.custom_op("fuseproof::conv_bias_residual", mutates_args=())
def conv_bias_residual(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None = None,
    residual_bias: torch.Tensor | None = None,
    scale_factor: float = 1.0,
) -> torch.Tensor:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    return fused(x, bias, residual, residual_bias, scale_factor)


@conv_bias_residual.register_fake
def _fake(
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None = None,
    residual_bias: torch.Tensor | None = None,
    scale_factor: float = 1.0,
) -> torch.Tensor:
    return _empty_result(x, residual)
