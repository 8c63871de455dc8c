"""RMSNorm that rounds twice, as diffusers' own class does, and a modulation in fp32, in one launch.

Formula: ``n = R(R(x * rstd) * weight)``, ``rstd = rsqrt(mean(x * x) + eps)``; then ``R(n * (1 + scale) + shift)`` with
    ``1 + scale``, product and sum in fp32. R is one rounding to bf16.
Shapes: x [B, S, D] bf16, rows of any stride (a transposed [S, B, D] stream, say), D a multiple of 128 up to 8064, at
    least 16 rows in all; weight [D] bf16; scale and shift [B, D] bf16, of any batch stride (parts of a ``chunk``).
    ``out`` is fresh, x itself, or rows of another buffer.
Rounds: three times: after the product with rstd, after the weight, at the end; all else is fp32, each operation by
    itself (no fma).
Replaces: ``diffusers.models.normalization.RMSNorm`` and ``(x.float() * (1 + scale.float()) +
    shift.float()).to(x.dtype)`` of ERNIE-Image's blocks, diffusers 0.42.1, where scale and shift are expanded to [S, B,
    D]: 15 kernels.
Exact: every bit, where torch sums the mean in the order of ``fastpaths/kernels/rms_statistics.py``.
Declines: other dtypes, a last dimension that is not contiguous, other widths, fewer than 16 rows, rows at an address
    that is no multiple of 16, eps below the smallest normal fp32 number.
Bytes: x once in, the result once out: 4 B S D (71 MB at S 4352, D 4096: 17 us at 4.2 TB/s).
Check first: if the trace shows ``reduce_kernel`` with ``MeanOps`` and a dozen pointwise kernels around it, check that
    the norm has a bf16 weight, and what the report says of its rows.
Source: diffusers models/normalization.py, transformer_ernie_image.py; aten/src/ATen/native/cuda/Reduce.cuh.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import rms_statistics
from fuseproof.fastpaths.kernels.arguments import first_of, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import rounded, widened
from fuseproof.fastpaths.kernels.launching import CompileCase, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.rms_statistics import (
    NUM_WARPS,
    ROWS,
    factor_of,
    grid_of,
    mean_of_squares,
    statistics_reason,
    sum_of_lanes,
    unroll_of,
)
from fuseproof.fastpaths.kernels.row_arguments import eps_reason, rows_reason, vectors_reason


def reference(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float
) -> torch.Tensor:
    """diffusers' eager expressions; a fresh tensor [B, S, D]."""
    normed = x * torch.rsqrt(mean_of_squares(x) + eps)
    if weight.dtype in (torch.float16, torch.bfloat16):
        normed = normed.to(weight.dtype)
    normed = normed * weight
    return (normed.float() * (1 + scale.unsqueeze(1).float()) + shift.unsqueeze(1).float()).to(normed.dtype)


@triton.jit
def norm_and_modulate(raw, rstd, weight, scale, shift):  # type: ignore[no-untyped-def]
    """bf16 as loaded, rstd fp32 -> bf16."""
    normed = rounded(rounded(widened(raw) * rstd) * widened(weight))
    return (normed * (1.0 + widened(scale)) + widened(shift)).to(tl.bfloat16)


@triton.jit
def write_modulated(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, weight_ptr, scale_ptr, shift_ptr, rstd, inside,
    D: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The second reading of [ROWS, D] rows: pointers [ROWS, 1] to rows and scalar ones to vectors, rstd [ROWS]."""
    # Vectors are loaded in the tile's own shape: a row vector would come in another layout and cross shared memory.
    column = tl.broadcast_to(tl.arange(0, 128)[None, :], (ROWS, 128))
    for start in range(0, D, 128 * UNROLL):
        loaded = ()
        for r in tl.static_range(UNROLL):
            place = start + r * 128 + column
            raw = tl.load(x_ptr + place, mask=inside, other=0.0)
            weight = tl.load(weight_ptr + place)
            scale = tl.load(scale_ptr + place)
            loaded = loaded + (raw, weight, scale, tl.load(shift_ptr + place))  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
        for r in tl.static_range(UNROLL):
            result = norm_and_modulate(
                loaded[4 * r], rstd[:, None], loaded[4 * r + 1], loaded[4 * r + 2], loaded[4 * r + 3]
            )
            tl.store(out_ptr + (start + r * 128 + column), result, mask=inside)


@triton.jit
def _rmsnorm_modulate_kernel(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, scale_ptr, shift_ptr, rstd_ptr, out_ptr,
    batches, rows, factor, eps,
    x_batch_stride, x_row_stride, scale_batch_stride, shift_batch_stride, rstd_batch_stride, rstd_row_stride,
    out_batch_stride, out_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr, HAS_RSTD: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    column = tl.broadcast_to(tl.arange(0, 128)[None, :], (ROWS, 128))
    groups = (rows + ROWS - 1) // ROWS
    for group in range(tl.program_id(0), batches * groups, tl.num_programs(0)):
        batch = (group // groups).to(tl.int64)
        row = (group % groups).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = tl.broadcast_to(row[:, None] < rows, (ROWS, 128))
        x_rows = x_ptr + batch * x_batch_stride + row[:, None] * x_row_stride
        if HAS_RSTD:
            place = rstd_ptr + batch * rstd_batch_stride + row * rstd_row_stride
            rstd = tl.load(place, mask=row < rows, other=0.0)
        else:
            squares = tl.zeros((ROWS, 128), tl.float32)
            for start in range(0, D, 128 * UNROLL):
                for r in tl.static_range(UNROLL):
                    x = widened(tl.load(x_rows + (start + r * 128 + column), mask=inside, other=0.0))
                    squares += x * x
            rstd = tl.rsqrt(sum_of_lanes(squares, ROWS, SHUFFLES) * factor + eps)
        write_modulated(
            x_rows, out_ptr + batch * out_batch_stride + row[:, None] * out_row_stride,
            weight_ptr, scale_ptr + batch * scale_batch_stride, shift_ptr + batch * shift_batch_stride,
            rstd, inside, D, ROWS, UNROLL,
        )  # fmt: skip


def reject_reason(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
    out: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return (
        rows_reason("x", x)
        or statistics_reason("x", x)
        or eps_reason(eps)
        or first_of(
            tensor_reason("weight", weight, x.shape[2:], device=x.device, alignment=x.element_size()),
            vectors_reason(x, 0, scale=scale, shift=shift),
            output_reason("out", out, x, x.shape),
        )
    )


def fused(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
    out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be x itself."""
    return launch(x, weight, scale, shift, eps, out, rms_statistics.REDUCTION)


def launch(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
    out: torch.Tensor | None, reduction: str,
) -> torch.Tensor:  # fmt: skip
    """:func:`fused` with the sum of squares taken by ``reduction``: "aten" or "torch"."""
    batch, rows, width = x.shape
    out = x.new_empty(x.shape) if out is None else out
    is_torch = reduction == "torch"
    rstd = torch.rsqrt(mean_of_squares(x) + eps) if is_torch else scale.unsqueeze(1)  # not read: HAS_RSTD is false
    with on_device_of(x):
        _rmsnorm_modulate_kernel[grid_of(batch, rows, x.device)](
            x, weight, scale, shift, rstd, out,
            batch, rows, factor_of(batch * rows, width), eps,
            *x.stride()[:2], scale.stride(0), shift.stride(0), *rstd.stride()[:2], *out.stride()[:2],
            D=width, ROWS=ROWS, UNROLL=unroll_of(width), HAS_RSTD=is_torch, SHUFFLES=not is_interpreted(),
            num_warps=NUM_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float, **_outputs: Any
) -> int:
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 2 * x.nbytes + weight.nbytes + scale.nbytes + shift.nbytes


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: D = 4096 with the sum in the kernel, and with torch's; a narrow width."""
    cases = ((4096, False), (4096, True), (640, False))
    return [
        rms_compile_case(_rmsnorm_modulate_kernel, {"D": width, "HAS_RSTD": has_rstd}, "rstd_ptr")
        for width, has_rstd in cases
    ]


def rms_compile_case(kernel: Any, constants: dict[str, Any], *fp32_pointers: str) -> CompileCase:
    """A case of a kernel that sums squares: bf16 pointers, but for the named ones."""
    constexprs = {**constants, "ROWS": ROWS, "UNROLL": unroll_of(constants["D"]), "SHUFFLES": True}
    types = {"eps": "fp32", "factor": "fp32", **dict.fromkeys(fp32_pointers, "*fp32")}
    names = [name for name in kernel.arg_names if name not in constexprs]
    signature = {name: types.get(name, "*bf16" if name.endswith("_ptr") else "i32") for name in names}
    return CompileCase(kernel, signature, constexprs, {"num_warps": NUM_WARPS, "enable_fp_fusion": False})


_SCHEMA = "(Tensor x, Tensor weight, Tensor scale, Tensor shift, float eps) -> Tensor"


@torch.library.custom_op("fuseproof::rmsnorm_modulate", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> torch.Tensor:
    """The functional form, for ``torch.compile``: a fresh output. Raises ValueError with the reason to decline it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(x: torch.Tensor, *_arguments: Any) -> torch.Tensor:
    return x.new_empty(x.shape)
