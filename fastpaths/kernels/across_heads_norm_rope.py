"""RMSNorm over all heads together and interleaved rotary embedding of query and key, in one launch.

Formula: for every row x of query and key, ``n = R(weight * (rstd * x))`` with ``rstd = rsqrt(sum(x * x) / D + eps)``
    (``across_heads_norm``), then for the pairs (n0, n1) of every head ``R(n0 * c - n1 * s), R(n0 * s + n1 * c)`` with
    c the cosine at the pair's even place and s the sine at its odd one; R is one rounding to bf16.
Shapes: query and key [B, S, D] bf16, rows of any stride (parts of a packed [B, S, 3 D], say), D up to 16384 and
    divisible by 4; weights [D] bf16; cosine and sine [1, S, 1, D / heads] fp32, as ``WanRotaryPosEmbed`` returns
    them; heads of a power of two up to 512 columns. Outputs [B, S, heads, D / heads] are fresh, or the inputs seen
    so, or rows of another buffer.
Rounds: twice, after the weight and after the rotation; the products are rounded to fp32 before they are added.
Replaces: ``norm_q`` and ``norm_k`` (``torch.nn.RMSNorm(D)``) and the rotation of ``WanAttnProcessor``, diffusers
    0.42.1: 2 norms and 2 x 9 kernels, the last two of each with strided stores.
Exact: every bit. The norm is aten's (``across_heads_norm``); eager's rotation is one kernel an operation, so nothing
    is contracted there.
Declines: other dtypes (a rotary table in bf16 is rounded differently), other heads, a last dimension that is not
    contiguous, rows at an address that is no multiple of 16, eps below the smallest normal fp32 number.
Bytes: query and key once in and once out, cosine and sine once: 8 B S D + 8 S D / heads (671 MB + 28 MB at S 27280, D
    3072: 166 us at 4.2 TB/s).
Check first: if the trace shows ``vectorized_layer_norm_kernel`` and fp32 multiplications beside the self-attention,
    check that the rotary table is fp32: a model that was cast by ``.to(torch.bfloat16)`` has it in bf16.
Source: diffusers transformer_wan.py; aten/src/ATen/native/cuda/layer_norm_kernel.cu (compute_stats).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.across_heads_norm import push_squares, rstd_of
from fuseproof.fastpaths.kernels.arguments import first_of, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import rounded, widened
from fuseproof.fastpaths.kernels.launching import CompileCase, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.row_arguments import eps_reason, rows_reason
from fuseproof.fastpaths.kernels.welford import NUM_WARPS

HEAD_DIMS = (4, 8, 16, 32, 64, 128, 256, 512)
"""They divide the 512 columns of a round, so that one load of cosine and sine serves all of a row."""


def reference(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cosine: torch.Tensor, sine: torch.Tensor, eps: float, heads: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """diffusers' eager expression: the norm, then the rotation, as fresh tensors [B, S, heads, D / heads]."""
    return (
        _rotated(F.rms_norm(query, query.shape[-1:], query_weight, eps), cosine, sine, heads),
        _rotated(F.rms_norm(key, key.shape[-1:], key_weight, eps), cosine, sine, heads),
    )


def _rotated(normed: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, heads: int) -> torch.Tensor:
    even, odd = normed.unflatten(2, (heads, -1, 2)).unbind(-1)
    cosine, sine = cosine[..., 0::2], sine[..., 1::2]
    pairs = (even * cosine - odd * sine, even * sine + odd * cosine)
    return torch.stack(pairs, dim=-1).flatten(3).to(normed.dtype)


@triton.jit
def _norm_rope(raw, weight, rstd, cosine, sine):  # type: ignore[no-untyped-def]
    """512 columns of a row, bf16 as loaded -> normalized and turned, bf16; cosine and sine [256], one a pair."""
    even, odd = tl.split(tl.reshape(rounded(weight * (rstd * widened(raw))), (256, 2)))
    turned = tl.join(even * cosine - odd * sine, even * sine + odd * cosine)
    return tl.reshape(turned, (512,)).to(tl.bfloat16)


@triton.jit
def _across_heads_norm_rope_kernel(  # type: ignore[no-untyped-def]
    query_ptr, key_ptr, query_weight_ptr, key_weight_ptr, cosine_ptr, sine_ptr, out_query_ptr, out_key_ptr,
    eps,
    query_batch_stride, query_row_stride, key_batch_stride, key_row_stride, cosine_row_stride, sine_row_stride,
    out_query_batch_stride, out_query_row_stride, out_key_batch_stride, out_key_row_stride,
    D: tl.constexpr, HEAD_DIM: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    query_ptr += batch * query_batch_stride + row * query_row_stride
    key_ptr += batch * key_batch_stride + row * key_row_stride
    out_query_ptr += batch * out_query_batch_stride + row * out_query_row_stride
    out_key_ptr += batch * out_key_batch_stride + row * out_key_row_stride
    ROUNDS: tl.constexpr = (D + 511) // 512
    kept = ()
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        query = tl.load(query_ptr + column, mask=column < D, other=0.0)
        key = tl.load(key_ptr + column, mask=column < D, other=0.0)
        kept = kept + (query, key)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
    # Loaded in the shape of a round: one of its own would come in another layout and cross shared memory.
    place = tl.arange(0, 512) % HEAD_DIM
    cosine, _ = tl.split(tl.reshape(tl.load(cosine_ptr + row * cosine_row_stride + place), (256, 2)))
    _, sine = tl.split(tl.reshape(tl.load(sine_ptr + row * sine_row_stride + place), (256, 2)))
    query_squares = tl.zeros((128,), tl.float32)
    key_squares = tl.zeros((128,), tl.float32)
    for r in tl.static_range(ROUNDS):
        query_squares = push_squares(widened(kept[2 * r]), query_squares)
        key_squares = push_squares(widened(kept[2 * r + 1]), key_squares)
    query_rstd = rstd_of(query_squares, eps, D, SHUFFLES)
    key_rstd = rstd_of(key_squares, eps, D, SHUFFLES)
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        query_weight = tl.load(query_weight_ptr + column, mask=column < D, other=0.0, eviction_policy="evict_last")
        key_weight = tl.load(key_weight_ptr + column, mask=column < D, other=0.0, eviction_policy="evict_last")
        query = _norm_rope(kept[2 * r], widened(query_weight), query_rstd, cosine, sine)
        key = _norm_rope(kept[2 * r + 1], widened(key_weight), key_rstd, cosine, sine)
        tl.store(out_query_ptr + column, query, mask=column < D)
        tl.store(out_key_ptr + column, key, mask=column < D)


def reject_reason(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cosine: torch.Tensor, sine: torch.Tensor, eps: float, heads: int,
    out_query: torch.Tensor | None = None, out_key: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    if reason := rows_reason("query", query):
        return reason
    batch, rows, width = query.shape
    if heads < 1 or width % heads or width // heads not in HEAD_DIMS:
        allowed = ", ".join(map(str, HEAD_DIMS))
        return f"heads is {heads} of {width} columns; the kernel needs heads of one of {allowed} columns"
    head_dim, device = width // heads, query.device
    table, shape = (1, rows, 1, head_dim), (batch, rows, heads, head_dim)
    return first_of(
        tensor_reason("key", key, query.shape, device=device),
        tensor_reason("query_weight", query_weight, (width,), device=device),
        tensor_reason("key_weight", key_weight, (width,), device=device),
        tensor_reason("cosine", cosine, table, torch.float32, device, alignment=4),
        tensor_reason("sine", sine, table, torch.float32, device, alignment=4),
        eps_reason(eps),
        output_reason("out_query", out_query, query, shape),
        output_reason("out_key", out_key, query, shape),
    ) or first_of(_heads_reason("out_query", out_query), _heads_reason("out_key", out_key))


def _heads_reason(name: str, out: torch.Tensor | None) -> str | None:
    if out is None or out.shape[2] == 1 or out.stride(2) == out.shape[3]:
        return None
    return f"{name} has strides {list(out.stride())}; the kernel needs the heads of a row side by side"


def fused(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cosine: torch.Tensor, sine: torch.Tensor, eps: float, heads: int,
    out_query: torch.Tensor | None = None, out_key: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; outputs may be the inputs' memory."""
    batch, rows, width = query.shape
    shape = (batch, rows, heads, width // heads)
    out_query = query.new_empty(shape) if out_query is None else out_query
    out_key = key.new_empty(shape) if out_key is None else out_key
    with on_device_of(query):
        _across_heads_norm_rope_kernel[(rows, batch)](
            query, key, query_weight, key_weight, cosine, sine, out_query, out_key,
            eps,
            *query.stride()[:2], *key.stride()[:2], cosine.stride(1), sine.stride(1),
            *out_query.stride()[:2], *out_key.stride()[:2],
            D=width, HEAD_DIM=width // heads, SHUFFLES=not is_interpreted(),
            num_warps=NUM_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out_query, out_key


def traffic_bytes(
    query: torch.Tensor, key: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor,
    cosine: torch.Tensor, sine: torch.Tensor, *_arguments: Any, **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once."""
    weights = query_weight.nbytes + key_weight.nbytes
    return 2 * (query.nbytes + key.nbytes) + weights + cosine.nbytes + sine.nbytes


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: 24 heads of 128; 5 heads, whose last round is cut; narrow heads."""
    names = _across_heads_norm_rope_kernel.arg_names[:-3]
    signature = {name: "*bf16" if name.endswith("_ptr") else "i32" for name in names}
    signature |= {"eps": "fp32", "cosine_ptr": "*fp32", "sine_ptr": "*fp32"}
    options = {"num_warps": NUM_WARPS, "enable_fp_fusion": False}
    cases = ((3072, 128), (640, 128), (256, 16))
    constants = ({"D": width, "HEAD_DIM": head_dim, "SHUFFLES": True} for width, head_dim in cases)
    return [CompileCase(_across_heads_norm_rope_kernel, signature, constant, options) for constant in constants]


_SCHEMA = (
    "(Tensor query, Tensor key, Tensor query_weight, Tensor key_weight, Tensor cosine, Tensor sine, float eps, "
    "int heads) -> (Tensor, Tensor)"
)


@torch.library.custom_op("fuseproof::across_heads_norm_rope", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The functional form, for ``torch.compile``: fresh outputs. Raises ValueError with the reason that declines it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(query: torch.Tensor, key: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    heads = arguments[-1]
    shape = (*query.shape[:2], heads, query.shape[2] // heads)
    return query.new_empty(shape), key.new_empty(shape)
