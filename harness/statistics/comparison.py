"""Blocks of A-B-B-A times in, every number of the report out: effect, interval, drift, companions, noise floor.

Of three or more arms (A B C C B A) one comparison is one candidate against the baseline; the scatter is that of all
runs (:mod:`fuseproof.harness.statistics.several_arms`).
Effects are kept as log ratios ln(candidate / baseline) and printed as reductions 1 - exp(log effect): +0.05 means 5 %
less time. The formulas are in :mod:`fuseproof.harness.statistics.contrasts`; the words in
:mod:`fuseproof.harness.statistics.verdict`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fuseproof.errors import FuseproofError, InvalidMeasurementError, UsageError
from fuseproof.harness.statistics.contrasts import (
    TWO_ARMS,
    Bools,
    Contrasts,
    Floats,
    Summary,
    contrasts,
    each_alpha,
    summarise,
)
from fuseproof.harness.statistics.detectable import estimated_scatter_factor, smallest_detectable_effect
from fuseproof.harness.statistics.several_arms import Halves, summarise_against

__all__ = [
    "ArmTimes",
    "Block",
    "BlockNumbers",
    "Comparison",
    "Contrasts",
    "Thresholds",
    "compare",
    "contrasts",
    "stack",
    "summary_of",
]

BASELINE = "A"
TWO_ARM_ORDERS = frozenset({"ABBA", "BAAB"})
FEWEST_BLOCKS_TO_PERMUTE = 3
MOST_BLOCKS_TO_PERMUTE = 16


@dataclass(frozen=True)
class Block:
    """The runs that belong together, in the order they ran: A-B-B-A, mirrored B-A-A-B, or A-B-C-C-B-A of three arms.

    ``seconds`` are in slot order; ``label`` names the block for a reader ("r1"); ``candidate`` is the arm that is held
    against A. Raises InvalidMeasurementError, naming block and slot, for a time that is not finite and above zero.
    """

    orientation: str
    seconds: tuple[float, ...]
    label: str = ""
    candidate: str = "B"

    def __post_init__(self) -> None:
        name = f"block {self.label}" if self.label else "a block"
        if not self._has_known_order:
            raise UsageError(
                f"The orientation of {name} is {self.orientation!r}; it must be ABBA or BAAB, or of more arms a "
                f"palindrome such as ABCCBA with the arms A and {self.candidate}.",
                next_step="Say in which order the runs were made.",
            )
        if len(self.seconds) != len(self.orientation):
            exactly = "four" if len(self.orientation) == 2 * TWO_ARMS else str(len(self.orientation))
            raise UsageError(
                f"{name.capitalize()} has {len(self.seconds)} times; a block has exactly {exactly}.",
                next_step="Leave incomplete blocks out, or run them again as a whole.",
            )
        for slot, (label, seconds) in enumerate(zip(self.slot_labels, self.seconds, strict=True), start=1):
            if not (math.isfinite(seconds) and seconds > 0):
                raise InvalidMeasurementError(
                    f"The time of slot {slot} ({label}) in {name} is {seconds!r} s; it must be finite and above 0.",
                    next_step="Run the whole block again in the same order, or leave it out.",
                )

    @property
    def _has_known_order(self) -> bool:
        order, half = self.orientation, self.half
        is_palindrome = len(order) % 2 == 0 and half + half[::-1] == order and len(set(half)) == len(half)
        return is_palindrome and self.candidate != BASELINE and {BASELINE, self.candidate} <= set(half)

    @property
    def half(self) -> str:
        """The arms in the order of the block's first half."""
        return self.orientation[: len(self.orientation) // 2]

    @property
    def slot_labels(self) -> tuple[str, ...]:
        """Which run stands in which slot: A1 B1 B2 A2, or B1 A1 A2 B2."""
        count = len(self.half)
        return tuple(f"{arm}{1 if slot < count else 2}" for slot, arm in enumerate(self.orientation))

    @property
    def pair(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The two runs of the baseline and the two of the candidate, in the order they ran, in seconds."""
        baseline, candidate = (
            (self.seconds[self.half.index(arm)], self.seconds[-1 - self.half.index(arm)])
            for arm in (BASELINE, self.candidate)
        )
        return baseline, candidate


@dataclass(frozen=True)
class Thresholds:
    """What the caller decides before looking: the minimum effect, the error level, the timer's resolution.

    ``min_effect`` is a share (0.01 = 1 %); ``alpha`` is 0.05 for a fixed number of blocks and smaller when the data
    are looked at more than once; ``tick_s`` is the step of the timer in seconds (0 for perf dumps, 0.01 for timers
    read from a log).
    """

    min_effect: float = 0.01
    alpha: float = 0.05
    tick_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.min_effect < 1:
            raise UsageError(
                f"The minimum effect is {self.min_effect!r}; it must be at least 0 and below 1 (0.01 is 1 %).",
                next_step="Give it as a share or with a percent sign: 1%.",
            )
        if not 0 < self.alpha < 1:
            raise UsageError(
                f"The error level alpha is {self.alpha!r}; it must lie between 0 and 1.",
                next_step="Use 0.05, or 0.05 divided by the number of planned looks.",
            )
        if not (math.isfinite(self.tick_s) and self.tick_s >= 0):
            raise UsageError(
                f"The timer's tick is {self.tick_s!r} s; it must be finite and not negative.",
                next_step="Use 0 for a timer finer than the noise.",
            )


@dataclass(frozen=True)
class BlockNumbers:
    """One block of a comparison."""

    label: str
    orientation: str
    baseline_mean_s: float
    candidate_mean_s: float
    mean_reduction: float
    """1 - mean(B) / mean(A): the form pull requests print."""
    reduction: float
    """1 - exp(log effect)."""
    log_effect: float
    drift_per_slot: float
    """Least-squares slope over the four slots, log units."""


@dataclass(frozen=True)
class ArmTimes:
    """All runs of one arm, in seconds."""

    mean_s: float
    geometric_mean_s: float
    """The mean that the reduction is made of: 1 - candidate / baseline of these two is exactly the headline."""
    median_s: float
    minimum_s: float


@dataclass(frozen=True)
class Comparison:
    """Every number of one metric of one cell. Reductions are shares of the baseline's time (0.05: 5 % less time)."""

    blocks: tuple[BlockNumbers, ...]
    baseline: ArmTimes
    candidate: ArmTimes
    is_balanced: bool
    """As many ABBA as BAAB blocks, give or take one (never with one block); of more arms: each has every place
    equally often."""
    degrees_of_freedom: int
    alpha: float
    min_effect: float
    tick_s: float

    log_effect: float
    """Mean over blocks of mean ln(candidate) - mean ln(baseline)."""
    reduction: float
    """1 - exp(log effect): the headline, positive when the candidate is faster."""
    speedup: float
    interval: tuple[float, float]
    """Printed interval of the reduction (lower, upper), from the scatter of the runs."""
    interval_used: tuple[float, float]
    """The interval the verdict rests on: scatter floored, plus the timer's tick, wider still where blocks differ."""
    half_width: float
    """Half width of the interval used, log units."""
    blocks_differ: bool
    """The F test: the blocks differ by more than their runs scatter (always False with one block)."""
    is_widened: bool
    """... and there are three or more, so the interval used rests on the spread between blocks: print both."""
    interval_resolution: float
    """t * scatter / sqrt(n), log units: what the interval resolves, not what the verdict finds."""
    smallest_detectable_effect: float | None
    """Reduction that such a campaign calls FASTER in 80 % of cases; None with one block; 1.0: none at all."""
    permutation_p: float | None
    """Two-sided p of swapping the labels of whole blocks; None below 3 blocks (no test) and above 16."""

    mean_reduction: float
    """1 - mean(all B) / mean(all A)."""
    pair_median_reduction: float
    """From the median of the 4n within-block ratios: drift-free and robust to tails; what the verdict looks at."""
    median_reduction: float
    """From the medians of the arms; not free of drift in mirrored order."""
    minimum_reduction: float
    """From the fastest run of each arm; not free of drift in mirrored order."""
    arms_are_separated: bool
    """One and the same arm won every block without overlap. Descriptive."""

    scatter: float
    """Scatter of one run, log units, at least 0.01 %."""
    scatter_raw: float
    noise_floor: float
    """Largest |x - y| / mean of two runs of one arm in one block, over both arms and all blocks."""
    noise_floor_median: float
    mean_drift_per_slot: float
    """Mean over blocks of |drift per slot|, log units."""
    drift_alias: float
    """What a monotone drift may have added to the effect, log units; 0 when the order is balanced."""

    arm_count: int = TWO_ARMS
    """How many arms the campaign has; each interval then is one of several that hold together."""
    arms_scatter_unevenly: bool = False
    """The two compared arms scatter more than the rest, and the interval used rests on their own scatter."""

    @property
    def interval_level(self) -> float:
        """The level of this one interval: 0.95 of two arms, 0.975 of three, so that all of them hold at 0.95."""
        return 1 - each_alpha(self.alpha, self.arm_count)

    @property
    def level_text(self) -> str:
        """``95 %``."""
        return f"{100 * (1 - self.alpha):g} %" if self.arm_count == TWO_ARMS else f"{100 * self.interval_level:.4g} %"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values: finite numbers, strings, lists, null."""
        values = asdict(self)
        if self.arm_count == TWO_ARMS:
            del values["arm_count"], values["arms_scatter_unevenly"]
        return values


def stack(blocks: Sequence[Block]) -> tuple[Floats, Bools]:
    """The blocks as arrays: seconds [n, 4] in slot order, and which blocks are mirrored, [n]."""
    seconds = np.array([block.seconds for block in blocks], dtype=np.float64).reshape(-1, 4)
    return seconds, np.array([block.orientation == "BAAB" for block in blocks], dtype=np.bool_)


def summary_of(blocks: Sequence[Block], thresholds: Thresholds) -> Summary:
    """The batch core's numbers for one campaign. Raises FuseproofError when there is no block.

    Of several arms all blocks must have the same ones and name the same candidate.
    """
    if not blocks:
        raise FuseproofError("There is no complete block to compare.", next_step="Run at least one whole block.")
    alpha, tick_s = thresholds.alpha, thresholds.tick_s
    if blocks[0].orientation in TWO_ARM_ORDERS:
        return summarise(*stack(blocks), alpha=alpha, tick_s=tick_s)
    letters = sorted(blocks[0].half)
    halves: Halves = np.array([[letters.index(arm) for arm in block.half] for block in blocks])
    seconds = np.array([block.seconds for block in blocks], dtype=np.float64)
    return summarise_against(seconds, halves, letters.index(blocks[0].candidate), alpha=alpha, tick_s=tick_s)


def compare(blocks: Sequence[Block], thresholds: Thresholds | None = None) -> Comparison:
    """Every number of the report for these blocks; no run is left out for its value."""
    thresholds = thresholds or Thresholds()
    summary = summary_of(blocks, thresholds)
    baseline, candidate = _pair(blocks)
    effect, half_width = float(summary.effect), float(summary.half_width)
    return Comparison(
        blocks=_block_numbers(blocks, summary),
        baseline=_arm_times(baseline),
        candidate=_arm_times(candidate),
        is_balanced=summary.is_balanced,
        degrees_of_freedom=summary.degrees_of_freedom,
        alpha=thresholds.alpha,
        min_effect=thresholds.min_effect,
        tick_s=thresholds.tick_s,
        log_effect=effect,
        reduction=_reduction(effect),
        speedup=1 - _reduction(-effect),
        interval=_interval(effect, float(summary.half_width_raw)),
        interval_used=_interval(effect, half_width),
        half_width=half_width,
        blocks_differ=bool(summary.blocks_differ),
        is_widened=bool(summary.is_widened),
        interval_resolution=float(summary.resolution),
        smallest_detectable_effect=_smallest_detectable(summary, thresholds),
        permutation_p=_permutation_p(summary.blocks.effect),
        mean_reduction=float(1 - candidate.mean() / baseline.mean()),
        pair_median_reduction=_reduction(float(summary.pair_median)),
        median_reduction=float(1 - np.median(candidate) / np.median(baseline)),
        minimum_reduction=float(1 - candidate.min() / baseline.min()),
        arms_are_separated=_arms_are_separated(baseline, candidate),
        scatter=float(summary.scatter),
        scatter_raw=float(summary.scatter_raw),
        noise_floor=float(summary.same_arm_spreads.max()),
        noise_floor_median=float(np.median(summary.same_arm_spreads)),
        mean_drift_per_slot=float(summary.mean_drift),
        drift_alias=float(summary.alias),
        arm_count=summary.arm_count,
        arms_scatter_unevenly=bool(summary.arms_scatter_unevenly),
    )


def _pair(blocks: Sequence[Block]) -> tuple[Floats, Floats]:
    """The runs of the baseline and of the candidate, each [n, 2] in seconds."""
    pairs = np.array([block.pair for block in blocks], dtype=np.float64)
    return pairs[:, 0], pairs[:, 1]


def _reduction(log_effect: float) -> float:
    # Cut at e^700: an interval from one wild block must stay a number that strict JSON can hold.
    return -math.expm1(min(log_effect, 700.0))


def _interval(effect: float, half_width: float) -> tuple[float, float]:
    return _reduction(effect + half_width), _reduction(effect - half_width)


def _block_numbers(blocks: Sequence[Block], summary: Summary) -> tuple[BlockNumbers, ...]:
    numbers = []
    for index, block in enumerate(blocks):
        baseline, candidate = _pair([block])
        effect = float(summary.blocks.effect[index])
        numbers.append(
            BlockNumbers(
                label=block.label,
                orientation=block.orientation,
                baseline_mean_s=float(baseline.mean()),
                candidate_mean_s=float(candidate.mean()),
                mean_reduction=float(1 - candidate.mean() / baseline.mean()),
                reduction=_reduction(effect),
                log_effect=effect,
                drift_per_slot=float(summary.blocks.drift_per_slot[index]),
            )
        )
    return tuple(numbers)


def _arm_times(runs: Floats) -> ArmTimes:
    return ArmTimes(
        mean_s=float(runs.mean()),
        geometric_mean_s=float(np.exp(np.log(runs).mean())),
        median_s=float(np.median(runs)),
        minimum_s=float(runs.min()),
    )


def _arms_are_separated(baseline: Floats, candidate: Floats) -> bool:
    candidate_wins = candidate.max(axis=-1) < baseline.min(axis=-1)
    baseline_wins = baseline.max(axis=-1) < candidate.min(axis=-1)
    return bool(candidate_wins.all() or baseline_wins.all())


def _smallest_detectable(summary: Summary, thresholds: Thresholds) -> float | None:
    if summary.block_count < 2:
        return None
    return float(
        smallest_detectable_effect(
            summary.scatter * estimated_scatter_factor(summary.block_count, summary.arm_count),
            summary.block_count,
            min_effect=thresholds.min_effect,
            alpha=thresholds.alpha,
            is_balanced=summary.is_balanced,
            arms=summary.arm_count,
        )
    )


def _permutation_p(block_effects: Floats) -> float | None:
    count = len(block_effects)
    if not FEWEST_BLOCKS_TO_PERMUTE <= count <= MOST_BLOCKS_TO_PERMUTE:
        return None
    signs = 1 - 2 * ((np.arange(2**count)[:, np.newaxis] >> np.arange(count)) & 1)
    sums = np.abs(signs @ block_effects)
    # The observed labelling is one of the 2^n; rounding must not lose it.
    return float((sums >= sums[0] * (1 - 1e-12)).mean())
