"""The verdict rule as booleans, for one campaign or thousands at once.

:mod:`fuseproof.harness.statistics.verdict` adds the words.

Order of checks: a cap forbids any verdict; SAME when the interval lies inside the minimum effect; FASTER or SLOWER when
the effect is resolved, large enough, contradicted by no block, confirmed by the pair median and larger than what drift
can fake; INCONCLUSIVE otherwise. Each array of :class:`Checks` says that one thing is so, one element per campaign.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fuseproof.harness.statistics.contrasts import TWO_ARMS, Bools, Floats, Summary, monotone_drift_bound

GUARD_MARGIN = 1.2
"""The drift guard over the exact bound of what monotone drift inside one block can fake."""
CONTRADICTION_SCATTERS = 2
"""A block contradicts the pooled effect when its own points the other way by more than this many scatters."""


class Word(StrEnum):
    """The verdict. INVALID is never computed from times: it says that the times prove nothing."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


@dataclass(frozen=True)
class Checks:
    """The answers of the rule; arrays of shape [...] (one element per campaign)."""

    is_capped: Bools
    """Too few blocks, too coarse a timer, or a cap of the caller's: INCONCLUSIVE whatever follows."""
    timer_is_coarse: Bools
    interval_is_same: Bools
    """The interval used lies inside the minimum effect."""
    interval_with_alias_is_same: Bools
    """... and does so with the allowance for drift of an order that is not mirrored."""
    is_same: Bools
    is_directional: Bools
    """Never together with SAME: one needs the minimum effect, the other excludes it."""
    is_resolved: Bools
    """a. the interval excludes no effect"""
    reaches_min_effect: Bools
    """b."""
    blocks_agree: Bools
    """c. no block contradicts the pooled effect"""
    robust_agrees: Bools
    """d. the pair median has the effect's sign and at least half the minimum effect"""
    exceeds_drift: Bools
    """e. the effect is larger than the drift guard"""
    exceeds_balanced_guard: Bools
    """e would hold if the order were mirrored"""
    drift_is_seen: Bools
    curvature_is_seen: Bools


def reduction(effect: Floats) -> Floats:
    """Share of the baseline's time that is saved, 1 - exp(log effect); negative when the candidate is slower."""
    return np.asarray(-np.expm1(effect))


def drift_guard(arm_count: int = TWO_ARMS, *, is_balanced: bool = True) -> float:
    """How many mean drifts per slot an effect must exceed: 2 for two arms in mirrored order, else 4; 4.2 for three."""
    return GUARD_MARGIN * monotone_drift_bound(arm_count) * (1 if is_balanced else 2)


def check(summary: Summary, *, min_effect: float, tick_s: float, is_capped: bool = False) -> Checks:
    """Apply every check of the rule. ``min_effect`` is a share (0.01 = 1 %); ``is_capped`` is the caller's own cap."""
    effect, half_width = summary.effect, summary.half_width
    magnitude = np.abs(effect)
    timer_is_coarse = np.asarray(tick_s / summary.mean_seconds > min_effect / 2)
    capped = timer_is_coarse | is_capped | (summary.block_count < 2)
    interval_is_same = _inside(effect, half_width, min_effect)
    interval_with_alias_is_same = _inside(effect, half_width + summary.alias, min_effect)
    is_same = ~capped & interval_with_alias_is_same

    is_resolved = magnitude > half_width
    reaches_min_effect = np.abs(reduction(effect)) >= min_effect
    block_effects, pooled = summary.blocks.effect, effect[..., np.newaxis]
    opposes = np.sign(block_effects) != np.sign(pooled)
    is_clear = np.abs(block_effects) > CONTRADICTION_SCATTERS * summary.scatter[..., np.newaxis]
    blocks_agree = ~(opposes & is_clear).any(axis=-1)
    robust_agrees = (np.sign(summary.pair_median) == np.sign(effect)) & (
        np.abs(reduction(summary.pair_median)) >= min_effect / 2
    )
    guard = drift_guard(summary.arm_count, is_balanced=summary.is_balanced)
    exceeds_drift = magnitude > guard * summary.mean_drift
    residual_degrees = summary.block_count * (summary.arm_count - 1)
    curvature_limit = np.maximum(min_effect / 2, 4 * np.sqrt(summary.residual_sum / residual_degrees))
    return Checks(
        is_capped=capped,
        timer_is_coarse=timer_is_coarse,
        interval_is_same=interval_is_same,
        interval_with_alias_is_same=interval_with_alias_is_same,
        is_same=is_same,
        is_directional=~capped & is_resolved & reaches_min_effect & blocks_agree & robust_agrees & exceeds_drift,
        is_resolved=is_resolved,
        reaches_min_effect=reaches_min_effect,
        blocks_agree=blocks_agree,
        robust_agrees=robust_agrees,
        exceeds_drift=exceeds_drift,
        exceeds_balanced_guard=magnitude > drift_guard(summary.arm_count) * summary.mean_drift,
        drift_is_seen=summary.mean_drift > np.maximum(summary.scatter, min_effect / 10),
        curvature_is_seen=np.asarray(summary.curvature > curvature_limit),
    )


def words(summary: Summary, checks: Checks) -> NDArray[np.str_]:
    """The word of each campaign, an array of shape [...] of :class:`Word` values as strings."""
    direction = np.where(summary.effect < 0, Word.FASTER.value, Word.SLOWER.value)
    return np.where(
        checks.is_same,
        Word.SAME.value,
        np.where(checks.is_directional, direction, Word.INCONCLUSIVE.value),
    )


def _inside(effect: Floats, half_width: Floats, min_effect: float) -> Bools:
    """The interval of the reduction lies strictly inside (-min_effect, +min_effect)."""
    lower, upper = reduction(effect + half_width), reduction(effect - half_width)
    return np.asarray((lower > -min_effect) & (upper < min_effect))
