"""The numbers of campaigns with three or more arms (A B C C B A), for one campaign or thousands at once.

A block is a palindrome of k arms, so every arm has two runs at equal distances from the block's centre: arms are
orthogonal to a linear drift. One ordinary least squares holds the whole campaign: an intercept and a slope per block,
one effect per arm. Every candidate is held against the baseline with the scatter of all runs,

    s^2 = [ sum_j (sum_a D_aj^2 / 2 - b_j^2 T) + 2 sum_ja (y_aj - y_a. - y_.j + y_..)^2 ] / ((k - 1)(2n - 1)),

where y_aj is the mean of arm a's two log times in block j, D_aj their difference, T the sum of squared distances from
the centre and b_j = sum t x / T the drift per slot. Each of the k - 1 comparisons gets 1/(k - 1) of the error level
(Bonferroni), so that all intervals hold together. With two arms all of this is
:func:`fuseproof.harness.statistics.contrasts.summarise`.

One scatter for all arms is an assumption. Where the two compared arms scatter more than the rest does (F test), their
own scatter decides: an arm that is quieter than a clock can be must not lend its calm to the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuseproof.harness.statistics.contrasts import (
    SCATTER_FLOOR,
    Bools,
    Contrasts,
    Floats,
    Summary,
    between_half_width,
    blocks_differ,
    degrees_of_freedom_of,
    each_alpha,
    monotone_drift_bound,
    pair_median_of,
    spreads_of,
    t_quantile,
)

ARMS_TEST_LEVEL = 0.95
"""Level of the F test that asks whether the compared arms scatter more than the rest; it costs 2 points of power."""

Halves = NDArray[np.int_]
"""Shape [n, k]: the first half of each block, arms as numbers in the order of their letters (A is 0)."""


@dataclass(frozen=True)
class _Sums:
    """Sums of squares and the two arms that are compared; the leading dimensions are those of the campaigns."""

    pair: Floats
    """Shape [..., n, 2, 2]: log times of baseline and candidate, each in the order they ran."""
    effect: Floats
    drift: Floats
    """Both [..., n]."""
    within: Floats
    """Shape [..., n]: what the runs of one arm in one block differ by, without the drift."""
    total: Floats
    """Within blocks and between them, over all arms."""
    own: Floats
    """The same of the two compared arms alone."""


def by_arms(values: Floats, halves: Halves) -> Floats:
    """Values in slot order, [..., n, 2k], as [..., n, k, 2]: by arm, each arm's two runs in the order they ran."""
    count = halves.shape[-1]
    place, block = np.argsort(halves, axis=-1), np.arange(len(halves))[:, np.newaxis]
    return np.stack([values[..., block, place], values[..., block, 2 * count - 1 - place]], axis=-1)


def distances(halves: Halves) -> Floats:
    """Shape [n, k]: how many slots each arm's runs lie from the centre of the block."""
    return np.asarray(halves.shape[-1] - 0.5 - np.argsort(halves, axis=-1))


def is_balanced(halves: Halves) -> bool:
    """Whether every arm has the same sum of squared distances, so that curved drift costs all arms the same."""
    sums = np.square(distances(halves)).sum(axis=0)
    return len(halves) >= 2 and bool((sums == sums[0]).all())


def summarise_against(seconds: Floats, halves: Halves, candidate: int, *, alpha: float, tick_s: float) -> Summary:
    """Reduce campaigns to what the verdict of one candidate against the baseline needs.

    ``seconds`` is [..., n, 2k] in slot order, finite and > 0; ``candidate`` from 1 to k - 1; ``alpha`` is the two-sided
    error level of all k - 1 comparisons together; ``tick_s`` the resolution of the timer in seconds.
    """
    block_count, arm_count = halves.shape
    sums = _sums(np.log(seconds), halves, candidate)
    degrees_of_freedom = degrees_of_freedom_of(block_count, arm_count)
    effect = sums.effect.mean(axis=-1)
    between_sum = np.square(sums.effect - effect[..., np.newaxis]).sum(axis=-1)
    residual_sum = sums.within.sum(axis=-1)
    scatter_raw = np.sqrt(sums.total / degrees_of_freedom)
    scatter = np.maximum(scatter_raw, SCATTER_FLOOR)

    own_alpha = each_alpha(alpha, arm_count)
    per_scatter = t_quantile(own_alpha, degrees_of_freedom) / np.sqrt(block_count)
    resolution = per_scatter * scatter
    residual_degrees = block_count * (arm_count - 1)
    differ = blocks_differ(residual_sum, between_sum, block_count, residual_degrees)
    is_widened = differ & (block_count >= 3)
    between_blocks = np.where(is_widened, between_half_width(between_sum, block_count, own_alpha), 0.0)
    is_uneven, uneven = _uneven(sums, block_count, arm_count, own_alpha)
    times = by_arms(seconds, halves)[..., [0, candidate], :]
    mean_seconds = times.mean(axis=(-3, -2, -1))
    mean_drift = np.abs(sums.drift).mean(axis=-1)
    has_balance = is_balanced(halves)
    return Summary(
        block_count=block_count,
        degrees_of_freedom=degrees_of_freedom,
        is_balanced=has_balance,
        blocks=Contrasts(effect=sums.effect, drift_per_slot=sums.drift, residual=np.sqrt(sums.within)),
        effect=effect,
        residual_sum=residual_sum,
        between_sum=between_sum,
        scatter_raw=scatter_raw,
        scatter=scatter,
        resolution=resolution,
        half_width_raw=per_scatter * scatter_raw,
        half_width=np.maximum(np.maximum(resolution, between_blocks), uneven) + tick_s / mean_seconds,
        blocks_differ=differ,
        is_widened=is_widened,
        mean_drift=mean_drift,
        alias=np.zeros_like(mean_drift) if has_balance else monotone_drift_bound(arm_count) * mean_drift,
        pair_median=pair_median_of(sums.pair[..., 0, :], sums.pair[..., 1, :]),
        same_arm_spreads=spreads_of(times),
        mean_seconds=mean_seconds,
        curvature=_curvature(sums.effect, halves, candidate),
        arm_count=arm_count,
        arms_scatter_unevenly=is_uneven,
    )


def _sums(logs: Floats, halves: Halves, candidate: int) -> _Sums:
    times, distance = by_arms(logs, halves), distances(halves)
    means, differences = times.mean(axis=-1), times[..., 1] - times[..., 0]
    drift, within = _drift_and_within(differences, distance)
    centred = means - means.mean(axis=-1, keepdims=True) - means.mean(axis=-2, keepdims=True)
    interaction = 2 * np.square(centred + means.mean(axis=(-2, -1), keepdims=True)).sum(axis=(-2, -1))
    effect = means[..., candidate] - means[..., 0]
    compared = [0, candidate]
    _, own_within = _drift_and_within(differences[..., compared], distance[:, compared])
    own_between = np.square(effect - effect.mean(axis=-1, keepdims=True)).sum(axis=-1)
    return _Sums(
        pair=times[..., compared, :],
        effect=effect,
        drift=drift,
        within=within,
        total=within.sum(axis=-1) + interaction,
        own=own_within.sum(axis=-1) + own_between,
    )


def _drift_and_within(differences: Floats, distance: Floats) -> tuple[Floats, Floats]:
    """The least-squares slope of each block and the squares left within it; each [..., n]."""
    squares = 2 * np.square(distance).sum(axis=-1)
    drift = (distance * differences).sum(axis=-1) / squares
    within = np.square(differences).sum(axis=-1) / 2 - np.square(drift) * squares
    return drift, np.maximum(within, 0.0)


def _uneven(sums: _Sums, block_count: int, arm_count: int, alpha: float) -> tuple[Bools, Floats]:
    """Whether the two compared arms scatter more than the rest, and the half width by their own scatter where so."""
    from scipy.special import fdtri

    own_degrees = degrees_of_freedom_of(block_count, 2)
    rest_degrees = degrees_of_freedom_of(block_count, arm_count) - own_degrees
    own = sums.own / own_degrees
    rest = np.maximum((sums.total - sums.own) / rest_degrees, SCATTER_FLOOR**2)
    is_uneven = own / rest > fdtri(own_degrees, rest_degrees, ARMS_TEST_LEVEL)
    width = t_quantile(alpha, own_degrees) * np.sqrt(own / block_count)
    return is_uneven, np.where(is_uneven, width, 0.0)


def _curvature(effects: Floats, halves: Halves, candidate: int) -> Floats:
    """Half of what curved drift makes the blocks' effects differ by: their slope over what curvature does to each."""
    squares = np.square(distances(halves))
    lever = squares[:, candidate] - squares[:, 0]
    centred = lever - lever.mean()
    if not centred.any():
        return np.zeros(effects.shape[:-1])
    slope = (effects * centred).sum(axis=-1) / np.square(centred).sum()
    return np.asarray(np.abs(slope) * (lever.max() - lever.min()) / 2)
