"""LayerNorm without weights, times one plus scale, plus shift: the entry of an adaptive block, in one launch.

Formula: ``R(R(R(LN(x)) * R(1 + scale)) + shift)``, R one rounding to bf16; LN has fp32 statistics and no weights.
Shapes: x [B, S, D] bf16, rows of any stride, D up to 16384 and divisible by 4; scale and shift [B, D] bf16, of any
    batch stride (parts of a ``chunk``); rows [0, text_rows) of every sample take text_scale and text_shift. ``out`` is
    fresh, or x itself, or rows of another buffer.
Rounds: four times: after the norm, after ``1 + scale``, after the product, after the sum.
Replaces: ``norm(x) * (1 + scale[:, None]) + shift[:, None]`` of AdaLayerNormZero, AdaLayerNormZeroSingle,
    AdaLayerNormContinuous and of ``norm2`` in FLUX-like blocks, diffusers 0.42.1: four kernels, six passes over x.
Exact: every bit, in aten's order of summation (``fastpaths/kernels/welford.py``).
Declines: other dtypes, a last dimension that is not contiguous, a D that 4 does not divide or beyond 16384, x or out at
    an address that is no multiple of 16, eps below the smallest normal fp32 number.
Bytes: x once in, once out: 4 B S D (57 MB at S 4608, D 3072: 13.5 us at 4.2 TB/s).
Check first: if the trace shows ``vectorized_layer_norm_kernel`` and three pointwise kernels after it, check that x
    reaches this site as bf16 and that the norm has no weights.
Source: diffusers models/normalization.py; aten/src/ATen/native/cuda/layer_norm_kernel.cu.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import output_reason
from fuseproof.fastpaths.kernels.launching import CompileCase, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.row_arguments import (
    eps_reason,
    row_compile_case,
    rows_reason,
    vector_sets,
    vectors_reason,
)
from fuseproof.fastpaths.kernels.welford import NUM_WARPS, empty_state, mean_and_rstd, modulate, push_round


def reference(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
    text_scale: torch.Tensor | None = None, text_shift: torch.Tensor | None = None, text_rows: int = 0,
) -> torch.Tensor:  # fmt: skip
    """diffusers' eager expression, of text and image rows apart; a fresh tensor [B, S, D]."""
    if text_rows == 0:
        return _eager(x, scale, shift, eps)
    assert text_scale is not None and text_shift is not None
    text = _eager(x[:, :text_rows], text_scale, text_shift, eps)
    return torch.cat([text, _eager(x[:, text_rows:], scale, shift, eps)], dim=1)


def _eager(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=eps) * (1 + scale[:, None]) + shift[:, None]


@triton.jit(do_not_specialize=["text_rows"])
def _layernorm_modulate_kernel(  # type: ignore[no-untyped-def]
    x_ptr, scale_ptr, shift_ptr, text_scale_ptr, text_shift_ptr, out_ptr,
    text_rows, eps,
    x_batch_stride, x_row_stride,
    scale_batch_stride, shift_batch_stride, text_scale_batch_stride, text_shift_batch_stride,
    out_batch_stride, out_row_stride,
    D: tl.constexpr, HAS_TEXT: tl.constexpr, SHUFFLES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    x_ptr += batch * x_batch_stride + row * x_row_stride
    out_ptr += batch * out_batch_stride + row * out_row_stride
    scale_ptr += batch * scale_batch_stride
    shift_ptr += batch * shift_batch_stride
    if HAS_TEXT:
        is_text = row < text_rows
        scale_ptr = tl.where(is_text, text_scale_ptr + batch * text_scale_batch_stride, scale_ptr)
        shift_ptr = tl.where(is_text, text_shift_ptr + batch * text_shift_batch_stride, shift_ptr)
    ROUNDS: tl.constexpr = (D + 511) // 512
    kept = ()
    mean, m2, count = empty_state()
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        x = tl.load(x_ptr + column, mask=column < D, other=0.0)
        kept = kept + (x,)  # type: ignore[assignment]  # noqa: RUF005 - Triton knows no unpacking
        mean, m2, count = push_round(x.to(tl.float32), mean, m2, count, r, D)
    mean, rstd = mean_and_rstd(mean, m2, count, eps, D, SHUFFLES)
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        inside = column < D
        scale = tl.load(scale_ptr + column, mask=inside, other=0.0).to(tl.float32)
        shift = tl.load(shift_ptr + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + column, modulate(kept[r].to(tl.float32), mean, rstd, scale, shift), mask=inside)


def reject_reason(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
    text_scale: torch.Tensor | None = None, text_shift: torch.Tensor | None = None, text_rows: int = 0,
    out: torch.Tensor | None = None,
) -> str | None:  # fmt: skip
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return (
        rows_reason("x", x)
        or eps_reason(eps)
        or vectors_reason(x, text_rows, scale=scale, shift=shift, text_scale=text_scale, text_shift=text_shift)
        or output_reason("out", out, x, x.shape)
    )


def fused(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
    text_scale: torch.Tensor | None = None, text_shift: torch.Tensor | None = None, text_rows: int = 0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be ``x`` itself."""
    batch, rows, width = x.shape
    out = x.new_empty(x.shape) if out is None else out
    if text_scale is None or text_shift is None:
        text_scale, text_shift = scale, shift  # not read: HAS_TEXT is false
    with on_device_of(x):
        _layernorm_modulate_kernel[(rows, batch)](
            x, scale, shift, text_scale, text_shift, out,
            text_rows, eps,
            *x.stride()[:2],
            scale.stride(0), shift.stride(0), text_scale.stride(0), text_shift.stride(0),
            *out.stride()[:2],
            D=width, HAS_TEXT=text_rows > 0, SHUFFLES=not is_interpreted(),
            num_warps=NUM_WARPS, enable_fp_fusion=False,
        )  # fmt: skip
    return out


def traffic_bytes(
    x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, eps: float,
    text_scale: torch.Tensor | None = None, text_shift: torch.Tensor | None = None, text_rows: int = 0,
    **_outputs: Any,
) -> int:  # fmt: skip
    """The fewest bytes that a launch with these arguments moves: everything once."""
    vectors = vector_sets(x.shape[1], text_rows) * (scale.nbytes + shift.nbytes)
    return 2 * x.nbytes + vectors


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: D = 3072 with and without text rows, a width that 512 does not divide."""
    cases = ((3072, True), (3072, False), (2432, True))
    constants = ({"D": width, "HAS_TEXT": has_text, "SHUFFLES": True} for width, has_text in cases)
    return [row_compile_case(_layernorm_modulate_kernel, constant, NUM_WARPS) for constant in constants]


_SCHEMA = (
    "(Tensor x, Tensor scale, Tensor shift, float eps, "
    "Tensor? text_scale=None, Tensor? text_shift=None, int text_rows=0) -> Tensor"
)


@torch.library.custom_op("fuseproof::layernorm_modulate", mutates_args=(), schema=_SCHEMA)
def operator(*arguments: Any) -> torch.Tensor:
    """The functional form, for ``torch.compile``: a fresh output. Raises ValueError with the reason to decline it."""
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(x: torch.Tensor, *_arguments: Any) -> torch.Tensor:
    return x.new_empty(x.shape)
