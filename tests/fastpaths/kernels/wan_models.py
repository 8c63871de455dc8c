"""Plain-torch models of what CUDA computes around the Wan VAE's norms, addition by addition."""

import numpy as np
import torch

from tests.fastpaths.kernels.cuda_order import fma


def silu(x, inplace=False):
    """fp32 inside, rounded to the dtype of ``x``; numpy's exp, as in triton's interpreter."""
    assert not inplace
    values = x.float().numpy()
    with np.errstate(over="ignore"):
        return torch.from_numpy(values / (np.float32(1) + np.exp(-values))).to(x.dtype)


def norm(x, lanes, blocks, vector=0):
    """``vector_norm`` of fp32 [N, C, *] over C as a grid of ``blocks`` sums it, ``lanes`` threads along y each.

    ``vector``: one warp sums channels that lie next to each other, four at a time.
    """
    if vector:
        rows = [[c for c in range(x.shape[1]) if c // 4 % lanes == lane] for lane in range(lanes)]
        return torch.from_numpy(np.sqrt(folded([thread_sum(x[:, row], 0, 1) for row in rows]).numpy()))[:, None]
    sums = [[thread_sum(x, block * lanes + lane, lanes * blocks) for lane in range(lanes)] for block in range(blocks)]
    totals = [folded(one) for one in sums]
    if blocks > 1:
        rows = [torch.zeros_like(totals[0]) for _ in range(lanes)]
        for block, total in enumerate(totals):
            rows[block % lanes] = rows[block % lanes] + total
        totals = [folded(rows)]
    return torch.from_numpy(np.sqrt(totals[0].numpy()))[:, None]


def thread_sum(x, first, step):
    accumulators = [torch.zeros_like(x[:, 0]) for _ in range(4)]
    for turn, channel in enumerate(range(first, x.shape[1], step)):
        accumulators[turn % 4] = fma(x[:, channel], x[:, channel], accumulators[turn % 4])
    total = accumulators[0]
    for other in accumulators[1:]:
        total = total + other
    return total


def mean(x, dim):
    """Of a dimension that is not the fastest one: one thread, four accumulators in turn, a product by the factor."""
    assert x.is_contiguous() and x.shape[dim] < 256
    sums = [torch.zeros(x.select(dim, 0).shape) for _ in range(4)]
    for turn in range(x.shape[dim]):
        sums[turn % 4] = sums[turn % 4] + x.select(dim, turn).float()
    outputs = sums[0].numel()
    factor = np.float32(outputs) / np.float32(outputs * x.shape[dim])
    return ((((sums[0] + sums[1]) + sums[2]) + sums[3]) * float(factor)).to(x.dtype)


def folded(lanes):
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    return lanes[0]


def in_layout(x, channels_last):
    """The same values with the channels last in memory, or contiguous."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last else x.contiguous()


def bits(tensor):
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])
