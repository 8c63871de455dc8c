"""Plain models of torch's reduction on CUDA, step by step, for the norms that round twice; CPU eager sums otherwise."""

import numpy as np
import torch

EPS = 1e-6
LANES, VECTOR = 32, 4


def mean_of_squares(x, ascending=False, strided=False):
    """fp32 [R] of bf16 rows [R, D]: 32 lanes of four accumulators, folded left to right, then 16, 8, 4, 2, 1 apart.

    ``ascending`` folds lanes 1, 2, 4, 8, 16 apart, ``strided`` gives a lane every 32nd column: other orders.
    """
    values = x.float().numpy()
    squares = (values * values).reshape(len(values), -1, *((VECTOR, LANES) if strided else (LANES, VECTOR)))
    squares = squares.swapaxes(2, 3) if strided else squares
    sums = np.zeros_like(squares[:, 0])
    for part in range(squares.shape[1]):
        sums = sums + squares[:, part]
    lanes = ((sums[..., 0] + sums[..., 1]) + sums[..., 2]) + sums[..., 3]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, 0::2] + lanes[:, 1::2] if ascending else lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0] * (np.float32(len(values)) / np.float32(values.size))


def modulated(x, weight, scale, shift, **order):
    """The norm of [B, S, D] in CUDA's order, then the pointwise chain, whose roundings CPU and CUDA share."""
    rows = x.reshape(-1, x.shape[-1])
    with np.errstate(all="ignore"):
        rstd = np.float32(1) / np.sqrt(mean_of_squares(rows, **order) + np.float32(EPS))
    normed = (x.float() * torch.from_numpy(rstd).view(*x.shape[:2], 1)).bfloat16() * weight
    return (normed.float() * (1 + scale[:, None].float()) + shift[:, None].float()).bfloat16()


def single_pass(x, weight, scale, shift):
    """The fusion that rounds once: it agrees with nobody's eager chain."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()
    return (normed * (1 + scale[:, None].float()) + shift[:, None].float()).bfloat16()
