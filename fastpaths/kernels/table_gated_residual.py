"""An update times a gate from a table's row and an embedding's, added to the residual stream in fp32, in one launch.

Formula: ``R(float(hidden) + float(update) * gate)`` with ``gate = table[0, gate] + temb[b, r, gate]``, r the row of
    the embedding that the token takes; fp32 throughout, R one rounding to bf16.
Shapes: hidden and update [B, S, D] bf16, rows of any stride, D up to 16384 and divisible by 4; table [1, K, D] fp32;
    temb [B, R, K, D] or [B, R, 1, D], bf16 or fp32; row_of_token [S] int32, or None where R is 1; its values are not
    checked. ``gate`` is a row of the table. ``out`` is fresh, or hidden or update itself, or rows of another buffer.
Rounds: once, at the end; the product is rounded to fp32 before it is added.
Replaces: ``(hidden.float() + update.float() * gate).type_as(hidden)`` at the end of ``WanTransformerBlock``, and the
    same after its self-attention, diffusers 0.42.1: four kernels, and the table's sum with every token's embedding.
Exact: every bit; nothing is contracted.
Declines: other dtypes, a last dimension that is not contiguous, a D that 4 does not divide or beyond 16384, rows at
    an address that is no multiple of 16.
Bytes: hidden and update once in, the sum once out: 6 B S D (503 MB at S 27280, D 3072: 120 us at 4.2 TB/s).
Check first: if the trace shows a multiplication and an addition of fp32 [B, S, D], check whether a norm follows them:
    ``table_gated_residual_layernorm`` and ``table_gated_residual_table_layernorm_modulate`` take it in the same pass.
Source: diffusers transformer_wan.py.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import first_of, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.launching import CompileCase, on_device_of
from fuseproof.fastpaths.kernels.row_arguments import rows_reason
from fuseproof.fastpaths.kernels.table_rows import (
    add_gated_rows,
    embedding_of,
    launch_options,
    rows_per_program,
    table_compile_cases,
    table_reason,
    table_strides,
    vector_bytes,
    vector_of,
)


def reference(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int,
) -> torch.Tensor:  # fmt: skip
    """diffusers' eager expression; a fresh tensor [B, S, D]."""
    gates = vector_of(table, temb, row_of_token, gate)
    return (hidden.float() + update.float() * gates).type_as(hidden)


@triton.jit(do_not_specialize=["rows", "gate"])
def _table_gated_residual_kernel(  # type: ignore[no-untyped-def]
    hidden_ptr, update_ptr, table_ptr, temb_ptr, row_of_token_ptr, out_ptr,
    rows, gate,
    hidden_batch_stride, hidden_row_stride, update_batch_stride, update_row_stride,
    table_vector_stride, temb_batch_stride, temb_row_stride, temb_vector_stride,
    out_batch_stride, out_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, HAS_ROWS: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    batch = tl.program_id(1).to(tl.int64)
    embeddings = ()
    for i in tl.static_range(ROWS):
        embedding = embedding_of(row_of_token_ptr, first + i, rows, HAS_ROWS)
        embeddings = embeddings + (embedding,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
    add_gated_rows(
        hidden_ptr + batch * hidden_batch_stride, update_ptr + batch * update_batch_stride,
        table_ptr + gate * table_vector_stride, temb_ptr + batch * temb_batch_stride + gate * temb_vector_stride,
        out_ptr + batch * out_batch_stride, embeddings,
        first, rows, hidden_row_stride, update_row_stride, out_row_stride, temb_row_stride,
        D, ROWS, HAS_ROWS,
    )  # fmt: skip


def reject_reason(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int, out: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return rows_reason("hidden", hidden) or first_of(
        tensor_reason("update", update, hidden.shape, device=hidden.device),
        table_reason(hidden, table, temb, row_of_token, gate=gate),
        output_reason("out", out, hidden, hidden.shape),
    )


def fused(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``hidden`` itself."""
    batch, rows, width = hidden.shape
    out = hidden.new_empty(hidden.shape) if out is None else out
    with on_device_of(hidden):
        _table_gated_residual_kernel[(triton.cdiv(rows, rows_per_program(width)), batch)](
            hidden, update, table, temb, table if row_of_token is None else row_of_token, out,
            rows, gate,
            *hidden.stride()[:2], *update.stride()[:2], *table_strides(table, temb), *out.stride()[:2],
            HAS_ROWS=row_of_token is not None, **launch_options(width),
        )  # fmt: skip
    return out


def traffic_bytes(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    *_arguments: Any, **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 2 * hidden.nbytes + update.nbytes + vector_bytes(temb, 1)


def compile_cases() -> list[CompileCase]:
    """The variants that models launch."""
    return table_compile_cases(_table_gated_residual_kernel)


_SCHEMA = "(Tensor hidden, Tensor update, Tensor table, Tensor temb, Tensor? row_of_token, int gate) -> Tensor"


@torch.library.custom_op("fuseproof::table_gated_residual", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> torch.Tensor:
    """The functional form, for ``torch.compile``: a fresh output. Raises ValueError with the reason to decline it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(hidden: torch.Tensor, *_arguments: Any) -> torch.Tensor:
    return hidden.new_empty(hidden.shape)
