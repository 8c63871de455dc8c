"""Per-head RMSNorm and a rotary embedding in bf16 that turns half against half, of query and key, in one launch.

Formula: for every head vector x, ``n = R(w * (rstd * x))`` with ``rstd = rsqrt(mean(x * x) + eps)``, then
    ``R(R(n * cos) + R(turned(n) * sin))`` with ``turned(n) = (-n[64:], n[:64])``; R is one rounding to bf16.
Shapes: query and key [B, S, H, 128] bf16, any views with a contiguous last dimension and strides divisible by 8 (parts
    of a packed [B, S, 3, H, 128] buffer, say); weights [128] bf16; cos and sin [B, S, 128] bf16, in whatever order the
    angles come (ERNIE-Image has each angle twice side by side, though it turns halves). Outputs are fresh, the inputs
    themselves, or rows of another buffer.
Rounds: five times: after the weight, after each product and after their sum, which are bf16 operations in eager.
Replaces: ``torch.nn.RMSNorm(128)`` of query and key, and ``apply_rotary_emb`` of
    ``ErnieImageSingleStreamAttnProcessor``, diffusers 0.42.1, with cos and sin of the angles taken in every layer: 2
    norms and 2 x 10 kernels.
Exact: every bit. The norm is aten's ``vectorized_layer_norm_kernel`` with ``rms_norm`` (``qk_norm_rope``): 32 lanes of
    four neighbours, folded 16, 8, 4, 2, 1. Lane i and lane i + 16 are the same place in the two halves of a head, so
    a thread that holds both halves takes the first fold, and the turn, without its neighbours.
Declines: other dtypes, a head dimension other than 128, key heads unlike query heads, addresses that are no multiple of
    16 or strides that are none of 8, eps below the smallest normal fp32 number.
Bytes: query and key once in and once out, cos and sin once: 4 B S H 256 + 2 B S 256 (143 MB + 2 MB at S 4352, H 32).
Check first: if the trace shows layer-norm kernels and ``CatArrayBatchedCopy`` before the attention, check that q and k
    reach this site as views with strides divisible by 8.
Source: diffusers transformer_ernie_image.py; aten/src/ATen/native/cuda/layer_norm_kernel.cu.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import (
    LARGEST_OFFSET,
    dimensions_reason,
    first_of,
    output_reason,
    tensor_reason,
)
from fuseproof.fastpaths.kernels.bfloat16 import rounded, widened
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.qk_norm_rope import HEAD_DIM, SMALLEST_EPS
from fuseproof.fastpaths.kernels.rms_statistics import add, halves

HALF = HEAD_DIM // 2


@dataclass(frozen=True)
class Launch:
    """A program takes ``tile`` heads at a time, ``tiles`` times, of query and key of one row.

    ``fold``: "lanes" folds partial sums by warp shuffles and needs 8 threads a head with 8 elements of each half;
    "halves" spells every fold out, in the same order, through shared memory.
    """

    tile: int = 16
    tiles: int = 2
    num_warps: int = 4
    fold: str = "halves"


_LAUNCH = Launch()  # 8 threads a head, a 16-byte load of each half; a program reads cos and sin once for 32 heads


def reference(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """diffusers' eager expression: the norm, then the rotation, as fresh tensors [B, S, H, 128]."""
    return _rotated(query, query_weight, cos, sin, eps), _rotated(key, key_weight, cos, sin, eps)


def _rotated(x: torch.Tensor, weight: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, eps: float) -> torch.Tensor:
    normed = F.rms_norm(x, x.shape[-1:], weight, eps)
    first, second = normed.chunk(2, dim=-1)
    return normed * cos.unsqueeze(2) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(2)


@triton.jit
def _lanes(x, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, 64] fp32 -> [ROWS, 16]: each lane's squares from left to right."""
    even, odd = tl.split(tl.reshape(x, (ROWS, 16, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return tl.fma(fourth, fourth, tl.fma(third, third, tl.fma(second, second, first * first)))


@triton.jit
def _sum_of_squares(low, high, ROWS: tl.constexpr, FOLD: tl.constexpr):  # type: ignore[no-untyped-def]
    lanes = _lanes(low, ROWS) + _lanes(high, ROWS)
    if FOLD == "lanes":
        # A thread holds two neighbouring lanes: the even ones meet 4, 2 and 1 threads apart, the odd ones likewise.
        even_lanes, odd_lanes = tl.split(tl.reshape(lanes, (ROWS, 8, 2)))
        return tl.reduce(even_lanes, 1, add) + tl.reduce(odd_lanes, 1, add)
    lanes = halves(lanes, ROWS, 16)
    lanes = halves(lanes, ROWS, 8)
    lanes = halves(lanes, ROWS, 4)
    return tl.reshape(halves(lanes, ROWS, 2), (ROWS,))


@triton.jit
def _norm_turn(  # type: ignore[no-untyped-def]
    low, high, low_weight, high_weight, low_cos, high_cos, low_sin, high_sin, eps,
    ROWS: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    """Both halves [ROWS, 64] of head vectors, bf16 as loaded -> normalized and turned, bf16."""
    low = widened(low)
    high = widened(high)
    rstd = tl.rsqrt(_sum_of_squares(low, high, ROWS, FOLD) * 0.0078125 + eps)[:, None]
    low = rounded(low_weight * (rstd * low))
    high = rounded(high_weight * (rstd * high))
    # Not the sum with a negated product: Triton negates by subtracting from 0, which takes the sign of a zero.
    turned_low = rounded(low * low_cos) - rounded(high * low_sin)
    turned_high = rounded(high * high_cos) + rounded(low * high_sin)
    return turned_low.to(tl.bfloat16), turned_high.to(tl.bfloat16)


@triton.jit
def _qk_norm_rotate_half_kernel(  # type: ignore[no-untyped-def]
    query_ptr, key_ptr, out_query_ptr, out_key_ptr, query_weight_ptr, key_weight_ptr, cos_ptr, sin_ptr,
    eps,
    query_batch_stride, query_row_stride, query_head_stride,
    key_batch_stride, key_row_stride, key_head_stride,
    out_query_batch_stride, out_query_row_stride, out_query_head_stride,
    out_key_batch_stride, out_key_row_stride, out_key_head_stride,
    cos_batch_stride, cos_row_stride, sin_batch_stride, sin_row_stride,
    HEADS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    programs_per_row: tl.constexpr = (HEADS + TILE * TILES - 1) // (TILE * TILES)
    row = (tl.program_id(0) // programs_per_row).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, 64)[None, :]
    # Tables are loaded in the tile's own shape: a row vector would come in another layout and cross shared memory.
    table = tl.broadcast_to(column, (TILE, 64))
    cos_ptr += batch * cos_batch_stride + row * cos_row_stride
    sin_ptr += batch * sin_batch_stride + row * sin_row_stride
    low_cos = widened(tl.load(cos_ptr + table))
    high_cos = widened(tl.load(cos_ptr + 64 + table))
    low_sin = widened(tl.load(sin_ptr + table))
    high_sin = widened(tl.load(sin_ptr + 64 + table))
    query_ptr += batch * query_batch_stride + row * query_row_stride
    key_ptr += batch * key_batch_stride + row * key_row_stride
    out_query_ptr += batch * out_query_batch_stride + row * out_query_row_stride
    out_key_ptr += batch * out_key_batch_stride + row * out_key_row_stride
    for tile in tl.static_range(TILES):
        head = (tl.program_id(0) % programs_per_row) * (TILE * TILES) + tile * TILE + tl.arange(0, TILE)[:, None]
        inside = tl.broadcast_to(head < HEADS, (TILE, 64))
        query = head * query_head_stride + column
        key = head * key_head_stride + column
        low_query = tl.load(query_ptr + query, mask=inside, other=0.0)
        high_query = tl.load(query_ptr + 64 + query, mask=inside, other=0.0)
        low_key = tl.load(key_ptr + key, mask=inside, other=0.0)
        high_key = tl.load(key_ptr + 64 + key, mask=inside, other=0.0)
        low_weight = widened(tl.load(query_weight_ptr + table))
        high_weight = widened(tl.load(query_weight_ptr + 64 + table))
        low_query, high_query = _norm_turn(
            low_query, high_query, low_weight, high_weight, low_cos, high_cos, low_sin, high_sin, eps, TILE, FOLD
        )
        out_query = head * out_query_head_stride + column
        tl.store(out_query_ptr + out_query, low_query, mask=inside)
        tl.store(out_query_ptr + 64 + out_query, high_query, mask=inside)
        low_weight = widened(tl.load(key_weight_ptr + table))
        high_weight = widened(tl.load(key_weight_ptr + 64 + table))
        low_key, high_key = _norm_turn(
            low_key, high_key, low_weight, high_weight, low_cos, high_cos, low_sin, high_sin, eps, TILE, FOLD
        )
        out_key = head * out_key_head_stride + column
        tl.store(out_key_ptr + out_key, low_key, mask=inside)
        tl.store(out_key_ptr + 64 + out_key, high_key, mask=inside)


def reject_reason(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, eps: float,
    out_query: torch.Tensor | None = None, out_key: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    if reason := device_reason("query", query) or dimensions_reason("query", query, "B S H 128"):
        return reason
    batch, rows, heads, _ = query.shape
    shape, table, device = (batch, rows, heads, HEAD_DIM), (batch, rows, HEAD_DIM), query.device
    if not eps >= SMALLEST_EPS:
        return f"eps is {eps}; the kernel needs at least {SMALLEST_EPS}"
    return first_of(
        tensor_reason("query", query, shape),
        tensor_reason("key", key, shape, device=device),
        tensor_reason("query_weight", query_weight, (HEAD_DIM,), device=device),
        tensor_reason("key_weight", key_weight, (HEAD_DIM,), device=device),
        tensor_reason("cos", cos, table, device=device),
        tensor_reason("sin", sin, table, device=device),
        output_reason("out_query", out_query, query, shape),
        output_reason("out_key", out_key, query, shape),
        _stride_reason(query=query, key=key, cos=cos, sin=sin, out_query=out_query, out_key=out_key),
    )


def _stride_reason(**tensors: torch.Tensor | None) -> str | None:
    """16-byte loads, and with them the layout whose folds are aten's, need every stride divisible by 8."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in given.items():
        if any(step % 8 for step in tensor.stride()[:-1]):
            return f"{name} has strides {list(tensor.stride())}; the kernel needs multiples of 8"
        if tensor.ndim == 4 and tensor.stride(2) * (tensor.shape[2] + 32) > LARGEST_OFFSET:
            return f"{name} has a head stride of {tensor.stride(2)}; one row must lie within 2**31 elements"
    return None


def fused(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, eps: float,
    out_query: torch.Tensor | None = None, out_key: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; outputs may be the inputs themselves."""
    batch, rows, heads, _ = query.shape
    out_query = query.new_empty(query.shape) if out_query is None else out_query
    out_key = key.new_empty(key.shape) if out_key is None else out_key
    tiles = min(_LAUNCH.tiles, triton.cdiv(heads, _LAUNCH.tile))
    grid = (rows * triton.cdiv(heads, _LAUNCH.tile * tiles), batch)
    with on_device_of(query):
        _qk_norm_rotate_half_kernel[grid](
            query, key, out_query, out_key, query_weight, key_weight, cos, sin,
            eps,
            *query.stride()[:3], *key.stride()[:3], *out_query.stride()[:3], *out_key.stride()[:3],
            *cos.stride()[:2], *sin.stride()[:2],
            HEADS=heads, TILE=_LAUNCH.tile, TILES=tiles, FOLD="halves" if is_interpreted() else _LAUNCH.fold,
            num_warps=_LAUNCH.num_warps, enable_fp_fusion=False,
        )  # fmt: skip
    return out_query, out_key


def traffic_bytes(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, *_arguments: Any, **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once (the weights are a few hundred)."""
    return 2 * (query.nbytes + key.nbytes) + cos.nbytes + sin.nbytes


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: 32 heads (ERNIE-Image); 24 and 5 heads."""
    names = _qk_norm_rotate_half_kernel.arg_names
    signature = {name: "*bf16" for name in names if name.endswith("_ptr")}
    signature |= {"eps": "fp32"} | {name: "i32" for name in names if name.endswith("_stride")}
    options = {"num_warps": _LAUNCH.num_warps, "enable_fp_fusion": False}
    cases = ((32, 2, "lanes"), (24, 2, "lanes"), (5, 1, "lanes"), (32, 2, "halves"))
    constants = ({"HEADS": h, "TILE": _LAUNCH.tile, "TILES": tiles, "FOLD": fold} for h, tiles, fold in cases)
    return [CompileCase(_qk_norm_rotate_half_kernel, signature, constant, options) for constant in constants]


_SCHEMA = (
    "(Tensor query, Tensor key, Tensor query_weight, Tensor key_weight, Tensor cos, Tensor sin, float eps) "
    "-> (Tensor, Tensor)"
)


@torch.library.custom_op("fuseproof::qk_norm_rotate_half", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The functional form, for ``torch.compile``: fresh outputs. Raises ValueError with the reason that declines it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(query: torch.Tensor, key: torch.Tensor, *_arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)
