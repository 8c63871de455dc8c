"""Per-head RMSNorm and interleaved rotary embedding of query and key, in one launch.

Formula: for every head vector x, ``n = R(w * (rstd * x))`` with ``rstd = rsqrt(mean(x * x) + eps)``, then
    ``R(n * cos + turned(n) * sin)`` with ``turned(n) = (-n1, n0, -n3, n2, ...)``; R is one rounding to bf16.
Shapes: query and key [B, S, H, 128] bf16, any views with a contiguous last dimension and strides divisible by 16 (parts
    of a packed [B, S, 3, H, 128] buffer, say); weights [128] bf16; cos and sin [S, 128] fp32; rows [0, text_rows) of
    every sample take the text weights. Outputs are fresh, the inputs themselves, or rows of another buffer.
Rounds: twice, after the weight and after the rotation; all else is fp32, the two products of the rotation are rounded
    before they are added (no fma).
Replaces: ``torch.nn.RMSNorm(128)`` of query and key, of text and image rows apart, the two ``cat`` that join them, and
    ``diffusers.models.embeddings.apply_rotary_emb(use_real_unbind_dim=-1, sequence_dim=1)`` of diffusers 0.42.1: 2 to 4
    norms, 2 copies and 2 x 8 pointwise kernels.
Exact: every bit. Reproduced from aten's ``vectorized_layer_norm_kernel`` with ``rms_norm``, torch 2.9 and later:
    32 lanes of four neighbours, each adding its squares from left to right (fma); no Welford, only a sum; lanes folded
    16, 8, 4, 2, 1 (self + other); other warps add zeros; sum / 128, which is exact; ``rsqrtf``; weight * (rstd * x).
    Eager's rotation is one kernel an operation, so nothing is contracted there.
Declines: other dtypes, a head dimension other than 128, key heads unlike query heads, addresses or strides that are no
    multiple of 16 (aten then runs another kernel), eps below the smallest normal fp32 number.
Bytes: query and key once in and once out, cos and sin once: 4 B S H 256 + 2 S 512 (113 MB + 5 MB at S 4608, H 24).
Check first: if the trace shows layer-norm kernels beside the attention, check that q and k reach this site as views
    with 16-element strides; if it shows ``CatArrayBatchedCopy``, that text and image rows share one buffer.
Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu (compute_stats, cuWelfordOnlineSum, cuWelfordCombine).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import LARGEST_OFFSET, dimensions_reason, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.rms_statistics import add, fold_halves

HEAD_DIM = 128
SMALLEST_EPS = 2.0**-126
"""Below it, rsqrt could meet a subnormal number, which Triton flushes to zero and aten does not."""


@dataclass(frozen=True)
class Launch:
    """A program takes ``tile`` heads at a time, ``tiles`` times, of query and key of one row.

    ``fold``: "lanes" folds the 32 partial sums by warp shuffles and needs 16 threads a head with 8 elements each;
    "halves" spells every fold out, in the same order, through shared memory.
    """

    tile: int = 8
    tiles: int = 3
    num_warps: int = 4
    fold: str = "lanes"


_LAUNCH = Launch()  # 16 threads a head, one 16-byte load each; a program reads cos and sin once for 24 heads


def reference(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, eps: float,
    text_query_weight: torch.Tensor | None = None, text_key_weight: torch.Tensor | None = None, text_rows: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """diffusers' eager expression: the norms by rows, then the rotation, as fresh tensors [B, S, H, 128]."""
    return (
        _rotated(_normalized(query, query_weight, text_query_weight, text_rows, eps), cos, sin),
        _rotated(_normalized(key, key_weight, text_key_weight, text_rows, eps), cos, sin),
    )


def _normalized(
    x: torch.Tensor, weight: torch.Tensor, text_weight: torch.Tensor | None, text_rows: int, eps: float
) -> torch.Tensor:
    if text_rows == 0:
        return F.rms_norm(x, (HEAD_DIM,), weight, eps)
    text = F.rms_norm(x[:, :text_rows], (HEAD_DIM,), text_weight, eps)
    return torch.cat([text, F.rms_norm(x[:, text_rows:], (HEAD_DIM,), weight, eps)], dim=1)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    real, imaginary = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
    turned = torch.stack([-imaginary, real], dim=-1).flatten(3)
    return (x.float() * cos[None, :, None, :] + turned.float() * sin[None, :, None, :]).to(x.dtype)


@triton.jit
def sum_of_squares(x, ROWS: tl.constexpr, FOLD: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, 128] fp32 -> [ROWS], in aten's order: 32 lanes of four, folded 16, 8, 4, 2, 1."""
    even, odd = tl.split(tl.reshape(x, (ROWS, 32, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    lanes = tl.fma(fourth, fourth, tl.fma(third, third, tl.fma(second, second, first * first)))
    if FOLD == "lanes":
        # A thread holds two neighbouring lanes: the even ones meet at 16, 8, 4, 2 (8, 4, 2, 1 threads apart), the odd
        # ones likewise, and the last fold, lane 0 with lane 1, is the sum of both.
        even_lanes, odd_lanes = tl.split(tl.reshape(lanes, (ROWS, 16, 2)))
        return tl.reduce(even_lanes, 1, add) + tl.reduce(odd_lanes, 1, add)
    return fold_halves(lanes, ROWS)


@triton.jit
def _norm_rope(  # type: ignore[no-untyped-def]
    raw, weight, cos_even, cos_odd, sin_even, sin_odd, eps, ROWS: tl.constexpr, FOLD: tl.constexpr
):
    """[ROWS, 128] bf16 as loaded -> normalized and turned, bf16."""
    x = raw.to(tl.float32)
    rstd = tl.rsqrt(sum_of_squares(x, ROWS, FOLD) * 0.0078125 + eps)
    n = (weight * (rstd[:, None] * x)).to(tl.bfloat16).to(tl.float32)
    even, odd = tl.split(tl.reshape(n, (ROWS, 64, 2)))
    turned_even = even * cos_even - odd * sin_even
    turned_odd = odd * cos_odd + even * sin_odd
    return tl.reshape(tl.join(turned_even, turned_odd), (ROWS, 128)).to(tl.bfloat16)


@triton.jit
def _qk_norm_rope_kernel(  # type: ignore[no-untyped-def]
    query_ptr, key_ptr, out_query_ptr, out_key_ptr,
    query_weight_ptr, key_weight_ptr, text_query_weight_ptr, text_key_weight_ptr,
    cos_ptr, sin_ptr,
    text_rows, eps,
    query_batch_stride, query_row_stride, query_head_stride,
    key_batch_stride, key_row_stride, key_head_stride,
    out_query_batch_stride, out_query_row_stride, out_query_head_stride,
    out_key_batch_stride, out_key_row_stride, out_key_head_stride,
    cos_row_stride, sin_row_stride,
    HEADS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, HAS_TEXT: tl.constexpr, FOLD: tl.constexpr,
):  # fmt: skip
    programs_per_row: tl.constexpr = (HEADS + TILE * TILES - 1) // (TILE * TILES)
    row = (tl.program_id(0) // programs_per_row).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    column = tl.arange(0, 128)[None, :]
    # Tables are loaded in the tile's own shape: a row vector would come in another layout and cross shared memory.
    table = tl.broadcast_to(column, (TILE, 128))
    cos_even, cos_odd = tl.split(tl.reshape(tl.load(cos_ptr + row * cos_row_stride + table), (TILE, 64, 2)))
    sin_even, sin_odd = tl.split(tl.reshape(tl.load(sin_ptr + row * sin_row_stride + table), (TILE, 64, 2)))
    if HAS_TEXT:  # noqa: SIM102 - a compile-time condition around one of the launch
        if row < text_rows:
            query_weight_ptr = text_query_weight_ptr
            key_weight_ptr = text_key_weight_ptr
    query_weight = tl.load(query_weight_ptr + table).to(tl.float32)
    key_weight = tl.load(key_weight_ptr + table).to(tl.float32)
    query_ptr += batch * query_batch_stride + row * query_row_stride
    key_ptr += batch * key_batch_stride + row * key_row_stride
    out_query_ptr += batch * out_query_batch_stride + row * out_query_row_stride
    out_key_ptr += batch * out_key_batch_stride + row * out_key_row_stride

    head = (tl.program_id(0) % programs_per_row) * (TILE * TILES) + tl.arange(0, TILE)[:, None]
    query = tl.load(query_ptr + (head * query_head_stride + column), mask=head < HEADS, other=0.0)
    key = tl.load(key_ptr + (head * key_head_stride + column), mask=head < HEADS, other=0.0)
    for tile in tl.static_range(TILES):
        following = head + TILE
        if tile + 1 < TILES:  # on their way while this tile is computed; in place, other heads are written
            next_query = tl.load(
                query_ptr + (following * query_head_stride + column), mask=following < HEADS, other=0.0
            )
            next_key = tl.load(key_ptr + (following * key_head_stride + column), mask=following < HEADS, other=0.0)
        query = _norm_rope(query, query_weight, cos_even, cos_odd, sin_even, sin_odd, eps, TILE, FOLD)
        tl.store(out_query_ptr + (head * out_query_head_stride + column), query, mask=head < HEADS)
        key = _norm_rope(key, key_weight, cos_even, cos_odd, sin_even, sin_odd, eps, TILE, FOLD)
        tl.store(out_key_ptr + (head * out_key_head_stride + column), key, mask=head < HEADS)
        if tile + 1 < TILES:
            query = next_query
            key = next_key
            head = following


def reject_reason(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, eps: float,
    text_query_weight: torch.Tensor | None = None, text_key_weight: torch.Tensor | None = None, text_rows: int = 0,
    out_query: torch.Tensor | None = None, out_key: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    if reason := device_reason("query", query) or dimensions_reason("query", query, "B S H 128"):
        return reason
    batch, rows, heads, _ = query.shape
    shape, device = (batch, rows, heads, HEAD_DIM), query.device
    weights = {"query_weight": query_weight, "key_weight": key_weight}
    if text_rows:
        if not 0 < text_rows <= rows:
            return f"text_rows is {text_rows}; the kernel needs 0 to {rows}, the number of rows"
        if text_query_weight is None or text_key_weight is None:
            return f"text_rows is {text_rows} without text_query_weight and text_key_weight; the kernel needs both"
        weights |= {"text_query_weight": text_query_weight, "text_key_weight": text_key_weight}
    if not eps >= SMALLEST_EPS:
        return f"eps is {eps}; the kernel needs at least {SMALLEST_EPS}"
    return (
        tensor_reason("query", query, shape)
        or tensor_reason("key", key, shape, device=device)
        or next(filter(None, (tensor_reason(n, w, (HEAD_DIM,), device=device) for n, w in weights.items())), None)
        or tensor_reason("cos", cos, (rows, HEAD_DIM), torch.float32, device)
        or tensor_reason("sin", sin, (rows, HEAD_DIM), torch.float32, device)
        or output_reason("out_query", out_query, query, shape)
        or output_reason("out_key", out_key, query, shape)
        or _stride_reason(query=query, key=key, cos=cos, sin=sin, out_query=out_query, out_key=out_key)
    )


def _stride_reason(**tensors: torch.Tensor | None) -> str | None:
    """16-byte loads, and with them the layout whose folds are aten's, need every stride divisible by 16."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    for name, tensor in given.items():
        if any(step % 16 for step in tensor.stride()[:-1]):
            return f"{name} has strides {list(tensor.stride())}; the kernel needs multiples of 16"
        if tensor.ndim == 4 and tensor.stride(2) * (tensor.shape[2] + 32) > LARGEST_OFFSET:
            return f"{name} has a head stride of {tensor.stride(2)}; one row must lie within 2**31 elements"
    return None


def _tiles(heads: int) -> int:
    """Tiles a program, such that a row's programs have like shares: 3 for 24 heads, 2 for 32."""
    all_tiles = triton.cdiv(heads, _LAUNCH.tile)
    return triton.cdiv(all_tiles, triton.cdiv(all_tiles, _LAUNCH.tiles))


def fused(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cos: torch.Tensor, sin: torch.Tensor, eps: float,
    text_query_weight: torch.Tensor | None = None, text_key_weight: torch.Tensor | None = None, text_rows: int = 0,
    out_query: torch.Tensor | None = None, out_key: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; outputs may be the inputs themselves."""
    batch, rows, heads, _ = query.shape
    out_query = query.new_empty(query.shape) if out_query is None else out_query
    out_key = key.new_empty(key.shape) if out_key is None else out_key
    if text_query_weight is None or text_key_weight is None:
        text_query_weight, text_key_weight = query_weight, key_weight  # not read: HAS_TEXT is false
    tiles = _tiles(heads)
    grid = (rows * triton.cdiv(heads, _LAUNCH.tile * tiles), batch)
    with on_device_of(query):
        _qk_norm_rope_kernel[grid](
            query, key, out_query, out_key,
            query_weight, key_weight, text_query_weight, text_key_weight,
            cos, sin,
            text_rows, eps,
            *query.stride()[:3], *key.stride()[:3], *out_query.stride()[:3], *out_key.stride()[:3],
            cos.stride(0), sin.stride(0),
            HEADS=heads, TILE=_LAUNCH.tile, TILES=tiles, HAS_TEXT=text_rows > 0,
            FOLD="halves" if is_interpreted() else _LAUNCH.fold,
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
    """The variants that models launch: 24 heads (LongCat, FLUX), with and without text weights; 32 and 5 heads."""
    names = _qk_norm_rope_kernel.arg_names
    signature = {name: "*bf16" for name in names if name.endswith("_ptr")} | {"cos_ptr": "*fp32", "sin_ptr": "*fp32"}
    signature |= {"text_rows": "i32", "eps": "fp32"} | {name: "i32" for name in names if name.endswith("_stride")}
    options = {"num_warps": _LAUNCH.num_warps, "enable_fp_fusion": False}
    cases = ((24, True, "lanes"), (24, False, "lanes"), (32, True, "lanes"), (5, False, "lanes"), (24, True, "halves"))
    constants = (
        {"HEADS": heads, "TILE": _LAUNCH.tile, "TILES": _tiles(heads), "HAS_TEXT": has_text, "FOLD": fold}
        for heads, has_text, fold in cases
    )
    return [CompileCase(_qk_norm_rope_kernel, signature, constant, options) for constant in constants]


_SCHEMA = (
    "(Tensor query, Tensor key, Tensor query_weight, Tensor key_weight, Tensor cos, Tensor sin, float eps, "
    "Tensor? text_query_weight=None, Tensor? text_key_weight=None, int text_rows=0) -> (Tensor, Tensor)"
)


@torch.library.custom_op("fuseproof::qk_norm_rope", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The functional form, for ``torch.compile``: fresh outputs. Raises ValueError with the reason that declines it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(query: torch.Tensor, key: torch.Tensor, *_arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return query.new_empty(query.shape), key.new_empty(key.shape)
