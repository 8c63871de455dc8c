"""The numbers of A-B-B-A campaigns, for one campaign or thousands at once.

Every array has any number of leading dimensions ("..."), one element per campaign: the verdict printed for a user's
campaign and the verdicts of ten thousand simulated ones come from the same lines. Times are seconds **in slot order**;
an ABBA block ran A1 B1 B2 A2, a mirrored (BAAB) block ran B1 A1 A2 B2.

The four slots of a block carry four orthonormal contrasts of log time: mean, linear (-3, -1, 1, 3)/sqrt(20), quadratic
(1, -1, -1, 1)/2 and cubic (-1, 3, -3, 1)/sqrt(20). The effect of the arms *is* the quadratic contrast (hence the
mirrored blocks: they tell an effect from curvature), the drift is the linear one, and the cubic one is pure scatter.
Pooled over n blocks this is ordinary least squares with one intercept and one slope per block, 2n - 1 degrees of
freedom.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SCATTER_FLOOR = 1e-4
"""No run is known better than 0.01 %: identical printed times are rounding, not proof of a noiseless machine."""

BLOCK_TEST_LEVEL = 0.95
"""Level of the F test that asks whether blocks differ by more than their runs scatter."""

TWO_ARMS = 2


@dataclass(frozen=True)
class Contrasts:
    """Effect, drift and residual of each block, in log units; arrays of shape [..., n]."""

    effect: Floats
    """Mean log time of the B slots minus that of the A slots: negative when the candidate is faster."""
    drift_per_slot: Floats
    """Least-squares slope over the four slots; the same formula in both orders, and blind to the effect."""
    residual: Floats
    """The cubic contrast: blind to effect, level and linear drift."""


@dataclass(frozen=True)
class Summary:
    """What the verdict looks at, per campaign; arrays of shape [...] unless said, log units unless said."""

    block_count: int
    degrees_of_freedom: int
    is_balanced: bool
    """At least two blocks, and as many ABBA as BAAB blocks give or take one."""
    blocks: Contrasts
    effect: Floats
    residual_sum: Floats
    between_sum: Floats
    scatter_raw: Floats
    """Scatter of one run, estimated from residuals and from the spread of the blocks' effects."""
    scatter: Floats
    """The same, never below :data:`SCATTER_FLOOR`."""
    resolution: Floats
    """t times scatter over sqrt(n)."""
    half_width_raw: Floats
    """Half width of the printed interval: t times raw scatter over sqrt(n)."""
    half_width: Floats
    """Half width of the interval used: floored, widened between blocks where they differ, plus the timer's tick."""
    blocks_differ: Bools
    """The F test: the blocks' effects differ by more than their runs scatter (always False with one block)."""
    is_widened: Bools
    """The interval used rests on the spread between blocks (three blocks or more)."""
    mean_drift: Floats
    """Mean over blocks of |drift per slot|."""
    alias: Floats
    """What monotone drift may have added to the effect; 0 when the order is balanced."""
    pair_median: Floats
    """Median of the 4n within-block ratios ln(b/a): free of drift in either order, and robust to tails."""
    same_arm_spreads: Floats
    """Shape [..., n, 2]: |x - y| / mean of the two runs of one arm in one block (A, then B); a share, not a log."""
    mean_seconds: Floats
    curvature: Floats
    """Half of what the order of the slots makes the blocks' effects differ by; 0 where all ran in one order."""
    arm_count: int = TWO_ARMS
    """How many arms the campaign has; the numbers are those of one candidate against the baseline."""
    arms_scatter_unevenly: Bools | None = None
    """Of three or more arms: the two compared scatter more than the rest, and the half width is by their own."""


def monotone_drift_bound(arm_count: int = TWO_ARMS) -> float:
    """Any monotone drift inside a block moves an effect by at most this much times |drift per slot|: 5/3 for two."""
    return arm_count * (2 * arm_count + 1) / 6


def degrees_of_freedom_of(block_count: int, arm_count: int = TWO_ARMS) -> int:
    """What is left of the runs of n blocks behind an intercept and a slope a block and an effect an arm: 2n - 1."""
    return (arm_count - 1) * (2 * block_count - 1)


def each_alpha(alpha: float, arm_count: int = TWO_ARMS) -> float:
    """The error level of each comparison with the baseline so that all of them together have ``alpha``."""
    return alpha / (arm_count - 1)


def by_arm(values: Floats, is_mirrored: Bools) -> tuple[Floats, Floats]:
    """Split [..., n, 4] values in slot order into the A and the B runs, each [..., n, 2] in the order they ran."""
    outer, inner = values[..., [0, 3]], values[..., [1, 2]]
    mirrored = is_mirrored[:, np.newaxis]
    return np.where(mirrored, inner, outer), np.where(mirrored, outer, inner)


def contrasts(seconds: Floats, is_mirrored: Bools) -> Contrasts:
    """The three contrasts of each block.

    ``seconds`` is [..., n, 4] in slot order, finite and > 0; ``is_mirrored`` is [n].
    """
    first, second, third, fourth = np.moveaxis(np.log(seconds), -1, 0)
    inner_minus_outer = (second + third - first - fourth) / 2
    return Contrasts(
        effect=np.where(is_mirrored, -inner_minus_outer, inner_minus_outer),
        drift_per_slot=(3 * (fourth - first) + (third - second)) / 10,
        residual=(-first + 3 * second - 3 * third + fourth) / np.sqrt(20),
    )


def t_quantile(alpha: float, degrees_of_freedom: int) -> float:
    """Two-sided quantile of Student's t: 1 - alpha/2."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees_of_freedom, 1 - alpha / 2))


def summarise(seconds: Floats, is_mirrored: Bools, *, alpha: float, tick_s: float) -> Summary:
    """Reduce campaigns to the numbers a verdict needs.

    ``seconds`` is [..., n, 4] in slot order, ``is_mirrored`` is [n]; ``alpha`` the two-sided error level of the
    interval; ``tick_s`` the resolution of the timer in seconds (0: negligible).
    """
    block_count = seconds.shape[-2]
    degrees_of_freedom = degrees_of_freedom_of(block_count)
    blocks = contrasts(seconds, is_mirrored)
    effect = blocks.effect.mean(axis=-1)
    residual_sum = np.square(blocks.residual).sum(axis=-1)
    between_sum = np.square(blocks.effect - effect[..., np.newaxis]).sum(axis=-1)
    scatter_raw = np.sqrt((residual_sum + between_sum) / degrees_of_freedom)
    scatter = np.maximum(scatter_raw, SCATTER_FLOOR)

    per_scatter = t_quantile(alpha, degrees_of_freedom) / np.sqrt(block_count)
    resolution = per_scatter * scatter
    differ = blocks_differ(residual_sum, between_sum, block_count, block_count)
    is_widened = differ & (block_count >= 3)
    between_blocks = np.where(is_widened, between_half_width(between_sum, block_count, alpha), 0.0)
    mean_seconds = seconds.mean(axis=(-2, -1))

    mirrored_count = int(is_mirrored.sum())
    is_balanced = block_count >= 2 and abs(block_count - 2 * mirrored_count) <= 1
    mean_drift = np.abs(blocks.drift_per_slot).mean(axis=-1)
    return Summary(
        block_count=block_count,
        degrees_of_freedom=degrees_of_freedom,
        is_balanced=is_balanced,
        blocks=blocks,
        effect=effect,
        residual_sum=residual_sum,
        between_sum=between_sum,
        scatter_raw=scatter_raw,
        scatter=scatter,
        resolution=resolution,
        half_width_raw=per_scatter * scatter_raw,
        half_width=np.maximum(resolution, between_blocks) + tick_s / mean_seconds,
        blocks_differ=differ,
        is_widened=is_widened,
        mean_drift=mean_drift,
        alias=np.zeros_like(mean_drift) if is_balanced else monotone_drift_bound() * mean_drift,
        pair_median=pair_median_of(*by_arm(np.log(seconds), is_mirrored)),
        same_arm_spreads=spreads_of(np.stack(by_arm(seconds, is_mirrored), axis=-2)),
        mean_seconds=mean_seconds,
        curvature=_curvature(blocks.effect, is_mirrored),
    )


def blocks_differ(residual_sum: Floats, between_sum: Floats, block_count: int, residual_degrees: int) -> Bools:
    """The F test of the spread between the blocks' effects against the runs' scatter within them."""
    from scipy.special import fdtri

    if block_count < 2:
        return np.zeros_like(residual_sum, dtype=np.bool_)
    critical = fdtri(block_count - 1, residual_degrees, BLOCK_TEST_LEVEL)
    within = np.maximum(residual_sum / residual_degrees, SCATTER_FLOOR**2)
    differ: Bools = between_sum / (block_count - 1) / within > critical
    return differ


def between_half_width(between_sum: Floats, block_count: int, alpha: float) -> Floats:
    """Half width of an interval that rests on the spread of the blocks' effects alone; 0 with one block."""
    if block_count < 2:
        return np.zeros_like(between_sum)
    standard_error = np.sqrt(between_sum / (block_count * (block_count - 1)))
    return np.asarray(t_quantile(alpha, block_count - 1) * standard_error)


def pair_median_of(baseline: Floats, candidate: Floats) -> Floats:
    """Median of the 4n within-block ratios of two arms' log times, each [..., n, 2]."""
    ratios = candidate[..., :, np.newaxis] - baseline[..., np.newaxis, :]
    return np.median(ratios.reshape(*ratios.shape[:-3], -1), axis=-1)


def spreads_of(arms: Floats) -> Floats:
    """|x - y| / mean of the two runs of each arm in each block; ``arms`` is [..., n, 2, 2] in seconds."""
    return np.asarray(np.abs(arms[..., 0] - arms[..., 1]) / arms.mean(axis=-1))


def _curvature(effects: Floats, is_mirrored: Bools) -> Floats:
    """Curved drift shows as a difference between the effects of ABBA and BAAB blocks."""
    if is_mirrored.all() or not is_mirrored.any():
        return np.zeros(effects.shape[:-1])
    difference = effects[..., ~is_mirrored].mean(axis=-1) - effects[..., is_mirrored].mean(axis=-1)
    return np.asarray(np.abs(difference) / 2)
