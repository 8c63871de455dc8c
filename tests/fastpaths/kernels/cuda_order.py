"""Plain-torch models of what CUDA computes in a bf16 KL VAE, addition by addition; CPU eager rounds differently."""

import numpy as np
import torch
import torch.nn.functional as F

WARP, THREADS = 32, 512


def fma(a, b, c):
    """One rounding: the product of two fp32 numbers is exact in fp64."""
    return (a.double() * b.double() + c.double()).float()


def group_norm(x, groups, weight, bias, eps, rounded_statistics=True):
    """aten's ``group_norm`` kernels for bf16 [N, C, *] with more than one position per channel."""
    x = x.contiguous()  # aten asks for that on CUDA
    samples, channels = x.shape[:2]
    mean, rstd = moments(x.reshape(samples * groups, -1).float(), eps)
    if rounded_statistics:
        mean, rstd = mean.bfloat16().float(), rstd.bfloat16().float()
    members = channels // groups
    mean = mean.repeat_interleave(members).view(samples, channels)
    scale = rstd.repeat_interleave(members).view(samples, channels) * weight.float()
    offset = fma(-scale, mean, bias.float().expand_as(scale))
    ones = (1,) * (x.ndim - 2)
    return fma(scale.view(samples, channels, *ones), x.float(), offset.view(samples, channels, *ones)).bfloat16()


def moments(rows, eps):
    """Mean and rstd of each row, fp32, as a block of 512 threads (32 for shorter rows) finds them."""
    threads = THREADS if rows.shape[1] >= THREADS else WARP
    state = chains(rows, threads)
    while state[0].shape[1] > WARP:
        state = across_warps(state)
    state = fold(state)
    mean, m2, count = (part[:, 0] for part in state)
    variance = m2 / count + torch.tensor(eps).bfloat16().float()
    return mean, torch.from_numpy(np.float32(1) / np.sqrt(variance.numpy()))


def chains(rows, threads):
    """One Welford state a thread: [rows, threads] mean, M2, count."""
    mean, m2, count = (torch.zeros(rows.shape[0], threads) for _ in range(3))
    for start in range(0, rows.shape[1], threads):
        x = rows[:, start : start + threads]
        width = x.shape[1]
        delta = x - mean[:, :width]
        count[:, :width] += 1
        mean[:, :width] += delta / count[:, :width]
        m2[:, :width] = fma(delta, x - mean[:, :width], m2[:, :width])
    return mean, m2, count


def across_warps(state):
    """Each warp folds its lanes; the first lanes of all warps make up a last warp, its other lanes empty."""
    rows = state[0].shape[0]
    warps = state[0].shape[1] // WARP
    folded = fold(tuple(part.reshape(rows * warps, WARP) for part in state))
    return tuple(F.pad(part.view(rows, warps), (0, WARP - warps)) for part in folded)


def fold(state):
    """``WarpReduce``: lane i takes in lane i + 16, then 8, 4, 2, 1."""
    for offset in (16, 8, 4, 2, 1):
        lower, upper = ([part[:, at : at + offset] for part in state] for at in (0, offset))
        state = combine(lower, upper)
    return state


def combine(self, other):
    """``WelfordOps::combine``: an empty state leaves the other one untouched."""
    (mean, m2, count), (other_mean, other_m2, other_count) = self, other
    delta, total = other_mean - mean, count + other_count
    share = other_count / total
    both = (fma(delta, share, mean), fma(delta * delta * count, share, m2 + other_m2), total)
    parts = zip(self, other, both, strict=True)
    return tuple(torch.where(count == 0, o, torch.where(other_count == 0, s, b)) for s, o, b in parts)


def silu(x, inplace=False):
    """fp32 inside, one rounding; numpy's exp, as in triton's interpreter."""
    assert not inplace
    values = x.float().numpy()
    with np.errstate(over="ignore"):
        return torch.from_numpy(values / (np.float32(1) + np.exp(-values))).bfloat16()


def conv2d(x, weight, bias=None, *options):
    """torch's cuDNN convolution: one rounding before the bias and one after it, the same sums in either layout."""
    output = torch.conv2d(x.contiguous(), weight, None, *options)
    output = output if bias is None else output + bias[:, None, None]
    is_turned = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return output.contiguous(memory_format=torch.channels_last) if is_turned else output
