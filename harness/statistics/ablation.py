"""Contrasts between the arms of palindromic blocks, in seconds: what sums of effects need, which ratios cannot give.

The model is that of :mod:`fuseproof.harness.statistics.several_arms`, on seconds instead of logarithms: an intercept
and a slope a block, one level an arm. Arms are orthogonal to the slope, so the level of an arm is the mean of its runs,
and a contrast ``sum_a w_a level_a`` with ``sum_a w_a = 0`` has the standard error ``s sqrt(sum_a w_a^2 / 2n)``: arms
that several effects share (no fast path, all of them) enter it once, with their whole weight. ``s`` is the scatter of
all runs with (k - 1)(2n - 1) degrees of freedom for k arms and n blocks. Where the arms' differences change from block
to block by more than their runs scatter (F test at 95 %), that change alone gives the interval, with (k - 1)(n - 1).

Every interval is at 95 % by itself; among twenty effects that are none, one is expected to look like one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from fuseproof.harness.statistics.contrasts import BLOCK_TEST_LEVEL, SCATTER_FLOOR, Floats, t_quantile
from fuseproof.harness.statistics.several_arms import by_arms, distances

ALPHA = 0.05
NO_LEVER = 1e-9
Weights = Mapping[str, float]
"""By the letter of an arm; arms that are not named have 0."""


@dataclass(frozen=True)
class Estimate:
    """A contrast in seconds with the half width of its 95 % interval."""

    seconds: float
    half_width_s: float

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends, in seconds."""
        return self.seconds - self.half_width_s, self.seconds + self.half_width_s

    @property
    def is_resolved(self) -> bool:
        """Whether the interval excludes zero."""
        return abs(self.seconds) > self.half_width_s


@dataclass(frozen=True)
class ArmLevels:
    """Mean seconds of every arm over all its runs, and how much one run scatters."""

    means_s: Mapping[str, float]
    """By letter."""
    block_count: int
    scatter_s: float
    degrees_of_freedom: int
    is_widened: bool
    """The arms' differences change from block to block by more than their runs scatter, and that gives the interval."""
    levers: Mapping[str, float] = field(default_factory=dict)
    """By letter: mean squared distance from the block's centre, in slots; alike where each arm has had every place."""
    curve_s: tuple[float, float] | None = None
    """Curvature in seconds a squared slot, and the half width of its 95 % interval; None where no block can show it"""

    @property
    def is_balanced(self) -> bool:
        """Whether curved drift costs all arms the same."""
        return len(set(self.levers.values())) <= 1

    @property
    def is_curved(self) -> bool:
        """Whether the blocks show a curved drift."""
        return self.curve_s is not None and abs(self.curve_s[0]) > self.curve_s[1]

    def curved_s(self, weights: Weights) -> float:
        """Seconds by which drift as curved as these blocks allow may move a contrast; infinite where none can tell."""
        lever = abs(math.fsum(weight * self.levers.get(arm, 0.0) for arm, weight in weights.items()))
        if self.is_balanced or lever < NO_LEVER:
            return 0.0
        return math.inf if self.curve_s is None else (abs(self.curve_s[0]) + self.curve_s[1]) * lever

    def contrast(self, weights: Weights) -> Estimate:
        """``sum_a weights[a] * mean[a]``; the weights must sum to 0."""
        total = math.fsum(weights.values())
        if abs(total) > 1e-9:
            raise ValueError(f"the weights of a contrast sum to {total:g}, not to 0")
        seconds = math.fsum(weight * self.means_s[arm] for arm, weight in weights.items())
        error = self.scatter_s * math.sqrt(math.fsum(w * w for w in weights.values()) / (2 * self.block_count))
        return Estimate(seconds, t_quantile(ALPHA, self.degrees_of_freedom) * error)


def arm_levels(blocks: Sequence[tuple[str, Sequence[float]]]) -> ArmLevels:
    """The levels of the arms from whole blocks.

    Each block is its orientation (``ABCCBA``) and its seconds in slot order, finite and > 0; all blocks have the same
    arms, two at least.
    """
    letters = sorted(set(blocks[0][0]))
    count = len(letters)
    halves = np.array([[letters.index(arm) for arm in way[:count]] for way, _ in blocks])
    times = by_arms(np.array([seconds for _, seconds in blocks], dtype=np.float64), halves)
    within, between = _squares(times, distances(halves))
    block_count = len(blocks)
    within_df, between_df = block_count * (count - 1), (count - 1) * (block_count - 1)
    pooled = (within + between) / (within_df + between_df)
    is_widened = bool(between_df) and _exceeds(between / max(between_df, 1), within / within_df, between_df, within_df)
    variance, freedom = (between / between_df, between_df) if is_widened else (pooled, within_df + between_df)
    floor = SCATTER_FLOOR * float(times.mean())
    scatter = max(math.sqrt(max(variance, 0.0)), floor)
    squares = np.square(distances(halves))
    return ArmLevels(
        means_s=dict(zip(letters, map(float, times.mean(axis=(0, 2))), strict=True)),
        block_count=block_count,
        scatter_s=scatter,
        degrees_of_freedom=freedom,
        is_widened=is_widened,
        levers=dict(zip(letters, map(float, squares.mean(axis=0)), strict=True)),
        curve_s=_curve(times.mean(axis=-1), squares, scatter, freedom),
    )


def _curve(means: Floats, squares: Floats, scatter_s: float, freedom: int) -> tuple[float, float] | None:
    """The drift's curvature by how the arms' differences follow their places from block to block; both are [n, k]."""
    lever, centred = (
        values - values.mean(axis=1, keepdims=True) - values.mean(axis=0, keepdims=True) + values.mean()
        for values in (squares, means)
    )
    weight = float(np.square(lever).sum())
    if weight < NO_LEVER:
        return None
    half_width = t_quantile(ALPHA, freedom) * scatter_s / math.sqrt(2 * weight)
    return float((centred * lever).sum()) / weight, half_width


def _squares(times: Floats, distance: Floats) -> tuple[float, float]:
    """Squares within arms of a block without the drift, and of what arms and blocks do not explain; [n, k, 2] times."""
    means, differences = times.mean(axis=-1), times[..., 1] - times[..., 0]
    squares = 2 * np.square(distance).sum(axis=-1)
    drift = (distance * differences).sum(axis=-1) / squares
    within = np.square(differences).sum(axis=-1) / 2 - np.square(drift) * squares
    centred = means - means.mean(axis=1, keepdims=True) - means.mean(axis=0, keepdims=True) + means.mean()
    return float(np.maximum(within, 0.0).sum()), float(2 * np.square(centred).sum())


def _exceeds(between: float, within: float, between_df: int, within_df: int) -> bool:
    from scipy.special import fdtri

    return between > max(within, 1e-300) * float(fdtri(between_df, within_df, BLOCK_TEST_LEVEL))
