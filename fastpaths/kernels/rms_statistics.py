"""``x.float().pow(2).mean(-1)`` of bf16 rows in the order of torch's own reduction on CUDA, for kernels that own rows.

Order (``Reduce.cuh``, torch 2.13: fp32, one reduced dimension that is contiguous, 16 rows or more): one warp a row;
lane t loads vectors of four at 4 t, 4 t + 128, 4 t + 256, ... and adds each of their elements to an accumulator of its
own; a lane folds its four from left to right; lanes fold 16, 8, 4, 2, 1 apart; the sum is multiplied by
``fp32(rows) / fp32(rows * D)``. The square of a bf16 number is exact in fp32, so whether it is fused with the addition
does not matter. Fewer rows, or rows of 8192 and more, are summed by several warps in torch: :func:`statistics_reason`.

:data:`REDUCTION` chooses, for all kernels of this kind, who sums: "aten" (the order above, in the kernel's own pass) or
"torch" (``mean`` itself, three more passes, for a version of torch whose order is another one).
"""

from __future__ import annotations

import functools

import numpy as np
import torch
import triton
import triton.language as tl

REDUCTION = "aten"
LANES, VECTOR = 32, 4
ROUND = LANES * VECTOR
"""Columns that a warp takes in one round."""
ROWS, NUM_WARPS = 4, 4
"""A program takes a row a warp, which needs no shared memory, and reads it twice: once to sum, once to write."""
PROGRAMS_PER_PROCESSOR = 8
"""Programs loop over the rows, so that the rows between their two readings (32 kB a program) fit in the first cache."""
FEWEST_ROWS, WIDEST = 16, 8064
LARGEST_NUMBER_OF_ELEMENTS = 2**29
"""Beyond 2**31 bytes of fp32 torch splits the tensor, and the number of rows that the factor is made of with it."""


def mean_of_squares(x: torch.Tensor) -> torch.Tensor:
    """diffusers' expression: [..., D] -> [..., 1] fp32."""
    return x.to(torch.float32).pow(2).mean(-1, keepdim=True)


def factor_of(rows: int, width: int) -> float:
    """What torch multiplies a sum with: not always fp32(1 / width)."""
    return float(np.float32(rows) / np.float32(rows * width))


def unroll_of(width: int) -> int:
    """Rounds that a loop over the columns takes at a time: all their loads are on their way before the first store."""
    return next(rounds for rounds in (8, 4, 1) if width % (rounds * ROUND) == 0)


def grid_of(batch: int, rows: int, device: torch.device) -> tuple[int]:
    """Programs of a launch over ``batch`` samples of ``rows`` rows."""
    groups = batch * triton.cdiv(rows, ROWS)
    return (min(groups, PROGRAMS_PER_PROCESSOR * _processors(device)),) if device.type == "cuda" else (groups,)


@functools.cache
def _processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def statistics_reason(name: str, x: torch.Tensor) -> str | None:
    """Why the mean of squares of ``x`` [B, S, D] would be summed in another order; or None."""
    batch, rows, width = x.shape
    if width % ROUND or width > WIDEST:
        return f"{name} is {width} wide; the kernel needs a multiple of {ROUND} up to {WIDEST}"
    if batch * rows < FEWEST_ROWS:
        return f"{name} has {batch * rows} rows; the kernel needs at least {FEWEST_ROWS}, torch sums fewer differently"
    if x.numel() >= LARGEST_NUMBER_OF_ELEMENTS:
        return f"{name} has {x.numel()} elements; the kernel needs fewer than {LARGEST_NUMBER_OF_ELEMENTS}"
    return None


@triton.jit
def add(left, right):  # type: ignore[no-untyped-def]
    return left + right


@triton.jit
def halves(values, ROWS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, LANES] -> [ROWS, LANES / 2]: lane i takes in lane i + LANES / 2."""
    low, high = tl.split(tl.permute(tl.reshape(values, (ROWS, 2, LANES // 2)), (0, 2, 1)))
    return low + high


@triton.jit
def fold_halves(lanes, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, 32] -> [ROWS]: every fold spelt out, 16, 8, 4, 2, 1 apart, through shared memory."""
    lanes = halves(lanes, ROWS, 32)
    lanes = halves(lanes, ROWS, 16)
    lanes = halves(lanes, ROWS, 8)
    lanes = halves(lanes, ROWS, 4)
    return tl.reshape(halves(lanes, ROWS, 2), (ROWS,))


@triton.jit
def sum_of_lanes(accumulators, ROWS: tl.constexpr, SHUFFLES: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, 128] fp32, four accumulators a lane -> [ROWS]. ``SHUFFLES``: a lane is a thread of one warp (a card)."""
    even, odd = tl.split(tl.reshape(accumulators, (ROWS, 32, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    lanes = ((first + second) + third) + fourth
    if SHUFFLES:
        return tl.reduce(lanes, 1, add)
    return fold_halves(lanes, ROWS)
