"""LayerNorm + modulate in one Triton kernel, as measured here; not mounted anywhere yet.

Formula: ``R(R(R(LN(x)) * R(1 + scale)) + shift)``, R one rounding to bf16; x [B, S, D] bf16, scale and shift [B, D] rows
of any batch stride. Replaces ``F.layer_norm(x, (D,), eps=1e-6) * (1 + scale[:, None]) + shift[:, None]``. Keeps aten's
reduction: 128 threads a row, four elements at a time, Welford pushes with fma, lanes folded 16, 8, 4, 2, 1, then warps
(0, 2), (1, 3), (0, 1). ``tl.reduce`` folds in that very order when each of 128 threads holds one column of the state:
one row and 4 warps, or two rows and 8. With fewer threads a row it does not, and bits differ.
"""

import triton
import triton.language as tl

THREADS = 128
VECTOR = 4


@triton.jit
def _combine(mean_a, m2_a, count_a, mean_b, m2_b, count_b):
    """b is the lower lane (self), a the higher one (other)."""
    count = count_a + count_b
    safe = tl.where(count > 0, count, 1.0)
    inverse = tl.where(count > 0, tl.math.div_rn(tl.full(count.shape, 1.0, tl.float32), safe), 0.0)
    delta = mean_b - mean_a
    share_b = inverse * count_b
    share_a = count_a * inverse
    mean = tl.fma(mean_a, share_a, share_b * mean_b)
    m2 = tl.fma(share_b, count_a * (delta * delta), m2_a + m2_b)
    return mean, m2, count


@triton.jit
def _combine_self_first(mean_b, m2_b, count_b, mean_a, m2_a, count_a):
    count = count_a + count_b
    safe = tl.where(count > 0, count, 1.0)
    inverse = tl.where(count > 0, tl.math.div_rn(1.0, safe), 0.0)
    delta = mean_b - mean_a
    share_b = inverse * count_b
    share_a = count_a * inverse
    mean = tl.fma(mean_a, share_a, share_b * mean_b)
    m2 = tl.fma(share_b, count_a * (delta * delta), m2_a + m2_b)
    return mean, m2, count


@triton.jit
def _push(v, mean, m2, count, active, INVERSE: tl.constexpr, COUNT: tl.constexpr, MASKED: tl.constexpr):
    delta = v - mean
    new_mean = tl.fma(delta, tl.full(mean.shape, INVERSE, tl.float32), mean)
    new_m2 = tl.fma(delta, v - new_mean, m2)
    new_count = tl.full(count.shape, COUNT, tl.float32)
    if MASKED:
        new_mean = tl.where(active, new_mean, mean)
        new_m2 = tl.where(active, new_m2, m2)
        new_count = tl.where(active, new_count, count)
    return new_mean, new_m2, new_count


@triton.jit
def _fold(mean, m2, count, ROWS: tl.constexpr, GROUPS: tl.constexpr, HALF: tl.constexpr):
    """[ROWS, GROUPS, 2*HALF] -> [ROWS, GROUPS, HALF]: lane i takes in lane i + HALF."""
    mean_b, mean_a = tl.split(tl.permute(tl.reshape(mean, (ROWS, GROUPS, 2, HALF)), (0, 1, 3, 2)))
    m2_b, m2_a = tl.split(tl.permute(tl.reshape(m2, (ROWS, GROUPS, 2, HALF)), (0, 1, 3, 2)))
    count_b, count_a = tl.split(tl.permute(tl.reshape(count, (ROWS, GROUPS, 2, HALF)), (0, 1, 3, 2)))
    return _combine(mean_a, m2_a, count_a, mean_b, m2_b, count_b)


@triton.jit
def _ln_mod_kernel(
    x_ptr,
    scale_ptr,
    shift_ptr,
    out_ptr,
    rows,
    rows_per_batch,
    eps,
    x_row_stride,
    scale_batch_stride,
    shift_batch_stride,
    D: tl.constexpr,
    ROUNDS: tl.constexpr,
    ROWS: tl.constexpr,
    REDUCE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    in_rows = row < rows
    thread = tl.arange(0, 128)
    mean = tl.zeros((ROWS, 128), tl.float32)
    m2 = tl.zeros((ROWS, 128), tl.float32)
    count = tl.zeros((ROWS, 128), tl.float32)
    base = x_ptr + row[:, None] * x_row_stride
    for r in tl.static_range(ROUNDS):
        column = r * 512 + tl.arange(0, 512)
        x = tl.load(base + column[None, :], mask=(column < D)[None, :] & in_rows[:, None], other=0.0).to(tl.float32)
        even, odd = tl.split(tl.reshape(x, (ROWS, 128, 2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        active = ((r * 128 + thread) * 4 < D)[None, :]
        mean, m2, count = _push(first, mean, m2, count, active, 1.0 / (r * 4 + 1), r * 4 + 1.0, r * 512 + 512 > D)
        mean, m2, count = _push(second, mean, m2, count, active, 1.0 / (r * 4 + 2), r * 4 + 2.0, r * 512 + 512 > D)
        mean, m2, count = _push(third, mean, m2, count, active, 1.0 / (r * 4 + 3), r * 4 + 3.0, r * 512 + 512 > D)
        mean, m2, count = _push(fourth, mean, m2, count, active, 1.0 / (r * 4 + 4), r * 4 + 4.0, r * 512 + 512 > D)
    if REDUCE:
        mean, m2, count = tl.reduce((mean, m2, count), 1, _combine_self_first)
    else:
        mean, m2, count = (
            tl.reshape(mean, (ROWS, 4, 32)),
            tl.reshape(m2, (ROWS, 4, 32)),
            tl.reshape(count, (ROWS, 4, 32)),
        )
        mean, m2, count = _fold(mean, m2, count, ROWS, 4, 16)
        mean, m2, count = _fold(mean, m2, count, ROWS, 4, 8)
        mean, m2, count = _fold(mean, m2, count, ROWS, 4, 4)
        mean, m2, count = _fold(mean, m2, count, ROWS, 4, 2)
        mean, m2, count = _fold(mean, m2, count, ROWS, 4, 1)
        mean, m2, count = tl.reshape(mean, (ROWS, 1, 4)), tl.reshape(m2, (ROWS, 1, 4)), tl.reshape(count, (ROWS, 1, 4))
        mean, m2, count = _fold(mean, m2, count, ROWS, 1, 2)
        mean, m2, count = _fold(mean, m2, count, ROWS, 1, 1)
    mean = tl.reshape(mean, (ROWS,))
    variance = tl.math.div_rn(tl.reshape(m2, (ROWS,)), tl.full((ROWS,), D * 1.0, tl.float32))
    rstd = tl.rsqrt(variance + eps)
    batch = row // rows_per_batch
    BLOCK: tl.constexpr = 512
    for r in tl.static_range(ROUNDS):
        column = r * BLOCK + tl.arange(0, BLOCK)
        inside = (column < D)[None, :] & in_rows[:, None]
        v = tl.load(base + column[None, :], mask=inside, other=0.0).to(tl.float32)
        y = (rstd[:, None] * (v - mean[:, None])).to(tl.bfloat16).to(tl.float32)
        s = tl.load(scale_ptr + batch[:, None] * scale_batch_stride + column[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
        t = tl.load(shift_ptr + batch[:, None] * shift_batch_stride + column[None, :], mask=inside, other=0.0).to(
            tl.float32
        )
        one = (1.0 + s).to(tl.bfloat16).to(tl.float32)
        p = (y * one).to(tl.bfloat16).to(tl.float32)
        tl.store(out_ptr + row[:, None] * D + column[None, :], (p + t).to(tl.bfloat16), mask=inside)
