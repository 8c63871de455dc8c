"""Plain models of what CUDA computes for a modulated bf16 LayerNorm, step by step; CPU eager sums in another order.

Two things in Triton's interpreter are not a card's: ``tl.fma`` rounds twice (:func:`exact_fma` takes its place here),
and ``rsqrt`` is a division by a root, in the model too.
"""

import numpy as np
import pytest
import torch
from triton.runtime import interpreter

EPS = 1e-6
THREADS, LANES, VECTOR = 128, 32, 4
LANE_OFFSETS, WARP_OFFSETS = (16, 8, 4, 2, 1), (2, 1)
NAN = float("nan")


def bits(tensor):
    return tensor.contiguous().view(torch.int16)


def normal(seed, *shape):
    """Normal numbers in rows of very different length and mean, bf16."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randn(*shape[:-1], 1, generator=generator).mul(2).exp()
    means = torch.randn(*shape[:-1], 1, generator=generator)
    return (torch.randn(*shape, generator=generator) * lengths + means).bfloat16()


def threads_apart(seed, count, width):
    """Rows in which aten's 128 threads see very different means, so that combining them makes up the variance; bf16."""
    generator = torch.Generator().manual_seed(seed)
    means = 100 * torch.randn(count, THREADS, 1, generator=generator).expand(-1, -1, VECTOR).flatten(1)
    columns = torch.arange(width) % (THREADS * VECTOR)
    return (torch.randn(count, width, generator=generator) + means[:, columns]).bfloat16()


def chunks(seed, batch, width, count):
    """``count`` modulation vectors [batch, width] as ``chunk`` leaves them: rows of one wider matrix."""
    return normal(seed, batch, count * width).chunk(count, dim=1)


def poisoned(*shape):
    return torch.full(shape, NAN, dtype=torch.bfloat16)


def special_values(*shape):
    """Subnormals, zeros of both signs, ties, huge and tiny numbers, in an order that mixes them."""
    codes = [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x8080, 0x3F80, 0xBF80, 0x3F81, 0x3FC0, 0x3B80, 0xBB80]
    codes += [0x7F7F, 0xFF7F, 0x7F00, 0x0100, 0x3F7F, 0x4049, 0xC049, 0x4380]
    count = torch.Size(shape).numel()
    # 5 is no divisor of the 21 codes, so that several tensors rolled differently meet in every combination
    values = torch.tensor(codes, dtype=torch.int32).to(torch.int16)[torch.arange(count).mul(5) % len(codes)]
    return values.view(torch.bfloat16).view(shape)


def exact_fma(a, b, c):
    """fp32 a * b + c with one rounding: the product is exact in fp64, the sum is rounded to odd there."""
    a, b, c = (np.asarray(value, dtype=np.float64) for value in (a, b, c))
    with np.errstate(invalid="ignore", over="ignore"):
        product = a * b
        total = product + c
        shifted = total - product
        error = (product - (total - shifted)) + (c - shifted)
        is_even = (np.ascontiguousarray(total).view(np.int64).reshape(total.shape) & 1) == 0
        odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        return np.where(np.isfinite(total) & (error != 0) & is_even, odd, total).astype(np.float32)


def fuse_interpreted_fma(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the interpreter's ``tl.fma`` round once, as a card's does."""

    def create_fma(self, x, y, z):
        return interpreter.TensorHandle(exact_fma(x.data, y.data, z.data), z.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fma", create_fma)


def layer_norm(x, eps=EPS):
    """aten's vectorized CUDA kernel without weights: [..., D] bf16 -> bf16."""
    rows = x.float().reshape(x.shape[:-1].numel(), x.shape[-1]).numpy()
    mean, rstd = statistics(rows, eps)
    with np.errstate(all="ignore"):
        return torch.from_numpy(rstd * (rows - mean)).bfloat16().reshape(x.shape)


def statistics(rows, eps):
    """Mean and 1 / sqrt(variance + eps) of every row, fp32: [R, D] -> [R, 1] each."""
    with np.errstate(all="ignore"):
        mean, m2, _ = folded(pushed(rows))
        variance = m2 / np.float32(rows.shape[1])
        return mean, np.float32(1) / np.sqrt(variance + np.float32(eps))


def pushed(rows):
    """A Welford state of each of 128 threads: mean, M2, count, [rows, 128] each."""
    mean, m2, count = (np.zeros((rows.shape[0], THREADS), np.float32) for _ in range(3))
    for start in range(0, rows.shape[1], THREADS * VECTOR):
        part = rows[:, start : start + THREADS * VECTOR]
        vectors = part.reshape(rows.shape[0], part.shape[1] // VECTOR, VECTOR)
        active = np.s_[:, : vectors.shape[1]]
        for element in range(VECTOR):
            value = vectors[:, :, element]
            count[active] += np.float32(1)
            delta = value - mean[active]
            mean[active] = exact_fma(delta, np.float32(1) / count[active], mean[active])
            m2[active] = exact_fma(delta, value - mean[active], m2[active])
    return mean, m2, count


def folded(state):
    """Lanes 16, 8, 4, 2, 1 apart within four warps, then warps 2 and 1 apart: [rows, 128] -> [rows, 1]."""
    state = tuple(part.reshape(-1, THREADS // LANES, LANES) for part in state)
    for offset in LANE_OFFSETS:
        state = combined(*(shifted(state, by) for by in (0, offset)))
    state = tuple(part[..., 0] for part in state)
    for offset in WARP_OFFSETS:
        state = combined(*(shifted(state, by) for by in (0, offset)))
    return tuple(part[:, :1] for part in state)


def shifted(state, by):
    """What every lane reads from the lane ``by`` above it; only lanes whose source exists matter."""
    return [np.roll(part, -by, axis=-1) for part in state]


def combined(self, other):
    """cuWelfordCombine(self, other)."""
    (mean_b, m2_b, count_b), (mean_a, m2_a, count_a) = self, other
    count = count_a + count_b
    inverse = np.where(count > 0, np.float32(1) / np.where(count > 0, count, np.float32(1)), np.float32(0))
    delta = mean_b - mean_a
    share_a, share_b = count_a * inverse, count_b * inverse
    mean = exact_fma(share_a, mean_a, share_b * mean_b)
    return mean, exact_fma(delta * delta * count_a, share_b, m2_a + m2_b), count


def modulated(x, scale, shift, text_scale=None, text_shift=None, text_rows=0, eps=EPS):
    """LayerNorm in CUDA's order, then the pointwise chain, whose roundings CPU and CUDA share."""
    normed = layer_norm(x, eps)
    if not text_rows:
        return normed * (1 + scale[:, None]) + shift[:, None]
    text = normed[:, :text_rows] * (1 + text_scale[:, None]) + text_shift[:, None]
    return torch.cat([text, normed[:, text_rows:] * (1 + scale[:, None]) + shift[:, None]], dim=1)
