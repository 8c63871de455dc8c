"""tanh-GELU of a projection, in place or into a wider buffer.

Formula: ``R(0.5 * x * (1 + tanh(b * (x + k * x * x * x))))``, b = sqrt(2 / pi), k = 0.044715, R one rounding to bf16.
Shapes: x [B, S, N] bf16 with a contiguous last dimension, rows of any stride; the output is fresh, x itself, or a view
    of the same shape into another buffer.
Rounds: once, at the end; inside, all is fp32.
Replaces: ``torch.nn.functional.gelu(x, approximate="tanh")`` (diffusers ``GELU``, ``act_mlp``).
Exact: every bit. Reproduced from aten's ActivationGeluKernel: b as fp32(sqrt(2) * 2 / sqrt(pi) * 0.5), x * x * x from
    left to right, ``x + k * cube`` as one fma (nvcc contracts it), ``(0.5 * x) * (1 + tanh)``. CUDA's tanhf takes
    ``1 - 2 / (exp2(2.885 |y|) + 1)`` from |y| = 0.6 on, with approximate exp2 and reciprocal, and a polynomial below.
    Here the first form serves everywhere, without a branch: below 0.6 its fp32 value may differ in the last places.
    Over all 65,280 finite x that changes no bf16 result, whatever the last two ulp of exp2 and the last one of the
    reciprocal (subnormal x need exp2(0) = 1 and 1 / 2 to be exact); neither would x + k * cube without the fma.
Declines: other dtypes, a last dimension that is not contiguous, addresses that are no multiple of 16.
Bytes: once in, once out: 4 B S N (226 MB at S 4608, N 12288: 54 us at 4.2 TB/s).
Check first: if the trace shows ``GeluCUDAKernelImpl``, check that the projection's output reaches this site as it is,
    not through a cast or a dropout.
Source: aten/src/ATen/native/cuda/ActivationGeluKernel.cu; CUDA's tanhf as libdevice holds it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice

from fuseproof.fastpaths.kernels.arguments import dimensions_reason, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, is_interpreted, on_device_of


@dataclass(frozen=True)
class Launch:
    """A program takes ``block`` columns of one row. ``tanh``: "exp" (above), "libdevice" (CUDA's, with its branch)."""

    block: int = 2048
    num_warps: int = 4
    tanh: str = "exp"


# 16 elements a thread, two 16-byte loads on their way at once.
_LAUNCH = Launch()


def reference(x: torch.Tensor) -> torch.Tensor:
    """diffusers' eager expression; a fresh tensor like ``x``."""
    return F.gelu(x, approximate="tanh")


@triton.jit
def tanh_of(y, TANH: tl.constexpr):  # type: ignore[no-untyped-def]
    """fp32 -> fp32. "float64" serves Triton's interpreter, which has neither libdevice nor PTX."""
    if TANH == "libdevice":
        return libdevice.tanh(y)
    magnitude = tl.abs(y)
    if TANH == "float64":
        wide = magnitude.to(tl.float64)
        power = tl.exp(-2.0 * wide)
        series = wide - wide * wide * wide / 3.0  # where 1 - power would cancel
        unsigned = tl.where(wide < 1e-3, series, (1.0 - power) / (1.0 + power)).to(tl.float32)
    else:
        inverse = tl.inline_asm_elementwise(
            "{ .reg .f32 t; ex2.approx.ftz.f32 t, $1; add.rn.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 $0, t; }",
            "=f,f",
            [magnitude * 2.885390043258667],
            dtype=tl.float32,
            is_pure=True,
            pack=1,
        )
        unsigned = tl.fma(inverse, -2.0, 1.0)
    sign = y.to(tl.int32, bitcast=True) & -2147483648
    return (unsigned.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def gelu(raw, TANH: tl.constexpr):  # type: ignore[no-untyped-def]
    """bf16 as loaded -> bf16, in aten's order."""
    x = raw.to(tl.float32)
    inner = 0.7978845834732056 * tl.fma(x * x * x, 0.044714998453855515, x)
    return (0.5 * x * (1.0 + tanh_of(inner, TANH))).to(tl.bfloat16)


@triton.jit
def _gelu_tanh_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    out_ptr,
    x_batch_stride,
    x_row_stride,
    out_batch_stride,
    out_row_stride,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    TANH: tl.constexpr,
):
    programs_per_row: tl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // programs_per_row).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    column = (tl.program_id(0) % programs_per_row) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    raw = tl.load(x_ptr + batch * x_batch_stride + row * x_row_stride + column, mask=inside, other=0.0)
    tl.store(out_ptr + batch * out_batch_stride + row * out_row_stride + column, gelu(raw, TANH), mask=inside)


def reject_reason(x: torch.Tensor, out: torch.Tensor | None = None) -> str | None:
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return (
        device_reason("x", x)
        or dimensions_reason("x", x, "B S N")
        or tensor_reason("x", x, x.shape)
        or output_reason("out", out, x, x.shape)
    )


def tanh_choice() -> str:
    """The TANH of a launch here."""
    return "float64" if is_interpreted() else _LAUNCH.tanh


def fused(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``x``."""
    batch, rows, columns = x.shape
    out = x.new_empty(x.shape) if out is None else out
    grid = (rows * triton.cdiv(columns, _LAUNCH.block), batch)
    with on_device_of(x):
        _gelu_tanh_kernel[grid](
            x,
            out,
            *x.stride()[:2],
            *out.stride()[:2],
            COLUMNS=columns,
            BLOCK=_LAUNCH.block,
            TANH=tanh_choice(),
            num_warps=_LAUNCH.num_warps,
            enable_fp_fusion=False,
        )
    return out


def traffic_bytes(x: torch.Tensor, out: torch.Tensor | None = None) -> int:
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 2 * x.nbytes


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: the MLP of LongCat and FLUX (12288), and a width that no block divides."""
    signature = {"x_ptr": "*bf16", "out_ptr": "*bf16"}
    signature |= {name: "i32" for name in _gelu_tanh_kernel.arg_names if name.endswith("_stride")}
    options = {"num_warps": _LAUNCH.num_warps, "enable_fp_fusion": False}
    return [
        CompileCase(_gelu_tanh_kernel, signature, {"COLUMNS": columns, "BLOCK": _LAUNCH.block, "TANH": tanh}, options)
        for columns, tanh in ((12288, "exp"), (12288, "libdevice"), (1000, "exp"))
    ]


@torch.library.custom_op("fuseproof::gelu_tanh", mutates_args=(), schema="(Tensor x) -> Tensor")
def operator(x: torch.Tensor) -> torch.Tensor:
    """The functional form, for ``torch.compile``: a fresh output. Raises ValueError with the reason to decline it."""
    if reason := reject_reason(x):
        raise ValueError(reason)
    return fused(x)


@operator.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape)
