"""Seeded campaigns with known truth: the disturbances that a verdict must not mistake for an effect.

A scenario maps (generator, blocks, cv) to log times of shape [campaigns, blocks, 4] in slot order; slots are counted
over the whole campaign from 0. Drift sizes are log units: 0.01 is 1 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fuseproof.harness.statistics.contrasts import Summary, summarise
from fuseproof.harness.statistics.decision import check, words

Floats = NDArray[np.float64]
Scenario = Callable[[np.random.Generator, int, float], Floats]

CAMPAIGNS = 10_000
MIRRORED_ORDER = ("ABBA", "BAAB", "BAAB", "ABBA", "BAAB", "ABBA", "ABBA", "BAAB")


def is_mirrored(blocks: int, order: str) -> NDArray[np.bool_]:
    return np.array([order == "mirrored" and MIRRORED_ORDER[block] == "BAAB" for block in range(blocks)])


def candidate_sign(blocks: int, order: str) -> Floats:
    """+1/2 in B slots and -1/2 in A slots, [blocks, 4]: times an effect, it shifts the candidate by that effect."""
    sign = np.where(is_mirrored(blocks, order)[:, np.newaxis], [[1, -1, -1, 1]], [[-1, 1, 1, -1]])
    return sign / 2


@dataclass(frozen=True)
class Shares:
    """Share of campaigns per word, in per cent."""

    faster: float
    slower: float
    same: float

    @property
    def directional(self) -> float:
        return self.faster + self.slower


def judge(
    log_times: Floats, order: str, *, min_effect: float = 0.01, alpha: float = 0.05, tick_s: float = 0.0
) -> tuple[NDArray[np.str_], Summary]:
    """The product's words for these campaigns, and the numbers behind them."""
    mirrored = is_mirrored(log_times.shape[-2], order)
    summary = summarise(np.exp(log_times), mirrored, alpha=alpha, tick_s=tick_s)
    return words(summary, check(summary, min_effect=min_effect, tick_s=tick_s)), summary


def shares(log_times: Floats, order: str, *, min_effect: float = 0.01, alpha: float = 0.05) -> Shares:
    found, _ = judge(log_times, order, min_effect=min_effect, alpha=alpha)
    faster, slower, same = (100 * float((found == word).mean()) for word in ("FASTER", "SLOWER", "SAME"))
    return Shares(faster, slower, same)


def white(generator: np.random.Generator, blocks: int, cv: float) -> Floats:
    return generator.normal(0, cv, (CAMPAIGNS, blocks, 4))


def slots(blocks: int) -> NDArray[np.int_]:
    return np.arange(4 * blocks).reshape(blocks, 4)


def drifting(shape: Callable[[NDArray[np.int_]], Floats]) -> Scenario:
    return lambda generator, blocks, cv: white(generator, blocks, cv) + shape(slots(blocks))


def linear(per_slot: float) -> Scenario:
    return drifting(lambda slot: per_slot * slot)


def quadratic(per_square: float) -> Scenario:
    return drifting(lambda slot: per_square * slot**2)


def settling(size: float, slots_to_settle: float) -> Scenario:
    return drifting(lambda slot: size * np.exp(-slot / slots_to_settle))


def cold_campaign(size: float) -> Scenario:
    return drifting(lambda slot: size * (slot == 0))


def cold_blocks(size: float) -> Scenario:
    return drifting(lambda slot: size * (slot % 4 == 0))


def tails(share: float, smallest: float, largest: float) -> Scenario:
    def scenario(generator: np.random.Generator, blocks: int, cv: float) -> Floats:
        times = white(generator, blocks, cv)
        excess = np.log1p(generator.uniform(smallest, largest, times.shape))
        return times + np.where(generator.random(times.shape) < share, excess, 0)

    return scenario


def autoregressive(correlation: float) -> Scenario:
    """Each run remembers the one before it; the scatter of a single run is the cv."""

    def scenario(generator: np.random.Generator, blocks: int, cv: float) -> Floats:
        times = white(generator, blocks, cv).reshape(CAMPAIGNS, -1)
        for slot in range(1, times.shape[1]):
            times[:, slot] = correlation * times[:, slot - 1] + np.sqrt(1 - correlation**2) * times[:, slot]
        return times.reshape(CAMPAIGNS, blocks, 4)

    return scenario


def random_walk(step: float) -> Scenario:
    def scenario(generator: np.random.Generator, blocks: int, cv: float) -> Floats:
        walk = generator.normal(0, step, (CAMPAIGNS, 4 * blocks)).cumsum(axis=1)
        return white(generator, blocks, cv) + walk.reshape(CAMPAIGNS, blocks, 4)

    return scenario


def log_normal(shape: float) -> Scenario:
    """One-sided noise, scaled so that its standard deviation is the cv."""

    def scenario(generator: np.random.Generator, blocks: int, cv: float) -> Floats:
        noise = np.exp(shape * generator.normal(size=(CAMPAIGNS, blocks, 4)))
        mean = np.exp(shape**2 / 2)
        return np.log1p(cv * (noise - mean) / (mean * np.sqrt(np.expm1(shape**2))))

    return scenario


def bimodal(size: float, share: float) -> Scenario:
    def scenario(generator: np.random.Generator, blocks: int, cv: float) -> Floats:
        times = white(generator, blocks, cv)
        return times + size * (generator.random(times.shape) < share)

    return scenario


def arm_by_block(spread: float, order: str) -> Scenario:
    """The candidate's true effect differs from block to block, around zero."""

    def scenario(generator: np.random.Generator, blocks: int, cv: float) -> Floats:
        effects = generator.normal(0, spread, (CAMPAIGNS, blocks, 1))
        return white(generator, blocks, cv) + effects * candidate_sign(blocks, order)

    return scenario


def one_bad_block(size: float, order: str) -> Scenario:
    def scenario(generator: np.random.Generator, blocks: int, cv: float) -> Floats:
        is_bad = np.arange(blocks)[:, np.newaxis] == 0
        return white(generator, blocks, cv) + size * is_bad * (candidate_sign(blocks, order) > 0)

    return scenario


def decaying_blocks(size: float, discarded: int) -> Scenario:
    """Every block restarts cold and settles by a factor e per slot, after some discarded slots."""
    return drifting(lambda slot: size * np.exp(-(slot % 4 + discarded)))
