"""A gated update added to the residual stream, and the modulated LayerNorm of the sum, in one pass over the rows.

Formula: ``x = R(residual + R(gate * update))``, then ``R(R(R(LN(x)) * R(1 + scale)) + shift)``; both are returned. R is
    one rounding to bf16; LN has fp32 statistics and no weights.
Shapes: residual and update [B, S, D] bf16, rows of any stride, D up to 16384 and divisible by 4; gate, scale and
    shift [B, D] bf16, of any batch stride (parts of a ``chunk``); rows [0, text_rows) of every sample take the text_*
    vectors. ``out`` (x) and ``modulated`` are fresh, or rows of other buffers; ``out`` may be residual itself,
    ``modulated`` update itself.
Rounds: six times: as ``gated_residual`` and ``layernorm_modulate`` one after the other.
Replaces: ``x = residual + gate.unsqueeze(1) * update`` and ``norm(x) * (1 + scale[:, None]) + shift[:, None]`` between
    the halves of a FLUX-like block, or at its end with the norm of the next block, diffusers 0.42.1: six kernels,
    eleven passes.
Exact: every bit; the norm sees the rounded sum that is stored, from registers, in aten's order of summation
    (``fastpaths/kernels/welford.py``).
Declines: other dtypes, a last dimension that is not contiguous, a D that 4 does not divide or beyond 16384, rows at an
    address that is no multiple of 16, out and modulated in the same memory, eps below the smallest normal fp32 number.
Bytes: residual and update once in, sum and norm once out: 8 B S D (113 MB at S 4608, D 3072: 27 us at 4.2 TB/s).
Check first: if the trace shows ``_gated_residual_kernel`` right before ``_layernorm_modulate_kernel``, check that the
    site knows the scale and shift of the norm that follows when it adds the update.
Source: diffusers transformer_longcat_image.py, models/normalization.py; aten/src/ATen/native/cuda/layer_norm_kernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import gated_residual, layernorm_modulate
from fuseproof.fastpaths.kernels.arguments import output_reason, tensor_reason
from fuseproof.fastpaths.kernels.gated_residual import add_gated
from fuseproof.fastpaths.kernels.launching import CompileCase, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.row_arguments import (
    eps_reason,
    row_compile_case,
    rows_reason,
    sharing_reason,
    vector_sets,
    vectors_reason,
)
from fuseproof.fastpaths.kernels.welford import NUM_WARPS, empty_state, mean_and_rstd, modulate, push_round


def reference(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    scale: torch.Tensor, shift: torch.Tensor, eps: float,
    text_gate: torch.Tensor | None = None, text_scale: torch.Tensor | None = None,
    text_shift: torch.Tensor | None = None, text_rows: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """diffusers' eager expressions, of text and image rows apart; fresh tensors [B, S, D]."""
    out = gated_residual.reference(residual, update, gate, text_gate, text_rows)
    return out, layernorm_modulate.reference(out, scale, shift, eps, text_scale, text_shift, text_rows)


@triton.jit(do_not_specialize=["text_rows"])
def _gated_residual_layernorm_modulate_kernel(  # type: ignore[no-untyped-def]
    residual_ptr, update_ptr, gate_ptr, scale_ptr, shift_ptr,
    text_gate_ptr, text_scale_ptr, text_shift_ptr, out_ptr, modulated_ptr,
    text_rows, eps,
    residual_batch_stride, residual_row_stride, update_batch_stride, update_row_stride,
    gate_batch_stride, scale_batch_stride, shift_batch_stride,
    text_gate_batch_stride, text_scale_batch_stride, text_shift_batch_stride,
    out_batch_stride, out_row_stride, modulated_batch_stride, modulated_row_stride,
    D: tl.constexpr, HAS_TEXT: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    residual_ptr += batch * residual_batch_stride + row * residual_row_stride
    update_ptr += batch * update_batch_stride + row * update_row_stride
    out_ptr += batch * out_batch_stride + row * out_row_stride
    modulated_ptr += batch * modulated_batch_stride + row * modulated_row_stride
    gate_ptr += batch * gate_batch_stride
    scale_ptr += batch * scale_batch_stride
    shift_ptr += batch * shift_batch_stride
    if HAS_TEXT:
        is_text = row < text_rows
        gate_ptr = tl.where(is_text, text_gate_ptr + batch * text_gate_batch_stride, gate_ptr)
        scale_ptr = tl.where(is_text, text_scale_ptr + batch * text_scale_batch_stride, scale_ptr)
        shift_ptr = tl.where(is_text, text_shift_ptr + batch * text_shift_batch_stride, shift_ptr)
    ROUNDS: tl.constexpr = (D + 511) // 512
    kept = ()
    mean, m2, count = empty_state()
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        inside = column < D
        residual = tl.load(residual_ptr + column, mask=inside, other=0.0)
        update = tl.load(update_ptr + column, mask=inside, other=0.0)
        x = add_gated(residual, update, tl.load(gate_ptr + column, mask=inside, other=0.0))
        tl.store(out_ptr + column, x, mask=inside)
        kept = kept + (x,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
        mean, m2, count = push_round(x.to(tl.float32), mean, m2, count, r, D)
    mean, rstd = mean_and_rstd(mean, m2, count, eps, D, SHUFFLES)
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        inside = column < D
        scale = tl.load(scale_ptr + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(modulated_ptr + column, modulate(kept[r].to(tl.float32), mean, rstd, scale, shift), mask=inside)


def reject_reason(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    scale: torch.Tensor, shift: torch.Tensor, eps: float,
    text_gate: torch.Tensor | None = None, text_scale: torch.Tensor | None = None,
    text_shift: torch.Tensor | None = None, text_rows: int = 0,
    out: torch.Tensor | None = None, modulated: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    vectors = {"gate": gate, "scale": scale, "shift": shift}
    text_vectors = {"text_gate": text_gate, "text_scale": text_scale, "text_shift": text_shift}
    return (
        rows_reason("residual", residual)
        or tensor_reason("update", update, residual.shape, device=residual.device)
        or eps_reason(eps)
        or vectors_reason(residual, text_rows, **vectors, **text_vectors)
        or output_reason("out", out, residual, residual.shape)
        or output_reason("modulated", modulated, residual, residual.shape)
        or sharing_reason(out, modulated)
    )


def fused(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    scale: torch.Tensor, shift: torch.Tensor, eps: float,
    text_gate: torch.Tensor | None = None, text_scale: torch.Tensor | None = None,
    text_shift: torch.Tensor | None = None, text_rows: int = 0,
    out: torch.Tensor | None = None, modulated: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``residual`` itself."""
    batch, rows, width = residual.shape
    out = residual.new_empty(residual.shape) if out is None else out
    modulated = residual.new_empty(residual.shape) if modulated is None else modulated
    if text_gate is None or text_scale is None or text_shift is None:
        text_gate, text_scale, text_shift = gate, scale, shift  # not read: HAS_TEXT is false
    vectors = (gate, scale, shift, text_gate, text_scale, text_shift)
    with on_device_of(residual):
        _gated_residual_layernorm_modulate_kernel[(rows, batch)](
            residual, update, *vectors, out, modulated,
            text_rows, eps,
            *residual.stride()[:2], *update.stride()[:2],
            *(vector.stride(0) for vector in vectors),
            *out.stride()[:2], *modulated.stride()[:2],
            D=width, HAS_TEXT=text_rows > 0, SHUFFLES=not is_interpreted(),
            num_warps=NUM_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out, modulated


def traffic_bytes(
    residual: torch.Tensor, update: torch.Tensor, gate: torch.Tensor,
    scale: torch.Tensor, shift: torch.Tensor, eps: float,
    text_gate: torch.Tensor | None = None, text_scale: torch.Tensor | None = None,
    text_shift: torch.Tensor | None = None, text_rows: int = 0, **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once."""
    vectors = vector_sets(residual.shape[1], text_rows) * (gate.nbytes + scale.nbytes + shift.nbytes)
    return 3 * residual.nbytes + update.nbytes + vectors


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: D = 3072 with and without text rows, a width that 512 does not divide."""
    cases = ((3072, True), (3072, False), (2432, True))
    constants = ({"D": width, "HAS_TEXT": has_text, "SHUFFLES": True} for width, has_text in cases)
    return [row_compile_case(_gated_residual_layernorm_modulate_kernel, constant, NUM_WARPS) for constant in constants]


_SCHEMA = (
    "(Tensor residual, Tensor update, Tensor gate, Tensor scale, Tensor shift, float eps, Tensor? text_gate=None, "
    "Tensor? text_scale=None, Tensor? text_shift=None, int text_rows=0) -> (Tensor, Tensor)"
)


@torch.library.custom_op("fuseproof::gated_residual_layernorm_modulate", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The functional form, for ``torch.compile``: fresh outputs. Raises ValueError with the reason that declines it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(residual: torch.Tensor, *_arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return residual.new_empty(residual.shape), residual.new_empty(residual.shape)
