"""torch's RMSNorm over whole rows, all heads together, of queries or keys that may be parts of a packed projection.

Formula: ``R(weight * (rstd * x))`` with ``rstd = rsqrt(sum(x * x) / D + eps)``, fp32 throughout, R one rounding to
    bf16.
Shapes: x [B, S, D] bf16, rows of any stride (a part of a packed [B, S, 2 D], say), D up to 16384 and divisible by 4;
    weight [D] bf16. ``out`` is fresh, or x itself, or rows of another buffer.
Rounds: once, after the weight.
Replaces: ``torch.nn.RMSNorm(D)`` of ``norm_q`` and ``norm_k`` in the cross-attention of ``WanAttention``, diffusers
    0.42.1: one kernel on contiguous rows, and a copy before it on others.
Exact: every bit. Reproduced from aten's ``vectorized_layer_norm_kernel`` with ``rms_norm``, torch 2.9 and later: 128
    threads take four neighbouring columns each, every 512 columns again, and add the squares from left to right
    (fma); lanes are folded 16, 8, 4, 2, 1 apart, warps 2 and 1 apart; sum / D; ``rsqrtf``; weight * (rstd * x).
Declines: other dtypes (torch takes another way with weights in fp32), a last dimension that is not contiguous, a D
    that 4 does not divide or beyond 16384, rows at an address that is no multiple of 16, eps below the smallest
    normal fp32 number.
Bytes: x once in, once out: 4 B S D (335 MB at S 27280, D 3072: 80 us at 4.2 TB/s).
Check first: if the trace shows ``vectorized_layer_norm_kernel`` beside the cross-attention, check that weight and
    rows are bf16.
Source: diffusers transformer_wan.py; aten/src/ATen/native/cuda/layer_norm_kernel.cu (compute_stats).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import first_of, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import widened
from fuseproof.fastpaths.kernels.launching import CompileCase, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.rms_statistics import add, fold_halves, halves
from fuseproof.fastpaths.kernels.row_arguments import eps_reason, rows_reason
from fuseproof.fastpaths.kernels.table_rows import rows_per_program
from fuseproof.fastpaths.kernels.welford import NUM_WARPS


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """torch's own norm; a fresh tensor [B, S, D]."""
    return F.rms_norm(x, x.shape[-1:], weight, eps)


@triton.jit
def push_squares(x, squares):  # type: ignore[no-untyped-def]
    """The next 512 columns of a row, x [512] fp32, into the sums [128] of aten's threads: four columns a thread."""
    even, odd = tl.split(tl.reshape(x, (128, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    squares = tl.fma(first, first, squares)
    squares = tl.fma(second, second, squares)
    squares = tl.fma(third, third, squares)
    return tl.fma(fourth, fourth, squares)


@triton.jit
def rstd_of(squares, eps, D: tl.constexpr, SHUFFLES: tl.constexpr):  # type: ignore[no-untyped-def]
    """1 / sqrt(mean + eps) of the 128 threads' sums, fp32 (a scalar, or [1] where folds are spelled out)."""
    if SHUFFLES:
        total = tl.reduce(squares, 0, add)
    else:
        warps = tl.reshape(fold_halves(tl.reshape(squares, (4, 32)), 4), (1, 4))
        total = tl.reshape(halves(halves(warps, 1, 4), 1, 2), (1,))
    return tl.rsqrt(tl.math.div_rn(total, D * 1.0) + eps)


@triton.jit(do_not_specialize=["rows"])
def _across_heads_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, out_ptr,
    rows, eps,
    x_batch_stride, x_row_stride, out_batch_stride, out_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    batch = tl.program_id(1).to(tl.int64)
    x_ptr += batch * x_batch_stride
    out_ptr += batch * out_batch_stride
    ROUNDS: tl.constexpr = (D + 511) // 512
    kept = ()
    for i in tl.static_range(ROWS):
        row = first + i
        for r in tl.static_range(ROUNDS):
            column = r * 512 + tl.arange(0, 512)
            inside = (column < D) & (row < rows)
            x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0)
            kept = kept + (x,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
    rstds = ()
    for i in tl.static_range(ROWS):
        squares = tl.zeros((128,), tl.float32)
        for r in tl.static_range(ROUNDS):
            squares = push_squares(widened(kept[i * ROUNDS + r]), squares)
        rstds = rstds + (rstd_of(squares, eps, D, SHUFFLES),)  # type: ignore[assignment]  # noqa: RUF005
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        weight = widened(tl.load(weight_ptr + column, mask=column < D, other=0.0, eviction_policy="evict_last"))
        for i in tl.static_range(ROWS):
            row = first + i
            normed = (weight * (rstds[i] * widened(kept[i * ROUNDS + r]))).to(tl.bfloat16)
            tl.store(out_ptr + row * out_row_stride + column, normed, mask=(column < D) & (row < rows))


def reject_reason(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> str | None:
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return rows_reason("x", x) or first_of(
        tensor_reason("weight", weight, x.shape[2:], device=x.device),
        eps_reason(eps),
        output_reason("out", out, x, x.shape),
    )


def fused(x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor | None = None) -> torch.Tensor:
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``x`` itself."""
    batch, rows, width = x.shape
    out = x.new_empty(x.shape) if out is None else out
    side_by_side = rows_per_program(width)
    with on_device_of(x):
        _across_heads_norm_kernel[(triton.cdiv(rows, side_by_side), batch)](
            x, weight, out,
            rows, eps,
            *x.stride()[:2], *out.stride()[:2],
            D=width, ROWS=side_by_side, SHUFFLES=not is_interpreted(),
            num_warps=NUM_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(x: torch.Tensor, weight: torch.Tensor, *_arguments: Any, **_outputs: Any) -> int:
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 2 * x.nbytes + weight.nbytes


def compile_cases() -> list[CompileCase]:
    """A width that models launch, and one that 512 does not divide."""
    names = _across_heads_norm_kernel.arg_names[:-3]
    signature = {name: "*bf16" if name.endswith("_ptr") else "i32" for name in names} | {"eps": "fp32"}
    options = {"num_warps": NUM_WARPS, "enable_fp_fusion": False}
    constants = ({"D": width, "ROWS": rows_per_program(width), "SHUFFLES": True} for width in (3072, 516))
    return [CompileCase(_across_heads_norm_kernel, signature, constant, options) for constant in constants]


@torch.library.custom_op(
    "fuseproof::across_heads_norm", mutates_args=(), schema="(Tensor x, Tensor weight, float eps) -> Tensor"
)
def operator(*arguments: Any) -> torch.Tensor:
    """The functional form, for ``torch.compile``: a fresh output. Raises ValueError with the reason to decline it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(x: torch.Tensor, *_arguments: Any) -> torch.Tensor:
    return x.new_empty(x.shape)
