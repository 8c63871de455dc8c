"""``vector_norm`` over the channels of [N, C, *] in torch's own order on CUDA, for kernels that own a position.

Order (``Reduce.cuh``, torch 2.11 and 2.13: fp32, channels that are not the fastest dimension in memory): threads along
x take positions, four each where four divides their number; threads along y take channels ty, ty + step, ty + 2 step,
... into four accumulators in turn, each ``fma(x, x, a)``; the four are added from left to right; threads fold halves
apart. Many channels of few positions are spread over blocks as well, each of which takes the channels behind its own;
their sums are added in turn by the threads along y, which fold once more. Which of that happens depends on the sizes
and the card alone: :func:`order_of`. Where positions and channels lie in memory does not matter, so a kernel may follow
this order through channels-last memory, in which torch's own order would be another one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.group_norm_statistics import fused_multiply_add

ACCUMULATORS = 4
MOST_THREADS, WARP = 512, 32
FEWEST_VALUES, MOST_VALUES = 16, 256
MOST_LANES, MOST_BLOCKS = 16, 16
LARGEST_BYTES = 2**31
EPS = 1e-12
"""``F.normalize``'s."""


def denominators(x: torch.Tensor) -> torch.Tensor:
    """What ``F.normalize`` divides [N, C, *] by: ``x.float().norm(2, 1, keepdim=True)``, EPS at least, by torch's sum.

    [N, 1, *] fp32. On CUDA torch adds bf16 values, read as they are, in the order in which it adds the same numbers in
    fp32; autocast would make the fp32 tensor first.
    """
    if x.is_cuda and x.dtype == torch.bfloat16:
        with torch.autocast("cuda", enabled=False):
            return torch.linalg.vector_norm(x, 2, 1, keepdim=True, dtype=torch.float32).clamp_min(EPS)
    return x.float().norm(2, 1, keepdim=True).clamp_min(EPS)


@dataclass(frozen=True)
class Order:
    """How many threads (``lanes``) and blocks share the channels of one position."""

    lanes: int
    blocks: int
    vector: int = 0
    """1: channels are the fastest dimension, and a lane takes four next to each other, one an accumulator."""

    @property
    def padded_blocks(self) -> int:
        """Room for them: 1, or a multiple of the lanes and a power of two."""
        return 1 if self.blocks == 1 else max(self.lanes, triton.next_power_of_2(self.blocks))


def order_of(samples: int, channels: int, positions: int, processors: int, threads_a_processor: int) -> Order | None:
    """torch's order for contiguous fp32 [samples, channels, positions], or None where no kernel follows it."""
    outputs = samples * positions
    if 4 * channels * outputs >= LARGEST_BYTES or positions < 2 or channels < 2:
        return None
    vector = 4 if positions % 4 == 0 else 1
    most = MOST_THREADS // vector
    across, down = _last_power(min(outputs // vector, most)), _last_power(min(channels, most))
    width = min(across, WARP)
    height = min(down, most // width)
    width = min(across, most // height)
    if channels < min(16 * height, MOST_VALUES):
        return Order(1, 1)
    values = -(-channels // height)
    grid = -(-(outputs // vector) // width)
    target = processors * (threads_a_processor // (width * height))
    blocks = 1
    if values >= MOST_VALUES and grid <= target:
        blocks = max(min(-(-target // grid), -(-values // FEWEST_VALUES)), -(-values // MOST_VALUES))
    return Order(height, blocks) if height <= MOST_LANES and blocks <= MOST_BLOCKS else None


def order_of_rows(channels: int, positions: int) -> Order | None:
    """torch's order for fp32 [positions, channels], channels next to each other (``rms_statistics.py``); or None."""
    is_known = channels % 4 == 0 and 128 <= channels < 8192 and positions >= 16
    return Order(WARP, 1, 1) if is_known and 4 * channels * positions < LARGEST_BYTES else None


def order_on(x: torch.Tensor, last: bool = False) -> Order | None:
    """torch's order for the shape of ``x`` on its device, in planes or with the channels ``last`` in memory."""
    samples, channels = x.shape[:2]
    if last:
        return order_of_rows(channels, x.numel() // channels)
    return order_of(samples, channels, x.numel() // (samples * channels), *_card(x.device))


@functools.cache
def _card(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return 132, 2048
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.max_threads_per_multi_processor


def _last_power(number: int) -> int:
    return 1 << (max(number, 1).bit_length() - 1)


@triton.jit
def chain_channels(  # type: ignore[no-untyped-def]
    LANES: tl.constexpr, BLOCKS: tl.constexpr, PADDED_BLOCKS: tl.constexpr
):
    """The first channel of every accumulator, [4 * PADDED_BLOCKS * LANES], and which of them are there."""
    chain = tl.arange(0, 4 * PADDED_BLOCKS * LANES)
    block = (chain // LANES) % PADDED_BLOCKS
    if BLOCKS == PADDED_BLOCKS:
        channel = chain
    else:
        channel = chain % LANES + LANES * (block + BLOCKS * (chain // (LANES * PADDED_BLOCKS)))
    return channel, block < BLOCKS


@triton.jit
def added_squares(x, sums, INTERPRETED: tl.constexpr):  # type: ignore[no-untyped-def]
    """One step of every accumulator."""
    return fused_multiply_add(x, x, sums, INTERPRETED)


@triton.jit
def _four_in_turn(values, ROWS: tl.constexpr, REST: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, 4 * REST], the four outermost -> [ROWS, REST], added from left to right."""
    last = tl.permute(tl.reshape(values, (ROWS, 4, REST)), (0, 2, 1))
    even, odd = tl.split(tl.reshape(last, (ROWS, REST, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return ((first + second) + third) + fourth


@triton.jit
def _four_neighbours(values, ROWS: tl.constexpr, REST: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, REST * 4], the four innermost -> [ROWS, REST], added from left to right."""
    even, odd = tl.split(tl.reshape(values, (ROWS, REST, 2, 2)))
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return ((first + second) + third) + fourth


@triton.jit
def _halves(values, ROWS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, LANES] -> [ROWS, LANES / 2]: lane i takes in lane i + LANES / 2."""
    low, high = tl.split(tl.permute(tl.reshape(values, (ROWS, 2, LANES // 2)), (0, 2, 1)))
    return low + high


@triton.jit
def _folded(values, ROWS: tl.constexpr, LANES: tl.constexpr):  # type: ignore[no-untyped-def]
    """[ROWS, LANES] -> [ROWS], halves apart."""
    if LANES >= 32:
        values = _halves(values, ROWS, 32)
    if LANES >= 16:
        values = _halves(values, ROWS, 16)
    if LANES >= 8:
        values = _halves(values, ROWS, 8)
    if LANES >= 4:
        values = _halves(values, ROWS, 4)
    if LANES >= 2:
        values = _halves(values, ROWS, 2)
    return tl.reshape(values, (ROWS,))


@triton.jit
def denominator_of(  # type: ignore[no-untyped-def]
    sums, eps, POSITIONS: tl.constexpr, LANES: tl.constexpr, PADDED_BLOCKS: tl.constexpr, VECTOR: tl.constexpr
):
    """[POSITIONS, 4 * PADDED_BLOCKS * LANES] accumulators -> [POSITIONS]: the norm, ``eps`` at least, NaN kept."""
    if VECTOR:
        lanes = _four_neighbours(sums, POSITIONS, LANES)
    else:
        lanes = _four_in_turn(sums, POSITIONS, PADDED_BLOCKS * LANES)
    total = _folded(tl.reshape(lanes, (POSITIONS * PADDED_BLOCKS, LANES)), POSITIONS * PADDED_BLOCKS, LANES)
    if PADDED_BLOCKS > 1:
        blocks = tl.reshape(total, (POSITIONS, PADDED_BLOCKS))
        if PADDED_BLOCKS == 4 * LANES:
            blocks = _four_in_turn(blocks, POSITIONS, LANES)
        elif PADDED_BLOCKS == 2 * LANES:
            blocks = _halves(blocks, POSITIONS, PADDED_BLOCKS)
        total = _folded(blocks, POSITIONS, LANES)
    norm = tl.sqrt_rn(total)
    return tl.where(norm < eps, eps, norm)
