"""aten's LayerNorm inside a kernel: one program, one row, four warps; what ``vectorized_layer_norm_kernel`` does.

128 threads take four neighbouring columns each, every 512 columns again, and push them one by one into a Welford state
(mean, m2, count); a thread without columns in the last round keeps its state. The states are combined lane i with lane
i + 16, 8, 4, 2, 1 of a warp, then warps (0, 2), (1, 3), (0, 1), the lower one first. Contraction is part of the order:
every ``fma`` here is one that nvcc makes of aten's source, and a launch must forbid others
(``enable_fp_fusion=False``).

On a card ``tl.reduce`` folds in this very order, because each of the 128 threads of four warps holds one state. The
interpreter folds from left to right, so there every fold is spelled out (``SHUFFLES`` false), which also gives aten's
bits on a card, but goes through shared memory. Narrowing by the compiler changes nothing: sums and products of two
bf16 values have the same bits rounded once as rounded to fp32 and then to bf16.

Source: aten/src/ATen/native/cuda/layer_norm_kernel.cu (compute_stats, cuWelfordOnlineSum, cuWelfordCombine), torch
2.11; measured in docs/evidence/2026-11-29-layernorm-modulate-h200.
"""

from __future__ import annotations

import triton
import triton.language as tl

NUM_WARPS = 4
"""With fewer than 128 threads a row, ``tl.reduce`` folds in another order than aten."""
LARGEST_WIDTH = 16384
"""A row stays in registers between statistics and output: 160 of 255 a thread at this width, 40 at 3072 (sm_90)."""
SMALLEST_EPS = 2.0**-126
"""Below it, rsqrt could meet a subnormal number, which Triton flushes to zero and aten does not."""


@triton.jit
def _combine(mean_b, m2_b, count_b, mean_a, m2_a, count_a):  # type: ignore[no-untyped-def]
    """cuWelfordCombine(b, a); b is the lower lane."""
    count = count_a + count_b
    has_values = count > 0
    inverse = tl.where(has_values, tl.math.div_rn(1.0, tl.where(has_values, count, 1.0)), 0.0)
    delta = mean_b - mean_a
    share_b = inverse * count_b
    share_a = count_a * inverse
    mean = tl.fma(mean_a, share_a, share_b * mean_b)
    m2 = tl.fma(share_b, count_a * (delta * delta), m2_a + m2_b)
    return mean, m2, count


@triton.jit
def _combine_equals(mean_b, m2_b, count_b, mean_a, m2_a, count_a):  # type: ignore[no-untyped-def]
    """As _combine for equal counts c: both shares, c * (1 / 2c) in fp32, are 0.5 for c = 4, 8, ... 128, and doubled."""
    delta = mean_b - mean_a
    mean = tl.fma(mean_a, 0.5, 0.5 * mean_b)
    m2 = tl.fma(0.5, count_b * (delta * delta), m2_a + m2_b)
    return mean, m2, count_b + count_b


@triton.jit
def _halves(state, GROUPS: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    """[GROUPS * 2 * HALF] -> the lower and the upper half of every group, [GROUPS * HALF] each."""
    low, high = tl.split(tl.permute(tl.reshape(state, (GROUPS, 2, HALF)), (0, 2, 1)))
    return tl.reshape(low, (GROUPS * HALF,)), tl.reshape(high, (GROUPS * HALF,))


@triton.jit
def _fold(mean, m2, count, GROUPS: tl.constexpr, HALF: tl.constexpr, EQUALS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Lane i of every group takes in lane i + HALF."""
    mean_b, mean_a = _halves(mean, GROUPS, HALF)
    m2_b, m2_a = _halves(m2, GROUPS, HALF)
    count_b, count_a = _halves(count, GROUPS, HALF)
    if EQUALS:
        mean, m2, count = _combine_equals(mean_b, m2_b, count_b, mean_a, m2_a, count_a)
    else:
        mean, m2, count = _combine(mean_b, m2_b, count_b, mean_a, m2_a, count_a)
    return mean, m2, count


@triton.jit
def _push(value, mean, m2, count, is_active, COUNT: tl.constexpr, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """cuWelfordOnlineSum of the COUNT-th value of every thread."""
    delta = value - mean
    new_mean = tl.fma(delta, tl.full(mean.shape, 1.0 / COUNT, tl.float32), mean)
    new_m2 = tl.fma(delta, value - new_mean, m2)
    new_count = tl.full(count.shape, COUNT, tl.float32)
    if MASKED:
        new_mean = tl.where(is_active, new_mean, mean)
        new_m2 = tl.where(is_active, new_m2, m2)
        new_count = tl.where(is_active, new_count, count)
    return new_mean, new_m2, new_count


@triton.jit
def empty_state():  # type: ignore[no-untyped-def]
    """(mean, m2, count) of 128 threads that have seen nothing."""
    return tl.zeros((128,), tl.float32), tl.zeros((128,), tl.float32), tl.zeros((128,), tl.float32)


@triton.jit
def push_round(x, mean, m2, count, ROUND: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def]
    """Columns [512 ROUND, 512 ROUND + 512) of the row, x [512] fp32: four values a thread."""
    even, odd = tl.split(tl.reshape(x, (128, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    is_active = (ROUND * 128 + tl.arange(0, 128)) * 4 < D
    MASKED: tl.constexpr = ROUND * 512 + 512 > D
    mean, m2, count = _push(first, mean, m2, count, is_active, ROUND * 4.0 + 1.0, MASKED)
    mean, m2, count = _push(second, mean, m2, count, is_active, ROUND * 4.0 + 2.0, MASKED)
    mean, m2, count = _push(third, mean, m2, count, is_active, ROUND * 4.0 + 3.0, MASKED)
    mean, m2, count = _push(fourth, mean, m2, count, is_active, ROUND * 4.0 + 4.0, MASKED)
    return mean, m2, count


@triton.jit
def mean_and_rstd(mean, m2, count, eps, D: tl.constexpr, SHUFFLES: tl.constexpr):  # type: ignore[no-untyped-def]
    """The row's mean and 1 / sqrt(variance + eps), fp32 (scalars, or [1] where folds are spelled out)."""
    EQUALS: tl.constexpr = D % 512 == 0
    if SHUFFLES:
        if EQUALS:
            mean, m2, count = tl.reduce((mean, m2, count), 0, _combine_equals)
        else:
            mean, m2, count = tl.reduce((mean, m2, count), 0, _combine)
    else:
        mean, m2, count = _fold(mean, m2, count, 4, 16, EQUALS)
        mean, m2, count = _fold(mean, m2, count, 4, 8, EQUALS)
        mean, m2, count = _fold(mean, m2, count, 4, 4, EQUALS)
        mean, m2, count = _fold(mean, m2, count, 4, 2, EQUALS)
        mean, m2, count = _fold(mean, m2, count, 4, 1, EQUALS)
        mean, m2, count = _fold(mean, m2, count, 1, 2, EQUALS)
        mean, m2, count = _fold(mean, m2, count, 1, 1, EQUALS)
    return mean, tl.rsqrt(tl.math.div_rn(m2, D * 1.0) + eps)


@triton.jit
def modulate(x, mean, rstd, scale, shift):  # type: ignore[no-untyped-def]
    """R(R(R(LN(x)) * R(1 + scale)) + shift) of fp32 values, as bf16."""
    normalized = (rstd * (x - mean)).to(tl.bfloat16).to(tl.float32)
    one_plus_scale = (1.0 + scale).to(tl.bfloat16).to(tl.float32)
    product = (normalized * one_plus_scale).to(tl.bfloat16).to(tl.float32)
    return (product + shift).to(tl.bfloat16)
