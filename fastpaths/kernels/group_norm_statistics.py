"""GroupNorm's statistics in aten's own order, spread over the whole card; launched by :mod:`group_norm_silu`.

aten (``group_norm_kernel.cu``, ``RowwiseMomentsCUDAKernel``) gives one block of 512 threads to each group: thread t
takes elements t, t + 512, t + 1024, ... one after the other into a Welford state (mean, M2, count), then lanes fold 16,
8, 4, 2, 1 and warps fold 8, 4, 2, 1; groups of fewer than 512 elements have 32 threads. With 32 groups, 32 of an H200's
132 multiprocessors work, and each step waits for a load and a division. The order of additions within a thread cannot
change without changing bits, but the threads need not share a multiprocessor: here each program takes the 32 chains of
one of those warps, and the folds come in a second, tiny launch, which also forms the two numbers per channel that the
normalisation needs.

A step of a chain is delta = x - mean; mean += delta / n; M2 = fma(delta, x - mean, M2), and ``delta / n`` is aten's
correctly rounded division. Here each lane divides once per 32 steps, i = 1/n for one of the next 32 n, and hands it to
the others when its step comes; q = delta * i, and the quotient is q + (delta - n * q) * i with two fma. It is correctly
rounded too for n <= 2^20: the residual is exact (a multiple of an ulp, fewer than 2^24 of them), what the correction
leaves is below 1.5 * 2^-24 ulp, and delta / n is never as close as 2^-21 ulp to the midpoint of two floats. Only a
delta below about 2^-100, beside a mean as small, could differ.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.launching import CompileCase, is_interpreted, on_device_of

WARP = 32
THREADS = 512
"""aten's block of a group (``kCUDABlockReduceNumThreads``); 32 for groups of fewer elements."""
STEPS = 32
"""Steps of a chain that are loaded together, one batch ahead of the one in use; at most 32, one for each lane."""
LARGEST_GROUP = THREADS * 2**20


@triton.jit
def fused_multiply_add(a, b, c, INTERPRETED: tl.constexpr):  # type: ignore[no-untyped-def]
    """a * b + c with one rounding; triton's interpreter rounds ``tl.fma`` twice, so it goes through fp64 there."""
    if INTERPRETED:
        return (a.to(tl.float64) * b.to(tl.float64) + c.to(tl.float64)).to(tl.float32)
    return tl.fma(a, b, c)


@triton.jit
def _load(pointers, elements_left, STEPS: tl.constexpr, CHAINS: tl.constexpr, MASKED: tl.constexpr):  # type: ignore[no-untyped-def]
    """The next STEPS elements of every chain, as they lie in memory: a tuple.

    The barrier keeps the loads where they are; the assembler would sink them behind the steps they should overlap.
    """
    elements = ()
    for step in tl.static_range(STEPS):
        if MASKED:
            loaded = tl.load(pointers + step * CHAINS, mask=step * CHAINS < elements_left, other=0.0)
        else:
            loaded = tl.load(pointers + step * CHAINS)
        elements = elements + (loaded,)  # type: ignore[assignment] # noqa: RUF005
    tl.debug_barrier()
    return elements


@triton.jit
def _push(  # type: ignore[no-untyped-def]
    elements,
    mean,
    m2,
    lanes,
    pushed,
    elements_left,
    STEPS: tl.constexpr,
    CHAINS: tl.constexpr,
    MASKED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """STEPS elements into every chain's state, after the ``pushed`` ones; lanes are 0.0, 1.0, ..., 31.0."""
    inverses = tl.math.div_rn(tl.full(mean.shape, 1.0, tl.float32), lanes + (pushed + 1.0))
    for step in tl.static_range(STEPS):
        x = elements[step].to(tl.float32)
        delta = x - mean
        if INTERPRETED:  # calls are slow there, and neither PTX nor a true fma exists
            new_mean = mean + tl.math.div_rn(delta, tl.zeros_like(delta) + (pushed + (step + 1.0)))
            new_m2 = (delta.to(tl.float64) * (x - new_mean).to(tl.float64) + m2.to(tl.float64)).to(tl.float32)
        else:
            new_mean = mean + _divide_by_count(delta, pushed + (step + 1.0), _of_lane(inverses, step))
            new_m2 = tl.fma(delta, x - new_mean, m2)
        if MASKED:
            is_inside = step * CHAINS < elements_left
            new_mean, new_m2 = tl.where(is_inside, new_mean, mean), tl.where(is_inside, new_m2, m2)
        mean, m2 = new_mean, new_m2
    return mean, m2


@triton.jit
def _of_lane(values, lane):  # type: ignore[no-untyped-def]
    """The value that one lane of the warp holds, in all lanes."""
    return tl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, $2, 31, -1;", "=r,r,r", [values, lane], dtype=tl.float32, is_pure=False, pack=1
    )


@triton.jit
def _divide_by_count(dividend, count, inverse):  # type: ignore[no-untyped-def]
    """Correctly rounded dividend / count, given inverse = 1 / count correctly rounded."""
    return tl.inline_asm_elementwise(
        """{
        .reg .f32 minus, estimate, rest;
        neg.f32 minus, $2;
        mul.rn.f32 estimate, $1, $3;
        fma.rn.f32 rest, minus, estimate, $1;
        fma.rn.f32 $0, rest, $3, estimate;
        }""",
        "=f,f,f,f",
        [dividend, count, inverse],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )


@triton.jit
def _chains_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    states_ptr,
    group_size,
    CHAINS: tl.constexpr,
    LANES: tl.constexpr,
    STEPS: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Mean and M2 of LANES chains of one group, a thread each; states is [2, groups, CHAINS]."""
    BATCH: tl.constexpr = STEPS * CHAINS
    group = tl.program_id(1).to(tl.int64)
    groups = tl.num_programs(1).to(tl.int64)
    chain = tl.program_id(0) * LANES + tl.arange(0, LANES)
    mean = tl.zeros((LANES,), tl.float32)
    m2 = tl.zeros((LANES,), tl.float32)
    pointers = x_ptr + group * group_size + chain
    lanes = tl.arange(0, LANES).to(tl.float32)
    pairs = group_size // (2 * BATCH)
    pushed = 0.0
    if pairs > 0:
        first = _load(pointers, 0, STEPS, CHAINS, False)
        for pair in range(pairs):
            second = _load(pointers + BATCH, 0, STEPS, CHAINS, False)
            mean, m2 = _push(first, mean, m2, lanes, pushed, 0, STEPS, CHAINS, False, INTERPRETED)
            pointers += tl.where(pair + 1 < pairs, 2 * BATCH, 0)
            first = _load(pointers, 0, STEPS, CHAINS, False)
            pushed += STEPS * 1.0
            mean, m2 = _push(second, mean, m2, lanes, pushed, 0, STEPS, CHAINS, False, INTERPRETED)
            pushed += STEPS * 1.0
    done = pairs * (2 * BATCH)
    pointers = x_ptr + group * group_size + done + chain
    left = group_size - done - chain
    for _ in range(tl.cdiv(group_size - done, BATCH)):
        last = _load(pointers, left, STEPS, CHAINS, True)
        mean, m2 = _push(last, mean, m2, lanes, pushed, left, STEPS, CHAINS, True, INTERPRETED)
        pointers += BATCH
        pushed += STEPS * 1.0
        left -= BATCH
    tl.store(states_ptr + group * CHAINS + chain, mean)
    tl.store(states_ptr + (groups + group) * CHAINS + chain, m2)


@triton.jit
def _fold(mean, m2, count, ROWS: tl.constexpr, HALF: tl.constexpr, INTERPRETED: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, 2 * HALF] -> [ROWS, HALF]: lane i takes in lane i + HALF, as aten's ``WelfordOps::combine`` does.

    An empty state leaves the other one as it is.
    """
    mean, other_mean = tl.split(tl.permute(tl.reshape(mean, (ROWS, 2, HALF)), (0, 2, 1)))
    m2, other_m2 = tl.split(tl.permute(tl.reshape(m2, (ROWS, 2, HALF)), (0, 2, 1)))
    count, other_count = tl.split(tl.permute(tl.reshape(count, (ROWS, 2, HALF)), (0, 2, 1)))
    delta = other_mean - mean
    total = count + other_count
    share = tl.math.div_rn(other_count, tl.maximum(total, 1.0))
    weighted = delta * delta * count
    if INTERPRETED:
        both_mean = (delta.to(tl.float64) * share.to(tl.float64) + mean.to(tl.float64)).to(tl.float32)
        both_m2 = (weighted.to(tl.float64) * share.to(tl.float64) + (m2 + other_m2).to(tl.float64)).to(tl.float32)
    else:
        both_mean = tl.fma(delta, share, mean)
        both_m2 = tl.fma(weighted, share, m2 + other_m2)
    mean = tl.where(count == 0.0, other_mean, tl.where(other_count == 0.0, mean, both_mean))
    m2 = tl.where(count == 0.0, other_m2, tl.where(other_count == 0.0, m2, both_m2))
    return mean, m2, total


@triton.jit
def _affine_kernel(  # type: ignore[no-untyped-def]
    states_ptr,
    weight_ptr,
    bias_ptr,
    affine_ptr,
    group_size,
    group_channels,
    groups,
    eps,
    CHAINS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    ROUNDED: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Fold one group's chains and write its channels' scale and offset; affine is [2, samples * channels]."""
    WARPS: tl.constexpr = CHAINS // 32
    row = tl.program_id(0)
    rows = tl.num_programs(0)
    chain = tl.arange(0, CHAINS)
    mean = tl.reshape(tl.load(states_ptr + row * CHAINS + chain), (WARPS, 32))
    m2 = tl.reshape(tl.load(states_ptr + (rows + row) * CHAINS + chain), (WARPS, 32))
    steps = group_size // CHAINS + (chain < group_size % CHAINS).to(tl.int32)
    count = tl.reshape(steps.to(tl.float32), (WARPS, 32))
    for level in tl.static_range(5):
        mean, m2, count = _fold(mean, m2, count, WARPS, 16 >> level, INTERPRETED)
    if WARPS == 16:
        mean, m2, count = tl.reshape(mean, (1, 16)), tl.reshape(m2, (1, 16)), tl.reshape(count, (1, 16))
        for level in tl.static_range(4):
            mean, m2, count = _fold(mean, m2, count, 1, 8 >> level, INTERPRETED)
    rstd = tl.rsqrt(tl.math.div_rn(m2, count) + eps)
    if ROUNDED:
        mean = mean.to(tl.bfloat16).to(tl.float32)
        rstd = rstd.to(tl.bfloat16).to(tl.float32)
    member = tl.arange(0, BLOCK_CHANNELS)
    is_member = member < group_channels
    channel = (row % groups) * group_channels + member
    weight = tl.load(weight_ptr + channel, mask=is_member, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channel, mask=is_member, other=0.0).to(tl.float32)
    mean = tl.zeros((BLOCK_CHANNELS,), tl.float32) + tl.reshape(mean, (1,))
    scale = weight * tl.reshape(rstd, (1,))
    offset = fused_multiply_add(scale * -1.0, mean, bias, INTERPRETED)
    target = affine_ptr + row * group_channels + member
    tl.store(target, scale, mask=is_member)
    tl.store(target + rows * group_channels, offset, mask=is_member)


def channel_affine(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, groups: int, eps: float, rounded_statistics: bool
) -> torch.Tensor:
    """Scale and offset of every channel, [2, N, C] fp32: GroupNorm of ``x`` [N, C, *] is scale * x + offset.

    ``x`` is contiguous bf16. ``rounded_statistics``: mean and rstd pass through bf16, as in older torch.
    """
    samples, channels = x.shape[:2]
    group_channels = channels // groups
    group_size = group_channels * (x.numel() // (samples * channels))
    chains = THREADS if group_size >= THREADS else WARP
    states = torch.empty((2, samples * groups, chains), dtype=torch.float32, device=x.device)
    affine = torch.empty((2, samples, channels), dtype=torch.float32, device=x.device)
    interpreted = is_interpreted()
    with on_device_of(x):
        _chains_kernel[(chains // WARP, samples * groups)](
            x, states, group_size,
            CHAINS=chains, LANES=WARP, STEPS=STEPS, INTERPRETED=interpreted, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
        _affine_kernel[(samples * groups,)](
            states, weight, bias, affine, group_size, group_channels, groups, rounded_eps(eps),
            CHAINS=chains, BLOCK_CHANNELS=triton.next_power_of_2(group_channels), ROUNDED=rounded_statistics,
            INTERPRETED=interpreted, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return affine


@functools.lru_cache(maxsize=64)
def rounded_eps(eps: float) -> float:
    """``eps`` as aten's kernel receives it: in the dtype of the input, bf16."""
    return float(torch.tensor(eps, dtype=torch.bfloat16))


def compile_cases() -> list[CompileCase]:
    """The launches of a group of at least 512 elements, and of a smaller one."""
    cases = []
    for chains in (THREADS, WARP):
        constexprs = {"CHAINS": chains, "LANES": WARP, "STEPS": STEPS, "INTERPRETED": False}
        signature = {"x_ptr": "*bf16", "states_ptr": "*fp32", "group_size": "i32"}
        cases.append(CompileCase(_chains_kernel, signature, constexprs, {"num_warps": 1, "enable_fp_fusion": False}))
    pointers = {"states_ptr": "*fp32", "weight_ptr": "*bf16", "bias_ptr": "*bf16", "affine_ptr": "*fp32"}
    sizes = {"group_size": "i32", "group_channels": "i32", "groups": "i32", "eps": "fp32"}
    for chains, rounded in ((THREADS, True), (THREADS, False), (WARP, True)):
        constexprs = {"CHAINS": chains, "BLOCK_CHANNELS": 16, "ROUNDED": rounded, "INTERPRETED": False}
        options = {"num_warps": 4, "enable_fp_fusion": False}
        cases.append(CompileCase(_affine_kernel, {**pointers, **sizes}, constexprs, options))
    return cases
