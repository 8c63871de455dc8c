"""A gated update added to the residual stream, and the modulated two-rounding RMSNorm of the sum, in one pass.

Formula: ``x = R(residual + R(gate * update))``, then ``R(n * (1 + scale) + shift)`` with ``n = R(R(x * rstd) *
    weight)`` (``rmsnorm_modulate``); both are returned. R is one rounding to bf16.
Shapes: residual and update [B, S, D] bf16, rows of any stride each (one may be a transposed [S, B, D], the other not),
    D a multiple of 128 up to 8064, at least 16 rows in all; weight [D], gate, scale and shift [B, D] bf16, of any batch
    stride. ``out`` (x) and ``modulated`` are fresh, or rows of other buffers; ``out`` may be residual itself,
    ``modulated`` update itself.
Rounds: five times: as ``gated_residual`` and ``rmsnorm_modulate`` one after the other.
Replaces: ``residual + (gate.float() * update.float()).to(dtype)``, the RMSNorm and the modulation that follow it in a
    block of ERNIE-Image, or at its end with the norm of the next block, diffusers 0.42.1: 20 kernels.
Exact: every bit; the norm sees the rounded sum that is stored, and sums its squares in torch's order
    (``fastpaths/kernels/rms_statistics.py``).
Declines: other dtypes, a last dimension that is not contiguous, other widths, fewer than 16 rows, rows at an address
    that is no multiple of 16, out and modulated in the same memory, eps below the smallest normal fp32 number.
Bytes: residual and update once in, sum and norm once out: 8 B S D (143 MB at S 4352, D 4096: 34 us at 4.2 TB/s).
Check first: if the trace shows ``_gated_residual_kernel`` right before ``_rmsnorm_modulate_kernel``, check whether
    ``rms_statistics.REDUCTION`` is "torch", which takes them one after the other.
Source: diffusers transformer_ernie_image.py, models/normalization.py; aten/src/ATen/native/cuda/Reduce.cuh.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import gated_residual, rms_statistics, rmsnorm_modulate
from fuseproof.fastpaths.kernels.arguments import first_of, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import widened
from fuseproof.fastpaths.kernels.gated_residual import add_gated
from fuseproof.fastpaths.kernels.launching import CompileCase, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.rms_statistics import (
    NUM_WARPS,
    ROWS,
    factor_of,
    grid_of,
    statistics_reason,
    sum_of_lanes,
    unroll_of,
)
from fuseproof.fastpaths.kernels.rmsnorm_modulate import rms_compile_case, write_modulated
from fuseproof.fastpaths.kernels.row_arguments import eps_reason, rows_reason, sharing_reason, vectors_reason


def reference(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """diffusers' eager expressions; fresh tensors [B, S, D]."""
    out = gated_residual.reference(residual, update, gate)
    return out, rmsnorm_modulate.reference(out, weight, scale, shift, eps)


@triton.jit
def _gated_residual_rmsnorm_modulate_kernel(  # type: ignore[no-untyped-def]
    residual_ptr, update_ptr, gate_ptr, weight_ptr, scale_ptr, shift_ptr, out_ptr, modulated_ptr,
    batches, rows, factor, eps,
    residual_batch_stride, residual_row_stride, update_batch_stride, update_row_stride,
    gate_batch_stride, scale_batch_stride, shift_batch_stride,
    out_batch_stride, out_row_stride, modulated_batch_stride, modulated_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, UNROLL: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    column = tl.broadcast_to(tl.arange(0, 128)[None, :], (ROWS, 128))
    groups = (rows + ROWS - 1) // ROWS
    for group in range(tl.program_id(0), batches * groups, tl.num_programs(0)):
        batch = (group // groups).to(tl.int64)
        row = (group % groups).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = tl.broadcast_to(row[:, None] < rows, (ROWS, 128))
        residual_rows = residual_ptr + batch * residual_batch_stride + row[:, None] * residual_row_stride
        update_rows = update_ptr + batch * update_batch_stride + row[:, None] * update_row_stride
        out_rows = out_ptr + batch * out_batch_stride + row[:, None] * out_row_stride
        gates = gate_ptr + batch * gate_batch_stride
        squares = tl.zeros((ROWS, 128), tl.float32)
        for start in range(0, D, 128 * UNROLL):
            loaded = ()
            for r in tl.static_range(UNROLL):
                place = start + r * 128 + column
                residual = tl.load(residual_rows + place, mask=inside, other=0.0)
                update = tl.load(update_rows + place, mask=inside, other=0.0)
                loaded = loaded + (residual, update, tl.load(gates + place))  # type: ignore[assignment]  # noqa: RUF005
            for r in tl.static_range(UNROLL):
                raw = add_gated(loaded[3 * r], loaded[3 * r + 1], loaded[3 * r + 2])
                tl.store(out_rows + (start + r * 128 + column), raw, mask=inside)
                squares += widened(raw) * widened(raw)
        rstd = tl.rsqrt(sum_of_lanes(squares, ROWS, SHUFFLES) * factor + eps)
        tl.debug_barrier()  # what is read again was written above, in this program
        write_modulated(
            out_rows, modulated_ptr + batch * modulated_batch_stride + row[:, None] * modulated_row_stride,
            weight_ptr, scale_ptr + batch * scale_batch_stride, shift_ptr + batch * shift_batch_stride,
            rstd, inside, D, ROWS, UNROLL,
        )  # fmt: skip


def reject_reason(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
    out: torch.Tensor | None = None, modulated: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return (
        rows_reason("residual", residual)
        or statistics_reason("residual", residual)
        or eps_reason(eps)
        or first_of(
            tensor_reason("update", update, residual.shape, device=residual.device),
            tensor_reason(
                "weight", weight, residual.shape[2:], device=residual.device, alignment=weight.element_size()
            ),
            vectors_reason(residual, 0, gate=gate, scale=scale, shift=shift),
            output_reason("out", out, residual, residual.shape),
            output_reason("modulated", modulated, residual, residual.shape),
            sharing_reason(out, modulated),
        )
    )


def fused(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
    out: torch.Tensor | None = None, modulated: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``residual`` itself."""
    batch, rows, width = residual.shape
    if rms_statistics.REDUCTION == "torch":
        out = gated_residual.fused(residual, update, gate, out=out)
        return out, rmsnorm_modulate.fused(out, weight, scale, shift, eps, modulated)
    out = residual.new_empty(residual.shape) if out is None else out
    modulated = residual.new_empty(residual.shape) if modulated is None else modulated
    with on_device_of(residual):
        _gated_residual_rmsnorm_modulate_kernel[grid_of(batch, rows, residual.device)](
            residual, update, gate, weight, scale, shift, out, modulated,
            batch, rows, factor_of(batch * rows, width), eps,
            *residual.stride()[:2], *update.stride()[:2],
            gate.stride(0), scale.stride(0), shift.stride(0), *out.stride()[:2], *modulated.stride()[:2],
            D=width, ROWS=ROWS, UNROLL=unroll_of(width), SHUFFLES=not is_interpreted(),
            num_warps=NUM_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out, modulated


def traffic_bytes(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float, **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 3 * residual.nbytes + update.nbytes + gate.nbytes + weight.nbytes + scale.nbytes + shift.nbytes


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: D = 4096, and a narrow width."""
    return [rms_compile_case(_gated_residual_rmsnorm_modulate_kernel, {"D": width}) for width in (4096, 640)]


_SCHEMA = (
    "(Tensor residual, Tensor update, Tensor gate, Tensor weight, Tensor scale, Tensor shift, float eps) "
    "-> (Tensor, Tensor)"
)


@torch.library.custom_op("fuseproof::gated_residual_rmsnorm_modulate", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The functional form, for ``torch.compile``: fresh outputs. Raises ValueError with the reason that declines it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(residual: torch.Tensor, *_arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return residual.new_empty(residual.shape), residual.new_empty(residual.shape)
