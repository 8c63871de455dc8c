"""An update added to the residual stream, and the fp32 LayerNorm of the sum modulated from a table, in one pass.

Formula: ``x = R(hidden + update)``, then ``R(LN(float(x)) * (1 + scale) + shift)`` (``table_layernorm_modulate``)
    with ``shift = table[0, shift] + temb[b, r, shift]`` and scale likewise; both are returned. R is one rounding to
    bf16; LN has fp32 statistics and no weights.
Shapes: hidden and update [B, S, D] bf16, rows of any stride, D up to 16384 and divisible by 4; table [1, K, D] fp32;
    temb [B, R, K, D] or [B, R, 1, D], bf16 or fp32; row_of_token [S] int32, or None where R is 1; its values are not
    checked. ``out`` (x) and ``normed`` are fresh, or rows of other buffers; ``out`` may be hidden itself, ``normed``
    update itself.
Rounds: twice, after the sum and after the modulation.
Replaces: ``hidden + update`` and ``(norm3(hidden.float()) * (1 + scale) + shift).type_as(hidden)`` between
    cross-attention and feed-forward in ``WanTransformerBlock``, diffusers 0.42.1: seven kernels, and the table's sum
    with every token's embedding.
Exact: every bit; the norm sees the rounded sum that is stored, from registers, in aten's order of summation
    (``fastpaths/kernels/welford.py``); nothing else is contracted.
Declines: other dtypes, a last dimension that is not contiguous, a D that 4 does not divide or beyond 16384, rows at
    an address that is no multiple of 16, out and normed in the same memory, eps below the smallest normal fp32
    number.
Bytes: hidden and update once in, sum and norm once out: 8 B S D (670 MB at S 27280, D 3072: 160 us at 4.2 TB/s).
Check first: if the trace shows a bf16 addition of [B, S, D] right before ``_table_layernorm_modulate_kernel``, check
    that the block adds the cross-attention where it knows the norm that follows.
Source: diffusers transformer_wan.py, models/normalization.py; aten/src/ATen/native/cuda/layer_norm_kernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import table_layernorm_modulate
from fuseproof.fastpaths.kernels.arguments import first_of, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import widened
from fuseproof.fastpaths.kernels.launching import CompileCase, on_device_of
from fuseproof.fastpaths.kernels.row_arguments import eps_reason, rows_reason
from fuseproof.fastpaths.kernels.table_rows import (
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
    row_of_token: torch.Tensor | None, shift: int, scale: int, eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """diffusers' eager expressions; fresh tensors [B, S, D]."""
    out = hidden + update
    return out, table_layernorm_modulate.reference(out, table, temb, row_of_token, shift, scale, eps)


@triton.jit(do_not_specialize=["rows", "shift", "scale"])
def _residual_table_layernorm_modulate_kernel(  # type: ignore[no-untyped-def]
    hidden_ptr, update_ptr, table_ptr, temb_ptr, row_of_token_ptr, out_ptr, normed_ptr,
    rows, shift, scale, eps,
    hidden_batch_stride, hidden_row_stride, update_batch_stride, update_row_stride,
    table_vector_stride, temb_batch_stride, temb_row_stride, temb_vector_stride,
    out_batch_stride, out_row_stride, normed_batch_stride, normed_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, HAS_ROWS: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    batch = tl.program_id(1).to(tl.int64)
    hidden_ptr += batch * hidden_batch_stride
    update_ptr += batch * update_batch_stride
    out_ptr += batch * out_batch_stride
    temb_ptr += batch * temb_batch_stride
    ROUNDS: tl.constexpr = (D + 511) // 512
    loaded = ()
    embeddings = ()
    for i in tl.static_range(ROWS):
        row = first + i
        embeddings = embeddings + (embedding_of(row_of_token_ptr, row, rows, HAS_ROWS),)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
        for r in tl.static_range(ROUNDS):
            column = r * 512 + tl.arange(0, 512)
            inside = (column < D) & (row < rows)
            hidden = tl.load(hidden_ptr + row * hidden_row_stride + column, mask=inside, other=0.0)
            update = tl.load(update_ptr + row * update_row_stride + column, mask=inside, other=0.0)
            loaded = loaded + (hidden, update)  # type: ignore[assignment]  # noqa: RUF005
    kept = ()
    for i in tl.static_range(ROWS):
        row = first + i
        for r in tl.static_range(ROUNDS):
            column = r * 512 + tl.arange(0, 512)
            hidden = widened(loaded[2 * (i * ROUNDS + r)])
            x = (hidden + widened(loaded[2 * (i * ROUNDS + r) + 1])).to(tl.bfloat16)
            tl.store(out_ptr + row * out_row_stride + column, x, mask=(column < D) & (row < rows))
            kept = kept + (x,)  # type: ignore[assignment]  # noqa: RUF005
    write_table_modulated(
        kept, embeddings, normed_ptr + batch * normed_batch_stride,
        table_ptr + shift * table_vector_stride, table_ptr + scale * table_vector_stride,
        temb_ptr + shift * temb_vector_stride, temb_ptr + scale * temb_vector_stride,
        first, rows, eps, normed_row_stride, temb_row_stride,
        D, ROWS, HAS_ROWS, SHUFFLES,
    )  # fmt: skip


def reject_reason(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, shift: int, scale: int, eps: float,
    out: torch.Tensor | None = None, normed: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return rows_reason("hidden", hidden) or first_of(
        tensor_reason("update", update, hidden.shape, device=hidden.device),
        table_reason(hidden, table, temb, row_of_token, shift=shift, scale=scale),
        eps_reason(eps),
        output_reason("out", out, hidden, hidden.shape),
        output_reason("normed", normed, hidden, hidden.shape),
        outputs_reason(out, normed),
    )


def fused(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, shift: int, scale: int, eps: float,
    out: torch.Tensor | None = None, normed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``hidden`` itself."""
    batch, rows, width = hidden.shape
    out = hidden.new_empty(hidden.shape) if out is None else out
    normed = hidden.new_empty(hidden.shape) if normed is None else normed
    with on_device_of(hidden):
        _residual_table_layernorm_modulate_kernel[(triton.cdiv(rows, rows_per_program(width)), batch)](
            hidden, update, table, temb, table if row_of_token is None else row_of_token, out, normed,
            rows, shift, scale, eps,
            *hidden.stride()[:2], *update.stride()[:2], *table_strides(table, temb),
            *out.stride()[:2], *normed.stride()[:2],
            HAS_ROWS=row_of_token is not None, **launch_options(width),
        )  # fmt: skip
    return out, normed


def traffic_bytes(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    *_arguments: Any, **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 3 * hidden.nbytes + update.nbytes + vector_bytes(temb, 2)


def compile_cases() -> list[CompileCase]:
    """The variants that models launch."""
    return table_compile_cases(_residual_table_layernorm_modulate_kernel)


_SCHEMA = (
    "(Tensor hidden, Tensor update, Tensor table, Tensor temb, Tensor? row_of_token, int shift, int scale, float eps) "
    "-> (Tensor, Tensor)"
)


@torch.library.custom_op("fuseproof::residual_table_layernorm_modulate", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The functional form, for ``torch.compile``: fresh outputs. Raises ValueError with the reason that declines it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(hidden: torch.Tensor, *_arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return hidden.new_empty(hidden.shape), hidden.new_empty(hidden.shape)
