"""Modulation vectors that are rows of a table plus a row of the time embedding: what kernels of Wan's blocks share.

Eager adds the table to the embedding of every token, [B, S, 6, D] in fp32, before it takes the six vectors apart. Here
a kernel adds the two numbers where it needs their sum: the same fp32 addition, without the tensor. Tokens name the row
of the embedding that they take, of which there are as many as there are different timesteps in a sample: one, or one
for each latent frame.

A program takes ``rows_per_program`` tokens, whose modulation vectors it reads once where all of them take one row. All
that it reads of a token is read before anything is written or summed: barriers and stores would keep later loads back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import first_of, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import widened
from fuseproof.fastpaths.kernels.launching import CompileCase, is_interpreted
from fuseproof.fastpaths.kernels.welford import NUM_WARPS, empty_state, mean_and_rstd, push_round

EMBEDDING_DTYPES = (torch.bfloat16, torch.float32)
WIDEST_IN_PAIRS = 4096
"""Two rows of 5120 would take up to 150 registers a thread, of 3072 they take 68 to 96 (sm_90)."""


def rows_per_program(width: int) -> int:
    """Tokens that a program takes side by side."""
    return 2 if width <= WIDEST_IN_PAIRS else 1


def vector_of(table: torch.Tensor, temb: torch.Tensor, row_of_token: torch.Tensor | None, index: int) -> torch.Tensor:
    """The modulation vectors at ``index`` as eager has them, fp32: [B, 1, D], or [B, S, D] where tokens name rows.

    Blocks add ``temb.float()``, the output norm its one vector as it is: beside a table in fp32 that is the same.
    """
    rows = table[:, index] + (temb[:, :, 0] if temb.shape[2] == 1 else temb[:, :, index].float())
    return rows if row_of_token is None else rows.index_select(1, row_of_token)


def normalized(hidden: torch.Tensor, eps: float) -> torch.Tensor:
    """FP32LayerNorm without weights, of ``hidden.float()``: fp32 in, fp32 out."""
    return F.layer_norm(hidden.float(), hidden.shape[-1:], None, None, eps)


@triton.jit
def embedding_of(row_of_token_ptr, row, rows, HAS_ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which row of the embedding a token takes, int64."""
    embedding = row * 0
    if HAS_ROWS:
        embedding = tl.load(row_of_token_ptr + row, mask=row < rows, other=0).to(tl.int64)
    return embedding


@triton.jit
def table_vector(table_ptr, temb_ptr, column, inside):  # type: ignore[no-untyped-def]
    """table + temb, fp32; both are read for every token, and stay in the first cache beside the rows that pass."""
    table = tl.load(table_ptr + column, mask=inside, other=0.0, eviction_policy="evict_last")
    temb = tl.load(temb_ptr + column, mask=inside, other=0.0, eviction_policy="evict_last")
    return table + temb.to(tl.float32)


@triton.jit
def add_gated_fp32(residual, update, gate):  # type: ignore[no-untyped-def]
    """R(residual + update * gate) of bf16 rows as loaded and an fp32 gate: one rounding to bf16."""
    return (widened(residual) + widened(update) * gate).to(tl.bfloat16)


@triton.jit
def add_gated_rows(  # type: ignore[no-untyped-def]
    hidden_ptr, update_ptr, table_gate_ptr, temb_gate_ptr, out_ptr, embeddings,
    first, rows, hidden_row_stride, update_row_stride, out_row_stride, temb_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, HAS_ROWS: tl.constexpr,
):  # fmt: skip
    """R(hidden + update * gate) of ROWS rows, stored and returned: bf16 [512] a round, row after row."""
    ROUNDS: tl.constexpr = (D + 511) // 512
    loaded = ()
    for i in tl.static_range(ROWS):
        row = first + i
        for r in tl.static_range(ROUNDS):
            column = r * 512 + tl.arange(0, 512)
            inside = (column < D) & (row < rows)
            hidden = tl.load(hidden_ptr + row * hidden_row_stride + column, mask=inside, other=0.0)
            update = tl.load(update_ptr + row * update_row_stride + column, mask=inside, other=0.0)
            loaded = loaded + (hidden, update)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
    gates = ()
    for i in tl.static_range(ROWS if HAS_ROWS else 1):
        for r in tl.static_range(ROUNDS):
            column = r * 512 + tl.arange(0, 512)
            gate = table_vector(table_gate_ptr, temb_gate_ptr + embeddings[i] * temb_row_stride, column, column < D)
            gates = gates + (gate,)  # type: ignore[assignment]  # noqa: RUF005
    kept = ()
    for i in tl.static_range(ROWS):
        row = first + i
        for r in tl.static_range(ROUNDS):
            column = r * 512 + tl.arange(0, 512)
            gate = gates[i * ROUNDS + r if HAS_ROWS else r]
            x = add_gated_fp32(loaded[2 * (i * ROUNDS + r)], loaded[2 * (i * ROUNDS + r) + 1], gate)
            tl.store(out_ptr + row * out_row_stride + column, x, mask=(column < D) & (row < rows))
            kept = kept + (x,)  # type: ignore[assignment]  # noqa: RUF005
    return kept


@triton.jit
def row_statistics(kept, ROW: tl.constexpr, ROUNDS: tl.constexpr, eps, D: tl.constexpr, SHUFFLES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Mean and rstd of the ROW-th of the rows in ``kept``, bf16 [512] a round, in aten's order."""
    mean, m2, count = empty_state()
    for r in tl.static_range(ROUNDS):
        mean, m2, count = push_round(widened(kept[ROW * ROUNDS + r]), mean, m2, count, r, D)
    return mean_and_rstd(mean, m2, count, eps, D, SHUFFLES)


@triton.jit
def write_table_modulated(  # type: ignore[no-untyped-def]
    kept, embeddings, out_ptr, table_shift_ptr, table_scale_ptr, temb_shift_ptr, temb_scale_ptr,
    first, rows, eps, out_row_stride, temb_row_stride,
    D: tl.constexpr, ROWS: tl.constexpr, HAS_ROWS: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    """R(LN(x) * (1 + scale) + shift) of the rows in ``kept``: fp32 throughout, one rounding, nothing contracted."""
    ROUNDS: tl.constexpr = (D + 511) // 512
    means = ()
    rstds = ()
    for i in tl.static_range(ROWS):
        mean, rstd = row_statistics(kept, i, ROUNDS, eps, D, SHUFFLES)
        means = means + (mean,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
        rstds = rstds + (rstd,)  # type: ignore[assignment]  # noqa: RUF005
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        if not HAS_ROWS:
            shift = table_vector(table_shift_ptr, temb_shift_ptr, column, column < D)
            one_plus_scale = 1.0 + table_vector(table_scale_ptr, temb_scale_ptr, column, column < D)
        for i in tl.static_range(ROWS):
            row = first + i
            inside = (column < D) & (row < rows)
            if HAS_ROWS:
                begin = embeddings[i] * temb_row_stride
                shift = table_vector(table_shift_ptr, temb_shift_ptr + begin, column, column < D)
                one_plus_scale = 1.0 + table_vector(table_scale_ptr, temb_scale_ptr + begin, column, column < D)
            x = widened(kept[i * ROUNDS + r])
            modulated = rstds[i] * (x - means[i]) * one_plus_scale + shift
            tl.store(out_ptr + row * out_row_stride + column, modulated.to(tl.bfloat16), mask=inside)


def table_reason(
    hidden: torch.Tensor, table: torch.Tensor, temb: torch.Tensor, row_of_token: torch.Tensor | None,
    prefix: str = "", **indices: int,
) -> str | None:  # fmt: skip
    """Why table [1, K, D], temb [B, R, K or 1, D] and row_of_token [S] do not fit the rows of ``hidden``; or None.

    ``indices`` are the vectors that a kernel takes. What row_of_token holds is not looked at: that would wait for the
    card.
    """
    batch, rows, width = hidden.shape
    names = (f"{prefix}table", f"{prefix}temb")
    if table.ndim != 3:
        return f"{names[0]} has {table.ndim} dimensions; the kernel needs 3: [1, K, D]"
    if temb.ndim != 4:
        return f"{names[1]} has {temb.ndim} dimensions; the kernel needs 4: [B, R, K, D]"
    vectors, embeddings = table.shape[1], temb.shape[1]
    if temb.dtype not in EMBEDDING_DTYPES:
        return f"{names[1]} is {str(temb.dtype).removeprefix('torch.')}; the kernel needs bfloat16 or float32"
    for name, index in indices.items():
        if not 0 <= index < vectors:
            return f"{name} is {index}; the kernel needs 0 to {vectors - 1}, a row of {names[0]}"
    slots = temb.shape[2] if temb.shape[2] == 1 else vectors
    return first_of(
        tensor_reason(names[0], table, (1, vectors, width), torch.float32, hidden.device, alignment=4),
        tensor_reason(
            names[1], temb, (batch, embeddings, slots, width), temb.dtype, hidden.device, temb.element_size()
        ),
        _row_of_token_reason(row_of_token, rows, embeddings, hidden.device),
    )


def _row_of_token_reason(
    row_of_token: torch.Tensor | None, rows: int, embeddings: int, device: torch.device
) -> str | None:
    if row_of_token is not None:
        return tensor_reason("row_of_token", row_of_token, (rows,), torch.int32, device, alignment=4)
    return None if embeddings == 1 else f"temb has {embeddings} rows a sample without row_of_token; the kernel needs it"


def outputs_reason(out: torch.Tensor | None, normed: torch.Tensor | None) -> str | None:
    """Why the two outputs of one launch do not fit together; or None."""
    if out is None or normed is None or out.data_ptr() != normed.data_ptr():
        return None
    return "out and normed start at the same address; the kernel needs memory of its own for each"


def table_strides(table: torch.Tensor, temb: torch.Tensor) -> tuple[int, int, int, int]:
    """Of the table from vector to vector; of the embedding from sample to sample, row to row and vector to vector."""
    return (table.stride(1), temb.stride(0), temb.stride(1), temb.stride(2) if temb.shape[2] > 1 else 0)


def vector_bytes(temb: torch.Tensor, vectors: int) -> int:
    """What ``vectors`` modulation vectors hold: rows of the table and of the embedding, once each."""
    batch, embeddings, slots, width = temb.shape
    return width * (4 * vectors + batch * embeddings * min(slots, vectors) * temb.element_size())


def launch_options(width: int) -> dict[str, Any]:
    """The constants that every kernel over such rows is launched with."""
    rows = rows_per_program(width)
    return {
        "D": width,
        "ROWS": rows,
        "SHUFFLES": not is_interpreted(),
        "num_warps": NUM_WARPS,
        "enable_fp_fusion": False,
    }


def table_compile_cases(kernel: Any, types: Mapping[str, str] | None = None) -> list[CompileCase]:
    """D = 3072 with one embedding and with several, as models launch it; a width that 512 does not divide."""
    cases = []
    for width, has_rows, temb in ((3072, False, "*bf16"), (3072, True, "*bf16"), (516, True, "*fp32")):
        constants = {"D": width, "ROWS": rows_per_program(width), "HAS_ROWS": has_rows, "SHUFFLES": True}
        known = {"table_ptr": "*fp32", "next_table_ptr": "*fp32", "temb_ptr": temb, "next_temb_ptr": temb}
        known |= {"row_of_token_ptr": "*i32" if has_rows else "*fp32", "eps": "fp32", **(types or {})}
        names = [name for name in kernel.arg_names if name not in constants]
        signature = {name: known.get(name, "*bf16" if name.endswith("_ptr") else "i32") for name in names}
        cases.append(CompileCase(kernel, signature, constants, {"num_warps": NUM_WARPS, "enable_fp_fusion": False}))
    return cases
