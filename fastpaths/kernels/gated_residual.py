"""A gated update added to the residual stream, in one launch.

Formula: ``R(residual + R(gate * update))``, R one rounding to bf16.
Shapes: residual and update [B, S, D] bf16, rows of any stride, D up to 16384 and divisible by 4; gate [B, D] bf16, of
    any batch stride (a part of a ``chunk``); rows [0, text_rows) of every sample take text_gate. ``out`` is fresh, or
    residual or update itself, or rows of another buffer.
Rounds: twice, after the product and after the sum.
Replaces: ``residual + gate.unsqueeze(1) * update`` of FLUX-like blocks, diffusers 0.42.1: two kernels, five passes.
Exact: every bit; each step is rounded to bf16 before the next, so nothing can be contracted.
Declines: other dtypes, a last dimension that is not contiguous, a D that 4 does not divide or beyond 16384, residual,
    update or out at an address that is no multiple of 16.
Bytes: residual and update once in, the sum once out: 6 B S D (85 MB at S 4608, D 3072: 20 us at 4.2 TB/s).
Check first: if the trace shows a multiplication and an addition of [B, S, D] after a projection, check whether a
    LayerNorm follows them: ``gated_residual_layernorm_modulate`` takes all of it in one pass.
Source: diffusers transformer_longcat_image.py, transformer_flux.py.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import output_reason, tensor_reason
from fuseproof.fastpaths.kernels.launching import CompileCase, on_device_of
from fuseproof.fastpaths.kernels.row_arguments import row_compile_case, rows_reason, vector_sets, vectors_reason

BLOCK = 1024
"""Columns a round: one 16-byte load a thread and tensor with four warps."""
NUM_WARPS = 4


def reference(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    text_gate: torch.Tensor | None = None, text_rows: int = 0,
) -> torch.Tensor:  # fmt: skip
    """diffusers' eager expression, of text and image rows apart; a fresh tensor [B, S, D]."""
    if text_rows == 0:
        return residual + gate.unsqueeze(1) * update
    assert text_gate is not None
    text = residual[:, :text_rows] + text_gate.unsqueeze(1) * update[:, :text_rows]
    return torch.cat([text, residual[:, text_rows:] + gate.unsqueeze(1) * update[:, text_rows:]], dim=1)


@triton.jit
def add_gated(residual, update, gate):  # type: ignore[no-untyped-def]
    """R(residual + R(gate * update)) of bf16 values, as bf16."""
    gated = (gate.to(tl.float32) * update.to(tl.float32)).to(tl.bfloat16)
    return (residual.to(tl.float32) + gated.to(tl.float32)).to(tl.bfloat16)


@triton.jit(do_not_specialize=["text_rows"])
def _gated_residual_kernel(  # type: ignore[no-untyped-def]
    residual_ptr, update_ptr, gate_ptr, text_gate_ptr, out_ptr,
    text_rows,
    residual_batch_stride, residual_row_stride, update_batch_stride, update_row_stride,
    gate_batch_stride, text_gate_batch_stride, out_batch_stride, out_row_stride,
    D: tl.constexpr, BLOCK: tl.constexpr, HAS_TEXT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    residual_ptr += batch * residual_batch_stride + row * residual_row_stride
    update_ptr += batch * update_batch_stride + row * update_row_stride
    out_ptr += batch * out_batch_stride + row * out_row_stride
    gate_ptr += batch * gate_batch_stride
    if HAS_TEXT:
        gate_ptr = tl.where(row < text_rows, text_gate_ptr + batch * text_gate_batch_stride, gate_ptr)
    for r in tl.static_range((D + BLOCK - 1) // BLOCK):
        column = r * BLOCK + tl.arange(0, BLOCK)
        inside = column < D
        residual = tl.load(residual_ptr + column, mask=inside, other=0.0)
        update = tl.load(update_ptr + column, mask=inside, other=0.0)
        gate = tl.load(gate_ptr + column, mask=inside, other=0.0)
        tl.store(out_ptr + column, add_gated(residual, update, gate), mask=inside)


def reject_reason(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    text_gate: torch.Tensor | None = None, text_rows: int = 0, out: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return (
        rows_reason("residual", residual)
        or tensor_reason("update", update, residual.shape, device=residual.device)
        or vectors_reason(residual, text_rows, gate=gate, text_gate=text_gate)
        or output_reason("out", out, residual, residual.shape)
    )


def fused(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    text_gate: torch.Tensor | None = None, text_rows: int = 0, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``residual`` itself."""
    batch, rows, width = residual.shape
    out = residual.new_empty(residual.shape) if out is None else out
    text_gate = gate if text_gate is None else text_gate  # not read where HAS_TEXT is false
    with on_device_of(residual):
        _gated_residual_kernel[(rows, batch)](
            residual, update, gate, text_gate, out,
            text_rows,
            *residual.stride()[:2], *update.stride()[:2],
            gate.stride(0), text_gate.stride(0), *out.stride()[:2],
            D=width, BLOCK=BLOCK, HAS_TEXT=text_rows > 0,
            num_warps=NUM_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    text_gate: torch.Tensor | None = None, text_rows: int = 0, **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 2 * residual.nbytes + update.nbytes + vector_sets(residual.shape[1], text_rows) * gate.nbytes


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: D = 3072 with and without text rows, a width that no block divides."""
    cases = ((3072, True), (3072, False), (2432, True))
    constants = ({"D": width, "BLOCK": BLOCK, "HAS_TEXT": has_text} for width, has_text in cases)
    return [row_compile_case(_gated_residual_kernel, constant, NUM_WARPS) for constant in constants]


_SCHEMA = "(Tensor residual, Tensor update, Tensor gate, Tensor? text_gate=None, int text_rows=0) -> Tensor"


@torch.library.custom_op("fuseproof::gated_residual", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> torch.Tensor:
    """The functional form, for ``torch.compile``: a fresh output. Raises ValueError with the reason to decline it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(residual: torch.Tensor, *_arguments: Any) -> torch.Tensor:
    return residual.new_empty(residual.shape)
