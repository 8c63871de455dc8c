"""A gated update added to the residual stream in fp32, and the modulated fp32 LayerNorm that begins the next block.

Formula: ``x = R(float(hidden) + float(update) * gate)`` with ``gate = table[0, gate] + temb[b, r, gate]``
    (``table_gated_residual``), then ``R(LN(float(x)) * (1 + scale) + shift)`` (``table_layernorm_modulate``) with
    ``shift = next_table[0, next_shift] + next_temb[b, r, next_shift]`` and scale likewise; both are returned. R is
    one rounding to bf16; LN has fp32 statistics and no weights.
Shapes: hidden and update [B, S, D] bf16, rows of any stride, D up to 16384 and divisible by 4; table and next_table
    [1, K, D] fp32; temb and next_temb [B, R, K, D] or [B, R, 1, D], bf16 or fp32: the same tensor for the norm1 of
    the next block, another for the output norm, whose one vector goes with both rows of its table; row_of_token [S]
    int32, or None where R is 1, for both; its values are not checked. ``out`` (x) and ``normed`` are fresh, or rows
    of other buffers; ``out`` may be hidden itself, ``normed`` update itself.
Rounds: twice, after the sum and after the modulation.
Replaces: ``(hidden.float() + update.float() * gate).type_as(hidden)`` at the end of ``WanTransformerBlock``, and the
    norm and modulation at the beginning of the next one or of ``WanTransformer3DModel``'s output, diffusers 0.42.1:
    ten kernels, and two sums of a table with every token's embedding.
Exact: every bit; the norm sees the rounded sum that is stored, from registers, in aten's order of summation
    (``fastpaths/kernels/welford.py``); nothing else is contracted.
Declines: other dtypes, a last dimension that is not contiguous, a D that 4 does not divide or beyond 16384, rows at
    an address that is no multiple of 16, out and normed in the same memory, eps below the smallest normal fp32
    number.
Bytes: hidden and update once in, sum and norm once out: 8 B S D (670 MB at S 27280, D 3072: 160 us at 4.2 TB/s).
Check first: if the trace shows ``_table_gated_residual_kernel`` right before ``_table_layernorm_modulate_kernel``,
    check that the block's last addition knows the block that follows.
Source: diffusers transformer_wan.py, models/normalization.py; aten/src/ATen/native/cuda/layer_norm_kernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import table_gated_residual, table_layernorm_modulate
from fuseproof.fastpaths.kernels.arguments import first_of, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.launching import CompileCase, on_device_of
from fuseproof.fastpaths.kernels.row_arguments import eps_reason, rows_reason
from fuseproof.fastpaths.kernels.table_rows import (
    add_gated_rows,
    embedding_of,
    launch_options,
    outputs_reason,
    rows_per_program,
    table_compile_cases,
    table_reason,
    table_strides,
    vector_bytes,
    write_table_modulated,
)


def reference(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int,
    next_table: torch.Tensor, next_temb: torch.Tensor, next_shift: int, next_scale: int, eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """diffusers' eager expressions; fresh tensors [B, S, D]."""
    out = table_gated_residual.reference(hidden, update, table, temb, row_of_token, gate)
    modulation = (next_table, next_temb, row_of_token, next_shift, next_scale)
    return out, table_layernorm_modulate.reference(out, *modulation, eps)


@triton.jit(do_not_specialize=["rows", "gate", "next_shift", "next_scale"])
def _table_gated_residual_table_layernorm_modulate_kernel(  # type: ignore[no-untyped-def]
    hidden_ptr, update_ptr, table_ptr, temb_ptr, row_of_token_ptr, next_table_ptr, next_temb_ptr, out_ptr, normed_ptr,
    rows, gate, next_shift, next_scale, eps,
    hidden_batch_stride, hidden_row_stride, update_batch_stride, update_row_stride,
    table_vector_stride, temb_batch_stride, temb_row_stride, temb_vector_stride,
    next_table_vector_stride, next_temb_batch_stride, next_temb_row_stride, next_temb_vector_stride,
    out_batch_stride, out_row_stride, normed_batch_stride, normed_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, HAS_ROWS: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    batch = tl.program_id(1).to(tl.int64)
    next_temb_ptr += batch * next_temb_batch_stride
    embeddings = ()
    for i in tl.static_range(ROWS):
        embedding = embedding_of(row_of_token_ptr, first + i, rows, HAS_ROWS)
        embeddings = embeddings + (embedding,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
    kept = add_gated_rows(
        hidden_ptr + batch * hidden_batch_stride, update_ptr + batch * update_batch_stride,
        table_ptr + gate * table_vector_stride, temb_ptr + batch * temb_batch_stride + gate * temb_vector_stride,
        out_ptr + batch * out_batch_stride, embeddings,
        first, rows, hidden_row_stride, update_row_stride, out_row_stride, temb_row_stride,
        D, ROWS, HAS_ROWS,
    )  # fmt: skip
    write_table_modulated(
        kept, embeddings, normed_ptr + batch * normed_batch_stride,
        next_table_ptr + next_shift * next_table_vector_stride, next_table_ptr + next_scale * next_table_vector_stride,
        next_temb_ptr + next_shift * next_temb_vector_stride, next_temb_ptr + next_scale * next_temb_vector_stride,
        first, rows, eps, normed_row_stride, next_temb_row_stride,
        D, ROWS, HAS_ROWS, SHUFFLES,
    )  # fmt: skip


def reject_reason(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int,
    next_table: torch.Tensor, next_temb: torch.Tensor, next_shift: int, next_scale: int, eps: float,
    out: torch.Tensor | None = None, normed: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return (
        rows_reason("hidden", hidden)
        or first_of(
            tensor_reason("update", update, hidden.shape, device=hidden.device),
            table_reason(hidden, table, temb, row_of_token, gate=gate),
            table_reason(
                hidden, next_table, next_temb, row_of_token, "next_", next_shift=next_shift, next_scale=next_scale
            ),
            eps_reason(eps),
            output_reason("out", out, hidden, hidden.shape),
            output_reason("normed", normed, hidden, hidden.shape),
            outputs_reason(out, normed),
        )
        or _rows_reason(temb, next_temb)
    )


def _rows_reason(temb: torch.Tensor, next_temb: torch.Tensor) -> str | None:
    if temb.shape[1] == next_temb.shape[1]:
        return None
    return f"next_temb has {next_temb.shape[1]} rows a sample; the kernel needs {temb.shape[1]}, as temb has"


def fused(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int,
    next_table: torch.Tensor, next_temb: torch.Tensor, next_shift: int, next_scale: int, eps: float,
    out: torch.Tensor | None = None, normed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``hidden`` itself."""
    batch, rows, width = hidden.shape
    out = hidden.new_empty(hidden.shape) if out is None else out
    normed = hidden.new_empty(hidden.shape) if normed is None else normed
    tokens = table if row_of_token is None else row_of_token  # not read: HAS_ROWS is false
    with on_device_of(hidden):
        _table_gated_residual_table_layernorm_modulate_kernel[(triton.cdiv(rows, rows_per_program(width)), batch)](
            hidden, update, table, temb, tokens, next_table, next_temb, out, normed,
            rows, gate, next_shift, next_scale, eps,
            *hidden.stride()[:2], *update.stride()[:2],
            *table_strides(table, temb), *table_strides(next_table, next_temb),
            *out.stride()[:2], *normed.stride()[:2],
            HAS_ROWS=row_of_token is not None, **launch_options(width),
        )  # fmt: skip
    return out, normed


def traffic_bytes(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int, next_table: torch.Tensor, next_temb: torch.Tensor,
    *_arguments: Any, **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 3 * hidden.nbytes + update.nbytes + vector_bytes(temb, 1) + vector_bytes(next_temb, 2)


def compile_cases() -> list[CompileCase]:
    """The variants that models launch."""
    return table_compile_cases(_table_gated_residual_table_layernorm_modulate_kernel)


_SCHEMA = (
    "(Tensor hidden, Tensor update, Tensor table, Tensor temb, Tensor? row_of_token, int gate, Tensor next_table, "
    "Tensor next_temb, int next_shift, int next_scale, float eps) -> (Tensor, Tensor)"
)


@torch.library.custom_op("fuseproof::table_gated_residual_table_layernorm_modulate", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The functional form, for ``torch.compile``: fresh outputs. Raises ValueError with the reason that declines it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(hidden: torch.Tensor, *_arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return hidden.new_empty(hidden.shape), hidden.new_empty(hidden.shape)
