"""Seeded campaigns of three and more arms with known truth; log times are [campaigns, blocks, 2 * arms]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fuseproof.harness.statistics.decision import check, words
from fuseproof.harness.statistics.several_arms import summarise_against
from fuseproof.schedules.order import LETTERS, orientation
from tests.harness.simulated_campaigns import CAMPAIGNS

Floats = NDArray[np.float64]
Scenario = Callable[[np.random.Generator, int, int, float], Floats]
DIRECTIONAL = ("FASTER", "SLOWER")


def halves(blocks: int, arms: int, order: str) -> NDArray[np.int_]:
    """The first half of each block as the product would run it, arms as numbers."""
    ways = [orientation(block, order, arms)[:arms] for block in range(blocks)]
    return np.array([[LETTERS.index(arm) for arm in way] for way in ways])  # type: ignore[arg-type]


def slot_arms(rows: NDArray[np.int_]) -> NDArray[np.int_]:
    """Which arm runs in each slot."""
    return np.concatenate([rows, rows[:, ::-1]], axis=1)


def judged(log_times: Floats, rows: NDArray[np.int_]) -> list[NDArray[np.str_]]:
    """The product's words, one array a candidate."""
    found = []
    for candidate in range(1, rows.shape[1]):
        summary = summarise_against(np.exp(log_times), rows, candidate, alpha=0.05, tick_s=0.0)
        found.append(words(summary, check(summary, min_effect=0.01, tick_s=0.0)))
    return found


def family_wise(log_times: Floats, rows: NDArray[np.int_]) -> float:
    """Share of campaigns, in per cent, in which any candidate is called FASTER or SLOWER."""
    return 100 * float(np.any([np.isin(found, DIRECTIONAL) for found in judged(log_times, rows)], axis=0).mean())


def white(generator: np.random.Generator, blocks: int, arms: int, cv: float) -> Floats:
    return generator.normal(0, cv, (CAMPAIGNS, blocks, 2 * arms))


def drifting(shape: Callable[[NDArray[np.int_], int], Floats]) -> Scenario:
    """White noise on a drift of the slot's number in the campaign, from 0, and of the slots in a block."""

    def scenario(generator: np.random.Generator, blocks: int, arms: int, cv: float) -> Floats:
        slot = np.arange(2 * arms * blocks).reshape(blocks, 2 * arms)
        return white(generator, blocks, arms, cv) + shape(slot, 2 * arms)

    return scenario


def tails(generator: np.random.Generator, blocks: int, arms: int, cv: float) -> Floats:
    times = white(generator, blocks, arms, cv)
    excess = np.log1p(generator.uniform(0.2, 1.5, times.shape))
    return times + np.where(generator.random(times.shape) < 0.02, excess, 0)


def autoregressive(generator: np.random.Generator, blocks: int, arms: int, cv: float) -> Floats:
    times = white(generator, blocks, arms, cv).reshape(CAMPAIGNS, -1)
    for slot in range(1, times.shape[1]):
        times[:, slot] = 0.5 * times[:, slot - 1] + np.sqrt(0.75) * times[:, slot]
    return times.reshape(CAMPAIGNS, blocks, 2 * arms)
