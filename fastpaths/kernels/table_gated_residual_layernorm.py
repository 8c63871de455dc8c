"""A gated update added to the residual stream in fp32, and the fp32 LayerNorm with weights of the sum, in one pass.

Formula: ``x = R(float(hidden) + float(update) * gate)`` with ``gate = table[0, gate] + temb[b, r, gate]``
    (``table_gated_residual``), then ``R(fma(weight, LN(float(x)), bias))``; both are returned. R is one rounding to
    bf16; LN has fp32 statistics.
Shapes: hidden and update [B, S, D] bf16, rows of any stride, D up to 16384 and divisible by 4; table [1, K, D] fp32;
    temb [B, R, K, D] or [B, R, 1, D], bf16 or fp32; row_of_token [S] int32, or None where R is 1; its values are not
    checked; weight and bias [D], both fp32 or both bf16. ``out`` (x) and ``normed`` are fresh, or rows of other
    buffers; ``out`` may be hidden itself, ``normed`` update itself.
Rounds: twice, after the sum and after the norm.
Replaces: ``(hidden.float() + update * gate).type_as(hidden)`` and ``norm2(hidden.float()).type_as(hidden)`` between
    self-attention and cross-attention in ``WanTransformerBlock``, diffusers 0.42.1: seven kernels, and the table's
    sum with every token's embedding.
Exact: every bit; the norm sees the rounded sum that is stored, from registers, in aten's order of summation
    (``fastpaths/kernels/welford.py``); weight and bias are contracted, as nvcc does it in aten, the gate is not.
Declines: other dtypes, a last dimension that is not contiguous, a D that 4 does not divide or beyond 16384, rows or
    fp32 weights at an address that is no multiple of 16, out and normed in the same memory, eps below the smallest
    normal fp32 number.
Bytes: hidden and update once in, sum and norm once out: 8 B S D (670 MB at S 27280, D 3072: 160 us at 4.2 TB/s).
Check first: if the trace shows ``_table_gated_residual_kernel`` right before ``vectorized_layer_norm_kernel``, check
    that the block's norm2 has weight and bias: with ``cross_attn_norm`` off there is no norm here.
Source: diffusers transformer_wan.py, models/normalization.py; aten/src/ATen/native/cuda/layer_norm_kernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels import table_gated_residual
from fuseproof.fastpaths.kernels.arguments import first_of, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import widened
from fuseproof.fastpaths.kernels.launching import CompileCase, on_device_of
from fuseproof.fastpaths.kernels.row_arguments import eps_reason, rows_reason
from fuseproof.fastpaths.kernels.table_rows import (
    EMBEDDING_DTYPES,
    add_gated_rows,
    embedding_of,
    launch_options,
    outputs_reason,
    row_statistics,
    rows_per_program,
    table_compile_cases,
    table_reason,
    table_strides,
    vector_bytes,
)


def reference(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int, weight: torch.Tensor, bias: torch.Tensor, eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """diffusers' eager expressions; fresh tensors [B, S, D]."""
    out = table_gated_residual.reference(hidden, update, table, temb, row_of_token, gate)
    normed = F.layer_norm(out.float(), out.shape[-1:], weight.float(), bias.float(), eps)
    return out, normed.type_as(out)


@triton.jit(do_not_specialize=["rows", "gate"])
def _table_gated_residual_layernorm_kernel(  # type: ignore[no-untyped-def]
    hidden_ptr, update_ptr, table_ptr, temb_ptr, row_of_token_ptr, weight_ptr, bias_ptr, out_ptr, normed_ptr,
    rows, gate, eps,
    hidden_batch_stride, hidden_row_stride, update_batch_stride, update_row_stride,
    table_vector_stride, temb_batch_stride, temb_row_stride, temb_vector_stride,
    out_batch_stride, out_row_stride, normed_batch_stride, normed_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, HAS_ROWS: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * ROWS
    batch = tl.program_id(1).to(tl.int64)
    normed_ptr += batch * normed_batch_stride
    ROUNDS: tl.constexpr = (D + 511) // 512
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
    means = ()
    rstds = ()
    for i in tl.static_range(ROWS):
        mean, rstd = row_statistics(kept, i, ROUNDS, eps, D, SHUFFLES)
        means = means + (mean,)  # type: ignore[assignment]  # noqa: RUF005
        rstds = rstds + (rstd,)  # type: ignore[assignment]  # noqa: RUF005
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        weight = tl.load(weight_ptr + column, mask=column < D, other=0.0, eviction_policy="evict_last").to(tl.float32)
        bias = tl.load(bias_ptr + column, mask=column < D, other=0.0, eviction_policy="evict_last").to(tl.float32)
        for i in tl.static_range(ROWS):
            row = first + i
            normalized = rstds[i] * (widened(kept[i * ROUNDS + r]) - means[i])
            normed = tl.fma(weight, normalized, bias).to(tl.bfloat16)
            tl.store(normed_ptr + row * normed_row_stride + column, normed, mask=(column < D) & (row < rows))


def reject_reason(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int, weight: torch.Tensor, bias: torch.Tensor, eps: float,
    out: torch.Tensor | None = None, normed: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return rows_reason("hidden", hidden) or first_of(
        tensor_reason("update", update, hidden.shape, device=hidden.device),
        table_reason(hidden, table, temb, row_of_token, gate=gate),
        _weights_reason(hidden, weight, bias),
        eps_reason(eps),
        output_reason("out", out, hidden, hidden.shape),
        output_reason("normed", normed, hidden, hidden.shape),
        outputs_reason(out, normed),
    )


def _weights_reason(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> str | None:
    """Eager copies bf16 weights to an aligned place; fp32 ones are read where they lie, and decide aten's kernel."""
    if weight.dtype not in EMBEDDING_DTYPES:
        return f"weight is {str(weight.dtype).removeprefix('torch.')}; the kernel needs bfloat16 or float32"
    shape, alignment = hidden.shape[2:], 16 if weight.dtype == torch.float32 else 2
    return first_of(
        tensor_reason("weight", weight, shape, weight.dtype, hidden.device, alignment),
        tensor_reason("bias", bias, shape, weight.dtype, hidden.device, alignment),
    )


def fused(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int, weight: torch.Tensor, bias: torch.Tensor, eps: float,
    out: torch.Tensor | None = None, normed: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``hidden`` itself."""
    batch, rows, width = hidden.shape
    out = hidden.new_empty(hidden.shape) if out is None else out
    normed = hidden.new_empty(hidden.shape) if normed is None else normed
    with on_device_of(hidden):
        _table_gated_residual_layernorm_kernel[(triton.cdiv(rows, rows_per_program(width)), batch)](
            hidden, update, table, temb, table if row_of_token is None else row_of_token, weight, bias, out, normed,
            rows, gate, eps,
            *hidden.stride()[:2], *update.stride()[:2], *table_strides(table, temb),
            *out.stride()[:2], *normed.stride()[:2],
            HAS_ROWS=row_of_token is not None, **launch_options(width),
        )  # fmt: skip
    return out, normed


def traffic_bytes(
    hidden: torch.Tensor, update: torch.Tensor, table: torch.Tensor, temb: torch.Tensor,
    row_of_token: torch.Tensor | None, gate: int, weight: torch.Tensor, bias: torch.Tensor, eps: float,
    **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 3 * hidden.nbytes + update.nbytes + vector_bytes(temb, 1) + weight.nbytes + bias.nbytes


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: weights in fp32."""
    return table_compile_cases(_table_gated_residual_layernorm_kernel, {"weight_ptr": "*fp32", "bias_ptr": "*fp32"})


_SCHEMA = (
    "(Tensor hidden, Tensor update, Tensor table, Tensor temb, Tensor? row_of_token, int gate, Tensor weight, "
    "Tensor bias, float eps) -> (Tensor, Tensor)"
)


@torch.library.custom_op("fuseproof::table_gated_residual_layernorm", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The functional form, for ``torch.compile``: fresh outputs. Raises ValueError with the reason that declines it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(hidden: torch.Tensor, *_arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return hidden.new_empty(hidden.shape), hidden.new_empty(hidden.shape)
