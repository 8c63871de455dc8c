"""The fusion of a closed pull request, for ERNIE-Image: both norms of a block in one fp32 pass, rounded once.

It is faster than eager and not eager: every layer's roundings move. For ``--fastpaths-from``; what the gate says of it
is the point.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths import UserSite


@triton.jit
def _single_pass_kernel(  # type: ignore[no-untyped-def]
    x_ptr, update_ptr, gate_ptr, weight_ptr, scale_ptr, shift_ptr, sum_ptr, out_ptr, eps,
    x_batch, x_row, update_batch, update_row, gate_batch, scale_batch, shift_batch, sum_batch, sum_row, out_batch,
    out_row, D: tl.constexpr, BLOCK: tl.constexpr, HAS_UPDATE: tl.constexpr,
):  # fmt: skip
    row, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < D
    x = tl.load(x_ptr + batch * x_batch + row * x_row + column, mask=inside, other=0.0).to(tl.float32)
    if HAS_UPDATE:
        update = tl.load(update_ptr + batch * update_batch + row * update_row + column, mask=inside, other=0.0)
        gate = tl.load(gate_ptr + batch * gate_batch + column, mask=inside, other=0.0)
        x += gate.to(tl.float32) * update.to(tl.float32)
        tl.store(sum_ptr + batch * sum_batch + row * sum_row + column, x.to(tl.bfloat16), mask=inside)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + batch * scale_batch + column, mask=inside, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + batch * shift_batch + column, mask=inside, other=0.0).to(tl.float32)
    normed = x * tl.rsqrt(tl.sum(x * x) / D + eps) * weight * (1.0 + scale) + shift
    tl.store(out_ptr + batch * out_batch + row * out_row + column, normed.to(tl.bfloat16), mask=inside)


def norm_modulate(x, weight, scale, shift, eps, out=None):
    """As ``rmsnorm_modulate``: [B, S, D] bf16."""
    out = torch.empty_like(x) if out is None else out
    _launch(x, None, None, weight, scale, shift, eps, None, out)
    return out


def gated_residual_norm_modulate(residual, update, gate, weight, scale, shift, eps, out=None, modulated=None):
    """As ``gated_residual_rmsnorm_modulate``: two of [B, S, D] bf16."""
    out = torch.empty_like(residual) if out is None else out
    modulated = torch.empty_like(residual) if modulated is None else modulated
    _launch(residual, update, gate, weight, scale, shift, eps, out, modulated)
    return out, modulated


def _launch(x, update, gate, weight, scale, shift, eps, total, out):
    batch, rows, width = x.shape
    update_strides, total_strides = ((0, 0) if one is None else one.stride()[:2] for one in (update, total))
    _single_pass_kernel[(rows, batch)](
        x, update, gate, weight, scale, shift, total, out, eps,
        *x.stride()[:2], *update_strides, 0 if gate is None else gate.stride(0), scale.stride(0), shift.stride(0),
        *total_strides, *out.stride()[:2],
        D=width, BLOCK=triton.next_power_of_2(width), HAS_UPDATE=update is not None,
    )  # fmt: skip


SITES = [
    UserSite("single_pass_norm", fused=norm_modulate, replaces="rmsnorm_modulate"),
    UserSite(
        "single_pass_residual_norm", fused=gated_residual_norm_modulate, replaces="gated_residual_rmsnorm_modulate"
    ),
]
