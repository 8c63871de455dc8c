"""Classifier-free guidance, renormalisation and the scheduler's Euler step, in one launch.

Formula: ``g = R(u + R(s * R(v - u)))`` for conditional and unconditional velocity v and u and the guidance scale s;
    with renormalisation ``g = R(g * R(clamp(R(|v| / R(|g| + 1e-8)), m, 1)))``, |.| = ``R(sqrt(sum of squares))`` of a
    row; then ``R(x + R(R(dt) * g))`` for latents x. Without u only the last line, of v. R is one rounding to bf16.
Shapes: velocity, velocity_uncond and latents [B, S, 64] bf16 with a contiguous last dimension, rows of any stride;
    dt a 0-dim fp32 tensor on the device (sigma_next - sigma); the result is a fresh [B, S, 64] bf16 tensor.
Rounds: after every operation of the guidance; dt, a 0-dim fp32 tensor times a bf16 tensor, is rounded to bf16 first;
    the sum with the latents is fp32 and rounded once. Python floats (s, m, 1e-8) stay fp32.
Replaces: the guidance lines of ``LongCatImagePipeline.__call__`` and ``FlowMatchEulerDiscreteScheduler.step`` (neither
    stochastic nor with per-token timesteps), diffusers 0.42.1: 14 kernels.
Exact: every bit. ``torch.norm`` over 64 bf16 values is too short to be vectorized (128): of 32 lanes, lane t adds the
    squares of t and t + 32 (exact in fp32), then lanes are folded 16, 8, 4, 2, 1 (torch 2.10 and later; 1, 2, 4, 8, 16
    before), sqrt correctly rounded, R. With fewer than 16 rows aten uses 64 lanes and folds 32 first, which is the same
    sum. The quotient is correctly rounded; clamp passes NaN on.
Declines: other dtypes, a channel dimension other than 64, addresses that are no multiple of 16, dt on another device.
Bytes: each of v, u, x and the result once: 8 B S 64 (2 MB at S 4096: the launch itself is what remains).
Check first: if the trace shows ``reduce_kernel<512, 1, ReduceOp<..., NormTwoOps`` between two steps, check that the
    scheduler is neither stochastic nor handed per-token timesteps, and that velocities arrive as bf16.
Source: diffusers pipeline_longcat_image.py, scheduling_flow_match_euler_discrete.py; torch 2.13
    ATen/native/cuda/Reduce.cuh (setReduceConfig, block_x_reduce) and SharedReduceOps.h (NormTwoOps); the rounding of a
    0-dim dt was measured on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import dimensions_reason, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import rounded, widened
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, on_device_of

CHANNELS = 64
RENORM_EPS = 1e-8


@dataclass(frozen=True)
class Launch:
    """A program takes ``rows`` rows. ``fold``: "halves" as torch 2.10 and later, "neighbours" as torch before."""

    rows: int = 16
    num_warps: int = 4
    fold: str = "halves"


# 16 rows in 4 warps: one 16-byte load a thread and tensor, 256 programs at 4096 tokens.
_LAUNCH = Launch()


def reference(
    velocity: torch.Tensor,
    velocity_uncond: torch.Tensor | None,
    latents: torch.Tensor,
    dt: torch.Tensor,
    guidance_scale: float,
    renormalise: bool,
    renorm_min: float,
) -> torch.Tensor:
    """diffusers' eager expressions; the latents of the next step, a fresh tensor."""
    if velocity_uncond is not None:
        guided = velocity_uncond + guidance_scale * (velocity - velocity_uncond)
        if renormalise:
            conditional_norm = torch.norm(velocity, dim=-1, keepdim=True)
            guided_norm = torch.norm(guided, dim=-1, keepdim=True)
            guided = guided * (conditional_norm / (guided_norm + RENORM_EPS)).clamp(min=renorm_min, max=1.0)
        velocity = guided
    return (latents.to(torch.float32) + dt * velocity).to(velocity.dtype)


@triton.jit
def _halves(values, ROWS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, LANES] -> [ROWS, LANES / 2]: lane i takes in lane i + LANES / 2."""
    low, high = tl.split(tl.permute(tl.reshape(values, (ROWS, 2, LANES // 2)), (0, 2, 1)))
    return low + high


@triton.jit
def _neighbours(values, ROWS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, LANES] -> [ROWS, LANES / 2]: lane 2i takes in lane 2i + 1."""
    low, high = tl.split(tl.reshape(values, (ROWS, LANES // 2, 2)))
    return low + high


@triton.jit
def sum_of_squares(x, ROWS: tl.constexpr, FOLD: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, 64] -> [ROWS, 1] in fp32, in the order of aten's reduction."""
    lanes = _halves(x * x, ROWS, 64)
    if FOLD == "halves":
        lanes = _halves(lanes, ROWS, 32)
        lanes = _halves(lanes, ROWS, 16)
        lanes = _halves(lanes, ROWS, 8)
        lanes = _halves(lanes, ROWS, 4)
        lanes = _halves(lanes, ROWS, 2)
    else:  # triton 3.6 goes on to compile what follows a return
        lanes = _neighbours(lanes, ROWS, 32)
        lanes = _neighbours(lanes, ROWS, 16)
        lanes = _neighbours(lanes, ROWS, 8)
        lanes = _neighbours(lanes, ROWS, 4)
        lanes = _neighbours(lanes, ROWS, 2)
    return lanes


@triton.jit
def _norm(x, ROWS: tl.constexpr, FOLD: tl.constexpr):  # type: ignore[no-untyped-def]
    return rounded(tl.math.sqrt_rn(sum_of_squares(x, ROWS, FOLD)))


@triton.jit
def _guidance_step_kernel(  # type: ignore[no-untyped-def]
    velocity_ptr,
    uncond_ptr,
    latents_ptr,
    dt_ptr,
    out_ptr,
    rows,
    guidance_scale,
    renorm_min,
    velocity_batch_stride,
    velocity_row_stride,
    uncond_batch_stride,
    uncond_row_stride,
    latents_batch_stride,
    latents_row_stride,
    out_batch_stride,
    out_row_stride,
    ROWS: tl.constexpr,
    GUIDED: tl.constexpr,
    RENORMALISE: tl.constexpr,
    FOLD: tl.constexpr,
):
    batch = tl.program_id(1).to(tl.int64)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    inside = row < rows
    row = row.to(tl.int64)
    column = tl.arange(0, 64)[None, :]
    velocity_ptr += batch * velocity_batch_stride
    latents_ptr += batch * latents_batch_stride
    latents = widened(tl.load(latents_ptr + row * latents_row_stride + column, mask=inside, other=0.0))
    guided = widened(tl.load(velocity_ptr + row * velocity_row_stride + column, mask=inside, other=0.0))
    if GUIDED:
        velocity = guided
        uncond_ptr += batch * uncond_batch_stride
        uncond = widened(tl.load(uncond_ptr + row * uncond_row_stride + column, mask=inside, other=0.0))
        guided = rounded(uncond + rounded(guidance_scale * rounded(velocity - uncond)))
        if RENORMALISE:
            floor = rounded(_norm(guided, ROWS, FOLD) + 1e-8)
            ratio = rounded(tl.math.div_rn(_norm(velocity, ROWS, FOLD), floor))
            at_least = tl.where(ratio < renorm_min, renorm_min, ratio)  # comparisons keep NaN, as aten's clamp does
            scale = rounded(tl.where(at_least > 1.0, 1.0, at_least))
            guided = rounded(guided * scale)
    dt = rounded(tl.load(dt_ptr))
    stepped = latents + rounded(dt * guided)
    tl.store(out_ptr + batch * out_batch_stride + row * out_row_stride + column, stepped.to(tl.bfloat16), mask=inside)


def reject_reason(
    velocity: torch.Tensor,
    velocity_uncond: torch.Tensor | None,
    latents: torch.Tensor,
    dt: torch.Tensor,
    guidance_scale: float,
    renormalise: bool,
    renorm_min: float,
) -> str | None:
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    if reason := device_reason("velocity", velocity) or dimensions_reason("velocity", velocity, "B S 64"):
        return reason
    shape, device = (*velocity.shape[:2], CHANNELS), velocity.device
    reason = tensor_reason("velocity", velocity, shape) or tensor_reason("latents", latents, shape, device=device)
    if reason is None and velocity_uncond is not None:
        reason = tensor_reason("velocity_uncond", velocity_uncond, shape, device=device)
    if reason is None and (dt.ndim != 0 or dt.dtype != torch.float32 or dt.device != device):
        where = f"{list(dt.shape)} {str(dt.dtype).removeprefix('torch.')} on {dt.device}"
        return f"dt is {where}; the kernel needs one float32 number, without dimensions, on {device}"
    if reason is None and renormalise and not renorm_min <= 1.0:
        return f"renorm_min is {renorm_min}; the kernel needs at most 1"
    return reason


def fused(
    velocity: torch.Tensor,
    velocity_uncond: torch.Tensor | None,
    latents: torch.Tensor,
    dt: torch.Tensor,
    guidance_scale: float,
    renormalise: bool,
    renorm_min: float,
) -> torch.Tensor:
    """Launch the kernel on arguments that :func:`reject_reason` has passed; the latents of the next step."""
    batch, rows, _ = latents.shape
    out = latents.new_empty(latents.shape)
    uncond = velocity if velocity_uncond is None else velocity_uncond
    with on_device_of(latents):
        _guidance_step_kernel[(triton.cdiv(rows, _LAUNCH.rows), batch)](
            velocity,
            uncond,
            latents,
            dt,
            out,
            rows,
            float(guidance_scale),
            float(renorm_min),
            *velocity.stride()[:2],
            *uncond.stride()[:2],
            *latents.stride()[:2],
            *out.stride()[:2],
            ROWS=_LAUNCH.rows,
            GUIDED=velocity_uncond is not None,
            RENORMALISE=renormalise,
            FOLD=_LAUNCH.fold,
            num_warps=_LAUNCH.num_warps,
            enable_fp_fusion=False,
        )
    return out


def traffic_bytes(
    velocity: torch.Tensor, velocity_uncond: torch.Tensor | None, latents: torch.Tensor, *_arguments: Any
) -> int:
    """The fewest bytes that a launch with these arguments moves: everything once."""
    uncond_bytes = 0 if velocity_uncond is None else velocity_uncond.nbytes
    return velocity.nbytes + uncond_bytes + 2 * latents.nbytes


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: guided with and without renormalisation, not guided, and the older fold."""
    names = _guidance_step_kernel.arg_names
    signature = {name: "*bf16" for name in names if name.endswith("_ptr")} | {"dt_ptr": "*fp32", "rows": "i32"}
    signature |= {"guidance_scale": "fp32", "renorm_min": "fp32"}
    signature |= {name: "i32" for name in names if name.endswith("_stride")}
    options = {"num_warps": _LAUNCH.num_warps, "enable_fp_fusion": False}
    return [
        CompileCase(
            _guidance_step_kernel,
            signature,
            {"ROWS": _LAUNCH.rows, "GUIDED": guided, "RENORMALISE": renormalise, "FOLD": fold},
            options,
        )
        for guided, renormalise, fold in (
            (True, True, "halves"),
            (True, False, "halves"),
            (False, False, "halves"),
            (True, True, "neighbours"),
        )
    ]


_SCHEMA = (
    "(Tensor velocity, Tensor? velocity_uncond, Tensor latents, Tensor dt, float guidance_scale, bool renormalise, "
    "float renorm_min) -> Tensor"
)


@torch.library.custom_op("fuseproof::guidance_step", mutates_args=(), schema=_SCHEMA)
def operator(
    velocity: torch.Tensor,
    velocity_uncond: torch.Tensor | None,
    latents: torch.Tensor,
    dt: torch.Tensor,
    guidance_scale: float,
    renormalise: bool,
    renorm_min: float,
) -> torch.Tensor:
    """The functional form, for ``torch.compile``. Raises ValueError with the reason that declines the arguments."""
    arguments = (velocity, velocity_uncond, latents, dt, guidance_scale, renormalise, renorm_min)
    if reason := reject_reason(*arguments):
        raise ValueError(reason)
    return fused(*arguments)


@operator.register_fake
def _(
    velocity: torch.Tensor, velocity_uncond: torch.Tensor | None, latents: torch.Tensor, *_arguments: object
) -> torch.Tensor:
    return latents.new_empty(latents.shape)
