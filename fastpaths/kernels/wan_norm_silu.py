"""What follows the reduction in the Wan VAE's RMS norm: divide, scale, weight, bias and SiLU in one pass.

Formula: ``n = Rx(x / d)``, ``a = Rx(n * fp32(scale))``, ``b = Rp(a * gamma_c)``, ``c = Rq(b + bias_c)``, and with
``silu`` ``y = Rq(c / (1 + exp(-c)))``, in fp32 between the roundings; ``d`` is ``max(norm, 1e-12)``, which torch has
computed. ``Rx`` rounds to x's dtype, ``Rp`` to what x and gamma promote to, ``Rq`` to what that and bias promote to:
beside fp32 weights a bf16 input is rounded twice, beside bf16 weights five times, and an fp32 input never.

Shapes: x [N, C, *] bf16 or fp32, contiguous or with the channels last in memory; denominator [N, 1, *] fp32,
contiguous; gamma (and bias) [C, 1, ...] bf16 or fp32, either of them unlike x; without a bias 0.0 is added, which makes
a -0 a 0. The result has x's layout, in the dtype that x, gamma and bias promote to, or in
bf16 (``to_bf16``).

Rounds: as above; with ``to_bf16`` once more, as autocast does in front of a convolution.

Replaces: ``F.normalize(x.float()).to(x.dtype) * scale * gamma + bias`` behind its norm, and ``nn.SiLU``, of
``WanRMS_norm`` in ``AutoencoderKLWan`` (diffusers 0.42.1): five passes, seven with bf16 activations.

Exact: yes, pointwise. exp and the divisions are those of CUDA's math library, products and sums are not contracted, and
subnormal numbers are kept.

Declines: other dtypes, x in another layout, shapes that do not fit, 2^31 elements a sample or more; CPU tensors.

Bytes: x in and the result out: 4 per bf16 element, 8 per fp32 element, where eager moves 40 with fp32 activations; at
256 x 4 x 240 x 416 fp32 0.82 GB, or 0.19 ms at 4.2 TB/s.

Check first: if the trace shows five pointwise kernels behind a ``vector_norm``, check whether ``wan_vae_norms`` was
rejected or declined; whole blocks run ``_causal_conv_input_kernel`` instead.

Source: diffusers autoencoder_kl_wan.py; aten/src/ATen/native/cuda/ActivationSiluKernel.cu, BinaryDivTrueKernel.cu.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra import libdevice

from fuseproof.fastpaths.kernels import channel_norms
from fuseproof.fastpaths.kernels.arguments import first_of
from fuseproof.fastpaths.kernels.bfloat16 import rounded, widened
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, is_interpreted, on_device_of
from fuseproof.fastpaths.kernels.quotients import AT_ONCE, divided, divided_by_row, reciprocal, rounded_in_pairs

BLOCK = 2048
"""Elements of one program: four 16-byte loads of fp32 a thread with 4 warps."""
WARPS = 4
WIDEST_LAST, WIDEST_PLANES = 128, 8
"""Channels of a tile: as many as lie together in memory, or as few as make one denominator serve several planes."""
LARGEST_SAMPLE = 2**31
FLOATS = (torch.bfloat16, torch.float32)


def reference(
    x: torch.Tensor,
    denominator: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    silu: bool = True,
    to_bf16: bool = False,
) -> torch.Tensor:
    """diffusers' eager chain behind the reduction."""
    normalized = (x.float() / denominator.expand_as(x)).to(x.dtype)
    result = normalized * scale * gamma + (0.0 if bias is None else bias)
    result = F.silu(result) if silu else result
    return result.bfloat16() if to_bf16 else result


@triton.jit
def as_fp32(raw, IS_BF16: tl.constexpr):  # type: ignore[no-untyped-def]
    """A loaded bf16 or fp32 block -> fp32, exact."""
    if IS_BF16:
        raw = widened(raw)
    return raw


@triton.jit
def rounded_if(x, IS_BF16: tl.constexpr, FOURS: tl.constexpr = False):  # type: ignore[no-untyped-def]
    """R where ``IS_BF16``."""
    if IS_BF16:
        x = rounded_in_pairs(x) if FOURS else rounded(x)
    return x


@triton.jit
def stored_as(x, IS_BF16: tl.constexpr):  # type: ignore[no-untyped-def]
    """fp32 -> what a store of the output's dtype takes."""
    if IS_BF16:
        x = x.to(tl.bfloat16)
    return x


@triton.jit
def after_reduction(  # type: ignore[no-untyped-def]
    x, denominator, by, gamma, bias, scale,
    X_BF16: tl.constexpr, P_BF16: tl.constexpr, Q_BF16: tl.constexpr, SILU: tl.constexpr, INTERPRETED: tl.constexpr,
    FOURS: tl.constexpr,
):  # fmt: skip
    """fp32 blocks that broadcast -> fp32, with every rounding of eager; ``by`` as ``quotients.py`` says with FOURS."""
    y = divided_by_row(x, denominator, by) if FOURS else tl.math.div_rn(x, denominator)
    y = rounded_if(y, X_BF16, FOURS)
    y = rounded_if(y * scale, X_BF16, FOURS)
    y = rounded_if(y * gamma, P_BF16, FOURS)
    y = rounded_if(y + bias, Q_BF16, FOURS)
    if SILU:
        exponential = tl.exp(0.0 - y) if INTERPRETED else libdevice.exp(0.0 - y)
        y = divided(y, 1.0 + exponential) if FOURS else tl.math.div_rn(y, 1.0 + exponential)
        y = rounded_if(y, Q_BF16, FOURS)
    return y


@triton.jit
def _wan_norm_silu_kernel(  # type: ignore[no-untyped-def]
    x_ptr, denominator_ptr, gamma_ptr, bias_ptr, out_ptr, positions, scale,
    CHANNELS: tl.constexpr, POSITIONS: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, HAS_BIAS: tl.constexpr, SILU: tl.constexpr,
    X_BF16: tl.constexpr, GAMMA_BF16: tl.constexpr, BIAS_BF16: tl.constexpr, OUT_BF16: tl.constexpr,
    INTERPRETED: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    """A run of one sample's positions, and some channels of each."""
    sample = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0) * POSITIONS + tl.arange(0, POSITIONS)
    channel = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    is_position = position < positions
    is_channel = channel < CHANNELS
    is_inside = is_position[:, None] & is_channel[None, :]
    if CHANNELS_LAST:
        element = position[:, None] * CHANNELS + channel[None, :]
    else:
        element = position[:, None] + channel[None, :] * positions
    start = sample * CHANNELS * positions
    x = as_fp32(tl.load(x_ptr + start + element, mask=is_inside, other=1.0), X_BF16)
    denominator = tl.load(denominator_ptr + sample * positions + position, mask=is_position, other=1.0)
    by = reciprocal(denominator) if FOURS else denominator
    gamma = as_fp32(tl.load(gamma_ptr + channel, mask=is_channel, other=0.0), GAMMA_BF16)[None, :]
    bias = tl.zeros((1, WIDTH), tl.float32)
    if HAS_BIAS:
        bias = as_fp32(tl.load(bias_ptr + channel, mask=is_channel, other=0.0), BIAS_BF16)[None, :]
    P_BF16: tl.constexpr = X_BF16 and GAMMA_BF16
    Q_BF16: tl.constexpr = P_BF16 and (BIAS_BF16 or not HAS_BIAS)
    y = after_reduction(
        x, denominator[:, None], by[:, None], gamma, bias, scale, X_BF16, P_BF16, Q_BF16, SILU, INTERPRETED, FOURS
    )
    tl.store(out_ptr + start + element, stored_as(y, OUT_BF16), mask=is_inside)


def reject_reason(
    x: torch.Tensor,
    denominator: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    silu: bool = True,
    to_bf16: bool = False,
) -> str | None:
    """Why the kernel cannot take these arguments, or None."""
    if x.ndim < 3 or x.numel() == 0:
        return f"x has shape {list(x.shape)}; the kernel needs [N, C, *] with at least one element"
    return first_of(
        device_reason("x", x),
        dtype_reason("x", x.dtype),
        None
        if x.is_contiguous() or is_channels_last(x)
        else f"x has strides {list(x.stride())}; the kernel needs them contiguous or channels-last",
        denominator_reason(x, denominator),
        vector_reason("gamma", gamma, x),
        None if bias is None else vector_reason("bias", bias, x),
        f"a sample has {x[0].numel()} elements; the kernel needs fewer than {LARGEST_SAMPLE}"
        if x[0].numel() >= LARGEST_SAMPLE
        else None,
    )


def fused(
    x: torch.Tensor,
    denominator: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    silu: bool = True,
    to_bf16: bool = False,
) -> torch.Tensor:
    """The normalised, weighted and activated ``x``."""
    samples, channels = x.shape[:2]
    positions = x.numel() // (samples * channels)
    out = torch.empty_like(x, dtype=result_dtype(x, gamma, bias, to_bf16))
    is_last = not x.is_contiguous()
    block, width = tile_of(channels, is_last)
    with on_device_of(x):
        _wan_norm_silu_kernel[(triton.cdiv(positions, block), triton.cdiv(channels, width), samples)](
            x, denominator, gamma, gamma if bias is None else bias, out, positions, scale,
            CHANNELS=channels, POSITIONS=block, WIDTH=width,
            CHANNELS_LAST=is_last, HAS_BIAS=bias is not None, SILU=silu,
            X_BF16=x.dtype == torch.bfloat16, GAMMA_BF16=gamma.dtype == torch.bfloat16,
            BIAS_BF16=bias is not None and bias.dtype == torch.bfloat16, OUT_BF16=out.dtype == torch.bfloat16,
            INTERPRETED=is_interpreted(), FOURS=in_fours(block * width, WARPS) and not _widens(x, out), num_warps=WARPS,
            enable_fp_fusion=False,
        )  # fmt: skip
    return out


def settle(arguments: Sequence[Any]) -> None:
    """Make the denominators of a made-up call what ``x`` has: negative ones take a way that no model takes."""
    x, denominator = arguments[:2]
    denominator.copy_(x.float().norm(2, 1, keepdim=True).clamp_min(channel_norms.EPS))


def traffic_bytes(
    x: torch.Tensor,
    denominator: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    silu: bool = True,
    to_bf16: bool = False,
) -> int:
    """Fewest bytes: every input once, the result once."""
    written = x.numel() * result_dtype(x, gamma, bias, to_bf16).itemsize
    return x.nbytes + denominator.nbytes + gamma.nbytes + (0 if bias is None else bias.nbytes) + written


def _widens(x: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether bf16 becomes fp32, which waits for memory: measured, quotients in fours bring nothing there."""
    return out.element_size() > x.element_size()


def in_fours(elements: int, warps: int) -> bool:
    """Whether every thread of a compiled program owns a multiple of four of a tile's elements."""
    return not is_interpreted() and elements % (AT_ONCE * 32 * warps) == 0


def tile_of(channels: int, is_last: bool) -> tuple[int, int]:
    """Positions and channels of a tile."""
    width = min(WIDEST_LAST if is_last else WIDEST_PLANES, triton.next_power_of_2(channels))
    return BLOCK // width, width


def compile_cases() -> list[CompileCase]:
    """Both layouts, of all dtypes that the VAE has: fp32, bf16, and bf16 beside fp32 weights."""
    cases = []
    for x, gamma, out, last in (
        ("fp32", "fp32", "fp32", False),
        ("bf16", "bf16", "bf16", True),
        ("bf16", "fp32", "fp32", False),
        ("bf16", "fp32", "bf16", True),
    ):
        pointers = {"x_ptr": f"*{x}", "denominator_ptr": "*fp32", "gamma_ptr": f"*{gamma}", "bias_ptr": f"*{gamma}"}
        signature = {**pointers, "out_ptr": f"*{out}", "positions": "i32", "scale": "fp32"}
        flags = {"X_BF16": x == "bf16", "GAMMA_BF16": gamma == "bf16", "OUT_BF16": out == "bf16"}
        flags |= {"BIAS_BF16": gamma == "bf16", "HAS_BIAS": last, "SILU": True, "INTERPRETED": False}
        flags["FOURS"] = x != gamma or last
        block, width = tile_of(256, last)
        constants = {"CHANNELS": 256, "POSITIONS": block, "WIDTH": width, "CHANNELS_LAST": last, **flags}
        cases.append(
            CompileCase(_wan_norm_silu_kernel, signature, constants, {"num_warps": WARPS, "enable_fp_fusion": False})
        )
    return cases


def result_dtype(x: torch.Tensor, gamma: torch.Tensor, bias: torch.Tensor | None, to_bf16: bool) -> torch.dtype:
    """bf16 if asked for, else what eager's chain promotes to."""
    if to_bf16:
        return torch.bfloat16
    dtype = torch.promote_types(x.dtype, gamma.dtype)
    return dtype if bias is None else torch.promote_types(dtype, bias.dtype)


def is_channels_last(x: torch.Tensor) -> bool:
    """Whether the memory of ``x`` [N, C, *] is dense with the channels last."""
    return x.movedim(1, -1).is_contiguous()


def dtype_reason(name: str, dtype: torch.dtype) -> str | None:
    """Why a tensor of this dtype cannot be taken, or None."""
    return None if dtype in FLOATS else f"{name} is {dtype}; the kernel needs torch.bfloat16 or torch.float32"


def vector_reason(name: str, tensor: torch.Tensor, x: torch.Tensor) -> str | None:
    """Why ``tensor`` is not one number for each channel of ``x``, or None."""
    if tensor.dtype not in FLOATS:
        return dtype_reason(name, tensor.dtype)
    if tensor.numel() != x.shape[1] or not tensor.is_contiguous():
        return f"{name} has shape {list(tensor.shape)}; the kernel needs {x.shape[1]} contiguous elements"
    return None if tensor.device == x.device else f"{name} is on {tensor.device}; x is on {x.device}"


def denominator_reason(x: torch.Tensor, denominator: torch.Tensor) -> str | None:
    """Why ``denominator`` is not that of ``x``, or None."""
    wanted = [x.shape[0], 1, *x.shape[2:]]
    if denominator.dtype != torch.float32 or list(denominator.shape) != wanted or not denominator.is_contiguous():
        seen = f"{list(denominator.shape)} {denominator.dtype} of strides {list(denominator.stride())}"
        return f"denominator is {seen}; the kernel needs {wanted} torch.float32, contiguous"
    return None if denominator.device == x.device else f"denominator is on {denominator.device}; x is on {x.device}"


@torch.library.custom_op("fuseproof::wan_norm_silu", mutates_args=())
def wan_norm_silu(
    x: torch.Tensor,
    denominator: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    silu: bool = True,
    to_bf16: bool = False,
) -> torch.Tensor:
    """:func:`fused` as an operator that ``torch.compile`` can carry."""
    return fused(x, denominator, gamma, bias, scale, silu, to_bf16)


@wan_norm_silu.register_fake
def _fake(
    x: torch.Tensor,
    denominator: torch.Tensor,
    gamma: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    silu: bool = True,
    to_bf16: bool = False,
) -> torch.Tensor:
    return torch.empty_like(x, dtype=result_dtype(x, gamma, bias, to_bf16))
