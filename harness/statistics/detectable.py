"""Planning: the smallest effect a campaign would find, and how many blocks a wanted effect needs.

Under normal noise the estimated effect and the estimated scatter are independent, so the chance that a true effect is
resolved *and* reaches the minimum effect is one integral over the distribution of the scatter. The target chances lie
a little above 80 %: the difference pays for the block, pair-median and drift checks. They, and the allowance for a
scatter that was itself estimated from few blocks, are calibrated so that the whole verdict reaches 80 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from fuseproof.errors import UsageError
from fuseproof.harness.statistics.contrasts import (
    TWO_ARMS,
    Floats,
    degrees_of_freedom_of,
    each_alpha,
    t_quantile,
)
from fuseproof.harness.statistics.decision import drift_guard
from fuseproof.schedules.order import MOST_ARMS

QUANTILE_COUNT = 200
MOST_PLANNED_BLOCKS = 12
"""Beyond this a larger workload or a quieter machine is the better answer."""

SEVERAL_ARMS_POWER = 0.9
"""Of interval and drift guard with three or more arms; what the checks of blocks and arms cost lies above 80 %."""

GUARD_SPREAD = 1.1
"""The drift guard rests on the drifts that were seen, which scatter too."""


@dataclass(frozen=True)
class BlockPlan:
    """How many blocks (even, mirrored in pairs) find an effect in 80 % of campaigns; or None and why there is none."""

    blocks: int | None
    reason: str
    next_step: str


def target_power(blocks: int, arms: int = TWO_ARMS) -> float:
    """The power to ask of the interval alone so that the whole verdict has 80 %."""
    if arms > TWO_ARMS:
        return SEVERAL_ARMS_POWER
    if blocks <= 2:
        return 0.81
    if blocks <= 5:
        return 0.84
    return 0.85 if blocks == 6 else 0.87


def estimated_scatter_factor(blocks: int, arms: int = TWO_ARMS) -> float:
    """By how much to inflate a scatter that was estimated from ``blocks`` blocks before planning with it.

    More arms estimate it better: what counts is the blocks of two arms that leave no more degrees of freedom.
    """
    if arms > TWO_ARMS:
        return estimated_scatter_factor((degrees_of_freedom_of(blocks, arms) + 1) // 2)
    return {1: 1.40, 2: 1.40, 3: 1.25, 4: 1.20}.get(blocks, 1.15)


def unbalanced_factor(blocks: int) -> float:
    """What an order without mirroring costs: its drift guard is twice as wide."""
    return {2: 1.05, 3: 1.15, 4: 1.25}.get(blocks, 1.5)


def interval_power(
    effect: ArrayLike,
    scatter: ArrayLike,
    blocks: int,
    *,
    min_effect: float = 0.01,
    alpha: float = 0.05,
    is_balanced: bool = True,
    arms: int = TWO_ARMS,
) -> Floats:
    """Chance that the interval excludes zero on the right side and the estimate reaches the minimum effect.

    ``effect`` is the true log effect (> 0), ``scatter`` the true scatter of one run in log units; they broadcast.
    """
    from scipy.special import ndtr

    resolved = np.maximum(_resolution_quantiles(blocks, alpha, arms), _usual_guard(arms, is_balanced=is_balanced))
    effect, scatter = np.asarray(effect)[..., np.newaxis], np.asarray(scatter)[..., np.newaxis]
    threshold = np.maximum(-math.log1p(-min_effect), resolved * scatter)
    power: Floats = ndtr((effect - threshold) * math.sqrt(blocks) / scatter).mean(axis=-1)
    return power


def smallest_detectable_effect(
    scatter: ArrayLike,
    blocks: int,
    *,
    min_effect: float = 0.01,
    alpha: float = 0.05,
    is_balanced: bool = True,
    arms: int = TWO_ARMS,
) -> Floats:
    """The smallest reduction (a share of the baseline's time) called FASTER in 80 % of campaigns.

    ``scatter`` is the scatter of one run in log units (> 0), any shape; when it was estimated, multiply it by
    :func:`estimated_scatter_factor` first. Needs two blocks or more. 1.0 means that no reduction, however large, is
    found reliably.
    """
    from scipy.optimize.elementwise import find_root

    if blocks < 2:
        raise ValueError("one block is never directional, so it has no smallest detectable effect")
    scatter = np.asarray(scatter, dtype=np.float64)
    widest = max(_resolution_quantiles(blocks, alpha, arms)[-1], _usual_guard(arms, is_balanced=is_balanced))
    threshold = np.maximum(-math.log1p(-min_effect), widest * scatter)
    target = target_power(blocks, arms)

    def missing_power(effect: Floats, spread: Floats) -> Floats:
        power = interval_power(
            effect, spread, blocks, min_effect=min_effect, alpha=alpha, is_balanced=is_balanced, arms=arms
        )
        return np.asarray(power - target)

    root = find_root(
        missing_power,
        (np.zeros_like(scatter), threshold + 3 * scatter),
        args=(scatter,),
        tolerances={"xrtol": 1e-6, "frtol": 1e-9},
    )
    found = -np.expm1(-root.x) * (1.0 if is_balanced or arms > TWO_ARMS else unbalanced_factor(blocks))
    return np.asarray(np.minimum(found, 1.0))


def plan_for(
    effect: float, scatter: float, *, min_effect: float = 0.01, alpha: float = 0.05, arms: int = TWO_ARMS
) -> BlockPlan:
    """The fewest blocks (mirrored order; even, or as many times as there are arms) that find ``effect`` in 80 %.

    ``effect`` and ``min_effect`` are shares (0.015 = 1.5 %), ``scatter`` the known scatter of one run as a share.
    Raises UsageError for values outside (0, 1).
    """
    for name, value in (("effect", effect), ("scatter", scatter)):
        if not 0 < value < 1:
            raise UsageError(
                f"The {name} to plan for is {value!r}; it must be above 0 and below 1 (0.015 is 1.5 %).",
                next_step="Give it as a share or with a percent sign.",
            )
    if effect <= min_effect:
        return BlockPlan(
            blocks=None,
            reason=f"an effect of {_percent(effect)} is found in at most half of all campaigns, however many blocks "
            f"they have, because the minimum effect is {_percent(min_effect)}",
            next_step=f"Lower the minimum effect: --min-effect {100 * effect / 2:g}%; then "
            f"{_then(plan_for(effect, scatter, min_effect=effect / 2, alpha=alpha, arms=arms))}.",
        )
    numbers, is_balanced = planned_numbers(arms)
    for blocks in numbers:
        found = float(
            smallest_detectable_effect(
                scatter, blocks, min_effect=min_effect, alpha=alpha, arms=arms, is_balanced=is_balanced
            )
        )
        if found <= effect:
            return BlockPlan(
                blocks=blocks,
                reason=f"{blocks} blocks find {_percent(found)} in 80 % of campaigns when one run scatters by "
                f"{_percent(scatter)}",
                next_step=f"Run --blocks {blocks}.",
            )
    return BlockPlan(
        blocks=None,
        reason=f"{blocks} blocks, the most that are advised, find only {_percent(found)} when one run scatters by "
        f"{_percent(scatter)}",
        next_step="Use a larger workload (more steps or pixels) or a quieter timer (worker or denoise), not more "
        "blocks.",
    )


def planned_numbers(arms: int) -> tuple[range, bool]:
    """The numbers of blocks that are advised, and whether every arm then has every place equally often.

    An ablation has more arms than anybody runs blocks.
    """
    if arms > MOST_ARMS:
        return range(2, MOST_PLANNED_BLOCKS + 1, 2), False
    return range(arms, MOST_PLANNED_BLOCKS + 1, arms), True


def _then(plan: BlockPlan) -> str:
    """What a plan says, within another's next step."""
    return plan.reason if plan.blocks is None else f"{plan.reason}: --blocks {plan.blocks}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def fewest_blocks(
    effect: float, scatter: float, *, min_effect: float = 0.01, alpha: float = 0.05, arms: int = TWO_ARMS
) -> int | None:
    """The same number as :func:`plan_for` without its words; None where no number of blocks is advised.

    Asks for the power at the effect instead of searching for the effect of that power.
    """
    if effect <= min_effect:
        return None
    log_effect = -math.log1p(-effect)
    numbers, is_balanced = planned_numbers(arms)
    for blocks in numbers:
        power = interval_power(
            log_effect, scatter, blocks, min_effect=min_effect, alpha=alpha, arms=arms, is_balanced=is_balanced
        )
        if power >= target_power(blocks, arms):
            return blocks
    return None


@lru_cache(maxsize=64)
def _resolution_quantiles(blocks: int, alpha: float, arms: int) -> Floats:
    """Half width of the interval over the true scatter, at the midpoints of equally likely slices; ascending."""
    from scipy.special import gammaincinv

    degrees_of_freedom = degrees_of_freedom_of(blocks, arms)
    slices = (np.arange(QUANTILE_COUNT) + 0.5) / QUANTILE_COUNT
    chi_squared = 2 * gammaincinv(degrees_of_freedom / 2, slices)
    relative_scatter = np.sqrt(chi_squared / degrees_of_freedom)
    quantiles = np.asarray(
        t_quantile(each_alpha(alpha, arms), degrees_of_freedom) * relative_scatter / math.sqrt(blocks)
    )
    quantiles.setflags(write=False)
    return quantiles


def _usual_guard(arms: int, *, is_balanced: bool) -> float:
    """What the drift guard asks for under noise alone, over the scatter; 0 with two arms, whose targets pay for it."""
    if arms == TWO_ARMS:
        return 0.0
    squares = 2 * arms * (4 * arms**2 - 1) / 12
    return GUARD_SPREAD * drift_guard(arms, is_balanced=is_balanced) * math.sqrt(2 / math.pi / squares)
