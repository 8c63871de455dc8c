"""fp32 LayerNorm without weights, times one plus scale, plus shift, where both are a table's row plus an embedding's.

Formula: ``R(LN(float(hidden)) * (1 + scale) + shift)`` with ``shift = table[0, shift] + temb[b, r, shift]`` and scale
    likewise, r the row of the embedding that the token takes; fp32 throughout, R one rounding to bf16; LN has no
    weights.
Shapes: hidden [B, S, D] bf16, rows of any stride, D up to 16384 and divisible by 4; table [1, K, D] fp32; temb [B, R,
    K, D] or [B, R, 1, D] (one vector for all of the table's rows, as the output norm has it), bf16 or fp32;
    row_of_token [S] int32, or None where R is 1; its values are not checked. ``shift`` and ``scale`` are rows of the
    table. ``out`` is fresh, or hidden itself, or rows of another buffer.
Rounds: once, at the end.
Replaces: ``(norm(hidden.float()) * (1 + scale) + shift).type_as(hidden)`` of norm1 and norm3 in
    ``WanTransformerBlock`` and of norm_out in ``WanTransformer3DModel``, diffusers 0.42.1, with the sum of the table
    and every token's embedding [B, S, 6, D] in fp32: six kernels, and 4 x 6 bytes a channel of every token.
Exact: every bit, in aten's order of summation (``fastpaths/kernels/welford.py``), which is the same for fp32 rows as
    for bf16 ones; nothing is contracted.
Declines: other dtypes (a table in bf16 is rounded differently), a last dimension that is not contiguous, a D that 4
    does not divide or beyond 16384, rows at an address that is no multiple of 16, eps below the smallest normal fp32
    number.
Bytes: hidden once in, once out: 4 B S D (335 MB at S 27280, D 3072: 80 us at 4.2 TB/s).
Check first: if the trace shows ``vectorized_layer_norm_kernel`` on fp32 rows, check that the table is fp32: a model
    that was cast by ``.to(torch.bfloat16)`` has it in bf16.
Source: diffusers transformer_wan.py, models/normalization.py; aten/src/ATen/native/cuda/layer_norm_kernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import first_of, output_reason
from fuseproof.fastpaths.kernels.launching import CompileCase, on_device_of
from fuseproof.fastpaths.kernels.row_arguments import eps_reason, rows_reason
from fuseproof.fastpaths.kernels.table_rows import (
    embedding_of,
    launch_options,
    normalized,
    rows_per_program,
    table_compile_cases,
    table_reason,
    table_strides,
    vector_bytes,
    vector_of,
    write_table_modulated,
)


def reference(
    hidden: torch.Tensor, table: torch.Tensor, temb: torch.Tensor, row_of_token: torch.Tensor | None,
    shift: int, scale: int, eps: float,
) -> torch.Tensor:  # fmt: skip
    """diffusers' eager expression; a fresh tensor [B, S, D]."""
    shifts = vector_of(table, temb, row_of_token, shift)
    scales = vector_of(table, temb, row_of_token, scale)
    return (normalized(hidden, eps) * (1 + scales) + shifts).type_as(hidden)


@triton.jit(do_not_specialize=["rows", "shift", "scale"])
def _table_layernorm_modulate_kernel(  # type: ignore[no-untyped-def]
    hidden_ptr, table_ptr, temb_ptr, row_of_token_ptr, out_ptr,
    rows, shift, scale, eps,
    hidden_batch_stride, hidden_row_stride,
    table_vector_stride, temb_batch_stride, temb_row_stride, temb_vector_stride,
    out_batch_stride, out_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, HAS_ROWS: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    batch = tl.program_id(1).to(tl.int64)
    hidden_ptr += batch * hidden_batch_stride
    temb_ptr += batch * temb_batch_stride
    ROUNDS: tl.constexpr = (D + 511) // 512
    kept = ()
    embeddings = ()
    for i in tl.static_range(ROWS):
        row = first + i
        embeddings = embeddings + (embedding_of(row_of_token_ptr, row, rows, HAS_ROWS),)  # type: ignore[assignment]  # noqa: RUF005
        for r in tl.static_range(ROUNDS):
            column = r * 512 + tl.arange(0, 512)
            inside = (column < D) & (row < rows)
            x = tl.load(hidden_ptr + row * hidden_row_stride + column, mask=inside, other=0.0)
            kept = kept + (x,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
    write_table_modulated(
        kept, embeddings, out_ptr + batch * out_batch_stride,
        table_ptr + shift * table_vector_stride, table_ptr + scale * table_vector_stride,
        temb_ptr + shift * temb_vector_stride, temb_ptr + scale * temb_vector_stride,
        first, rows, eps, out_row_stride, temb_row_stride,
        D, ROWS, HAS_ROWS, SHUFFLES,
    )  # fmt: skip


def reject_reason(
    hidden: torch.Tensor, table: torch.Tensor, temb: torch.Tensor, row_of_token: torch.Tensor | None,
    shift: int, scale: int, eps: float, out: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return rows_reason("hidden", hidden) or first_of(
        eps_reason(eps),
        table_reason(hidden, table, temb, row_of_token, shift=shift, scale=scale),
        output_reason("out", out, hidden, hidden.shape),
    )


def fused(
    hidden: torch.Tensor, table: torch.Tensor, temb: torch.Tensor, row_of_token: torch.Tensor | None,
    shift: int, scale: int, eps: float, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``hidden`` itself."""
    batch, rows, width = hidden.shape
    out = hidden.new_empty(hidden.shape) if out is None else out
    with on_device_of(hidden):
        _table_layernorm_modulate_kernel[(triton.cdiv(rows, rows_per_program(width)), batch)](
            hidden, table, temb, table if row_of_token is None else row_of_token, out,
            rows, shift, scale, eps,
            *hidden.stride()[:2], *table_strides(table, temb), *out.stride()[:2],
            HAS_ROWS=row_of_token is not None, **launch_options(width),
        )  # fmt: skip
    return out


def traffic_bytes(
    hidden: torch.Tensor, table: torch.Tensor, temb: torch.Tensor, *_arguments: Any, **_outputs: Any
) -> int:
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 2 * hidden.nbytes + vector_bytes(temb, 2)


def compile_cases() -> list[CompileCase]:
    """The variants that models launch."""
    return table_compile_cases(_table_layernorm_modulate_kernel)


_SCHEMA = "(Tensor hidden, Tensor table, Tensor temb, Tensor? row_of_token, int shift, int scale, float eps) -> Tensor"


@torch.library.custom_op("fuseproof::table_layernorm_modulate", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> torch.Tensor:
    """The functional form, for ``torch.compile``: a fresh output. Raises ValueError with the reason to decline it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(hidden: torch.Tensor, *_arguments: Any) -> torch.Tensor:
    return hidden.new_empty(hidden.shape)
