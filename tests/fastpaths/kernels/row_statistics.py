"""Mean and rstd themselves, out of the kernels' own functions: one fp32 ulp rarely shows in a bf16 row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.launching import on_device_of
from fuseproof.fastpaths.kernels.welford import (
    NUM_WARPS,
    _combine,
    _combine_equals,
    empty_state,
    mean_and_rstd,
    push_round,
)


@triton.jit
def _row_statistics_kernel(x_ptr, mean_ptr, rstd_ptr, eps, D: tl.constexpr, SHUFFLES: tl.constexpr):  # noqa: N803
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * D
    mean, m2, count = empty_state()
    for r in tl.static_range((D + 511) // 512):
        column = r * 512 + tl.arange(0, 512)
        x = tl.load(x_ptr + column, mask=column < D, other=0.0).to(tl.float32)
        mean, m2, count = push_round(x, mean, m2, count, r, D)
    mean, rstd = mean_and_rstd(mean, m2, count, eps, D, SHUFFLES)
    lane = tl.arange(0, 1)
    tl.store(mean_ptr + row + lane, mean)
    tl.store(rstd_ptr + row + lane, rstd)


@triton.jit
def _combine_kernel(states_ptr, out_ptr, COUNT: tl.constexpr, EQUALS: tl.constexpr):  # noqa: N803
    """states [2, 3, COUNT], the lower lanes first, and out [3, COUNT]: mean, m2, count, fp32."""
    state = tl.arange(0, COUNT)
    mean_b = tl.load(states_ptr + state)
    m2_b = tl.load(states_ptr + COUNT + state)
    count_b = tl.load(states_ptr + 2 * COUNT + state)
    mean_a = tl.load(states_ptr + 3 * COUNT + state)
    m2_a = tl.load(states_ptr + 4 * COUNT + state)
    count_a = tl.load(states_ptr + 5 * COUNT + state)
    if EQUALS:
        mean, m2, count = _combine_equals(mean_b, m2_b, count_b, mean_a, m2_a, count_a)
    else:
        mean, m2, count = _combine(mean_b, m2_b, count_b, mean_a, m2_a, count_a)
    tl.store(out_ptr + state, mean)
    tl.store(out_ptr + COUNT + state, m2)
    tl.store(out_ptr + 2 * COUNT + state, count)


def combine(states: torch.Tensor, *, equals: bool) -> torch.Tensor:
    """Combined states, fp32 [3, N]: mean, m2, count of two lanes each, ``states`` fp32 [2, 3, N]; N a power of two."""
    out = torch.full(states.shape[1:], float("nan"), device=states.device)
    with on_device_of(states):
        _combine_kernel[(1,)](states, out, COUNT=states.shape[2], EQUALS=equals, enable_fp_fusion=False)
    return out


def row_statistics(x: torch.Tensor, eps: float, *, shuffles: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and rstd, fp32 [R], of every row of contiguous x [R, D] bf16."""
    mean, rstd = (torch.full(x.shape[:1], float("nan"), device=x.device) for _ in range(2))
    with on_device_of(x):
        _row_statistics_kernel[(x.shape[0],)](
            x, mean, rstd, eps, D=x.shape[1], SHUFFLES=shuffles, num_warps=NUM_WARPS, enable_fp_fusion=False
        )
    return mean, rstd
