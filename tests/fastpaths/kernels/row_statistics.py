"""Mean and rstd themselves, out of the kernels' own functions: one fp32 ulp rarely shows in a bf16 row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.launching import on_device_of
from fuseproof.fastpaths.kernels.welford import NUM_WARPS, empty_state, mean_and_rstd, push_round


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


def row_statistics(x: torch.Tensor, eps: float, *, shuffles: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and rstd, fp32 [R], of every row of contiguous x [R, D] bf16."""
    mean, rstd = (torch.full(x.shape[:1], float("nan"), device=x.device) for _ in range(2))
    with on_device_of(x):
        _row_statistics_kernel[(x.shape[0],)](
            x, mean, rstd, eps, D=x.shape[1], SHUFFLES=shuffles, num_warps=NUM_WARPS, enable_fp_fusion=False
        )
    return mean, rstd
