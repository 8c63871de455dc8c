"""Why a verdict is what it is: a code a program can match, a sentence with the numbers, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fuseproof.harness.statistics.comparison import Block, Comparison
from fuseproof.harness.statistics.contrasts import TWO_ARMS, monotone_drift_bound
from fuseproof.harness.statistics.decision import drift_guard
from fuseproof.harness.statistics.detectable import estimated_scatter_factor, plan_for, planned_numbers
from fuseproof.harness.statistics.outliers import OddRun, block_name

CONTENTION = "CONTENTION"
"""Others used the machine, or a GPU: a cap that the caller finds."""
DISAGREEMENTS = {
    "MEAN_MEDIAN_DISAGREE": "arithmetic means and pair median disagree",
    "MEANS_DISAGREE": "arithmetic and geometric means disagree",
}
"""By code, which of the three estimates of an effect tell different stories."""
COMFORTABLE_EFFECTS = 1.5
"""An effect a little above the minimum is worth planning for; one exactly at the minimum is found half the time."""


@dataclass(frozen=True)
class Reason:
    """``code`` for programs, ``detail`` with the values seen, ``next_step`` for whoever wants a better verdict."""

    code: str
    detail: str
    next_step: str


def percent(share: float, digits: int = 2) -> str:
    """0.0538 as "5.38 %", with a true minus sign."""
    return f"{100 * share:.{digits}f} %".replace("-", "−")


def signed_percent(share: float, digits: int = 2) -> str:
    """0.0238 as "+2.38 %"; a change that rounds to nothing has no sign."""
    text = percent(share, digits)
    return f"+{text}" if share > 0 and float(text.removesuffix(" %")) else text.replace("−0.00 %", "0.00 %")


def share_of_log(value: float) -> float:
    """A change in log units as a share: −0.477 is −38 %, not −47.7 %."""
    return math.expm1(min(value, 700.0))


def share_of_scatter(scatter: float) -> float:
    """A standard deviation in log units as a share of the mean of such times (their coefficient of variation)."""
    return math.sqrt(math.expm1(min(scatter**2, 700.0)))


def change(reduction: float) -> str:
    """A reduction in words that cannot be read the wrong way round."""
    return f"{percent(abs(reduction))} {'less' if reduction >= 0 else 'more'} time"


def too_few_blocks(count: int, arms: int = TWO_ARMS) -> Reason:
    if arms > TWO_ARMS:
        detail = "1 block of several arms tests nothing: its numbers describe, they do not decide"
        return Reason("TOO_FEW_BLOCKS", detail, f"Run as many blocks as there are arms: --blocks {arms}.")
    detail = "1 block tests nothing: its numbers describe, they do not decide" if count else "no complete block"
    return Reason("TOO_FEW_BLOCKS", detail, "Run two blocks, the second mirrored: --blocks 2.")


def timer_resolution(comparison: Comparison) -> Reason:
    mean_s = (comparison.baseline.mean_s + comparison.candidate.mean_s) / 2
    advice = "Use a finer timer (worker or denoise)"
    if comparison.min_effect > 0:
        advice += f", or a workload of at least {2 * comparison.tick_s / comparison.min_effect:.3g} s a run"
    return Reason(
        "TIMER_RESOLUTION",
        f"the timer's tick of {comparison.tick_s:g} s is {percent(comparison.tick_s / mean_s)} of a run, more than "
        f"half the minimum effect of {percent(comparison.min_effect)}",
        f"{advice}.",
    )


def blocks_disagree(blocks: Sequence[Block], comparison: Comparison) -> Reason:
    listed = ", ".join(
        f"{block_name(blocks, index)}: {percent(block.mean_reduction)}" for index, block in enumerate(comparison.blocks)
    )
    return Reason(
        "BLOCKS_DISAGREE",
        f"the blocks' reductions differ by more than their runs scatter ({listed})",
        "Check that every block ran the same commits, settings and clocks, then run more blocks: "
        f"--blocks {_more_blocks(len(blocks), 4, comparison.arm_count)}.",
    )


def spread_exceeds_effect(comparison: Comparison) -> Reason:
    lower, upper = comparison.interval_used
    return Reason(
        "SPREAD_EXCEEDS_EFFECT",
        f"the interval of the reduction, [{percent(lower)}, {percent(upper)}], includes no effect; one run scatters by "
        f"{percent(share_of_scatter(comparison.scatter))}",
        _spread_advice(comparison),
    )


def below_min_effect(comparison: Comparison) -> Reason:
    return Reason(
        "BELOW_MIN_EFFECT",
        f"{change(comparison.reduction)} is resolved but below the minimum effect of {percent(comparison.min_effect)}, "
        "and the interval reaches beyond it",
        f"{_spread_advice(comparison)} Or state beforehand that a smaller effect matters: --min-effect.",
    )


def robust_disagrees(comparison: Comparison) -> Reason:
    return Reason(
        "ROBUST_DISAGREES",
        f"the means say {change(comparison.reduction)}, the median of the paired ratios "
        f"{change(comparison.pair_median_reduction)}",
        "Look for runs with a tail in the raw table; quote a timer without tails (worker or denoise), or run "
        f"--blocks {_more_blocks(len(comparison.blocks), 4, comparison.arm_count)}.",
    )


def drift(comparison: Comparison, code: str = "DRIFT") -> Reason:
    arms, drift = comparison.arm_count, comparison.mean_drift_per_slot
    factor = drift_guard(arms, is_balanced=comparison.is_balanced)
    drifts = ", ".join(signed_percent(share_of_log(block.drift_per_slot)) for block in comparison.blocks)
    sizes = (math.copysign(times * drift, comparison.log_effect) for times in (monotone_drift_bound(arms), factor))
    faked, guard = (percent(abs(share_of_log(size))) for size in sizes)
    relation = "is more than that" if abs(comparison.log_effect) > factor * drift else "is not"
    return Reason(
        code,
        f"the times of successive slots change by {drifts} a slot; such a drift can look like an effect of {faked} in "
        f"one block, so an effect counts from {guard} on ({factor:g} mean drifts), and {change(comparison.reduction)} "
        f"{relation}",
        "Warm up until two successive slots agree and wait for a quiet machine, then measure again in mirrored order.",
    )


def order_not_mirrored(comparison: Comparison) -> Reason:
    arms = comparison.arm_count
    enough = _more_blocks(len(comparison.blocks) - 1, 2, arms)
    every_place = f"Give every arm every place equally often: --order mirrored, --blocks {enough}."
    return Reason(
        "ORDER_NOT_MIRRORED",
        f"the blocks ran {' '.join(block.orientation for block in comparison.blocks)}, so drift alone may look like an "
        f"effect of up to {percent(comparison.drift_alias)}",
        "Mirror every second block: --order mirrored." if arms == TWO_ARMS else every_place,
    )


def curved_drift(comparison: Comparison) -> Reason:
    arms = comparison.arm_count
    number_of_blocks = "an even number of blocks" if arms == TWO_ARMS else f"a multiple of {arms} blocks"
    by_order = {
        order: [block.reduction for block in comparison.blocks if block.orientation == order]
        for order in sorted({block.orientation for block in comparison.blocks})
    }
    means = ", ".join(f"{order} {percent(math.fsum(values) / len(values))}" for order, values in by_order.items())
    return Reason(
        "CURVED_DRIFT",
        f"the reduction depends on the order of the slots ({means}): the drift is curved",
        f"Warm up until two successive slots agree, then measure again with {number_of_blocks}.",
    )


def tail_outlier(run: OddRun, blocks: Sequence[Block]) -> Reason:
    return Reason(
        "TAIL_OUTLIER",
        f"{run.place(blocks)} took {run.value_s:.6g} s against {run.usual_s:.6g} s in the arm's other runs",
        "Keep the run and read its log; quote a timer without tails (worker or denoise), or run more blocks.",
    )


def first_slot_slow(run: OddRun, blocks: Sequence[Block]) -> Reason:
    return Reason(
        "FIRST_SLOT_SLOW",
        f"{run.place(blocks)} took {run.value_s:.6g} s, every other run of its arm at most {run.usual_s:.6g} s",
        "Discard more warm-up slots, until two successive ones agree: warmup_slots = 2 in the plan.",
    )


def post_worker_tail(run: OddRun, blocks: Sequence[Block]) -> Reason:
    return Reason(
        "POST_WORKER_TAIL",
        f"{run.place(blocks)}: post-worker gap {run.value_s:.2f} s against {run.usual_s:.2f} s",
        "The delay came after the work (saving, cleaning up): quote the worker timer.",
    )


def no_point_estimate(warnings: Sequence[Reason]) -> str | None:
    """Which estimates disagree, so that none of them may stand for the effect; None where they agree."""
    codes = {warning.code for warning in warnings}
    return next((text for code, text in DISAGREEMENTS.items() if code in codes), None)


def mean_median_disagree(comparison: Comparison) -> Reason:
    return _disagreement("MEAN_MEDIAN_DISAGREE", comparison)


def means_disagree(comparison: Comparison) -> Reason:
    return _disagreement("MEANS_DISAGREE", comparison)


def _disagreement(code: str, comparison: Comparison) -> Reason:
    lower, upper = comparison.interval_used
    return Reason(
        code,
        f"the reduction is {percent(comparison.mean_reduction)} by arithmetic means, {percent(comparison.reduction)} "
        f"by geometric ones and {percent(comparison.pair_median_reduction)} by the pair median",
        f"Do not quote the mean: quote the interval [{percent(lower)}, {percent(upper)}] and the pair median.",
    )


def resolved_below_min_effect(comparison: Comparison) -> Reason:
    return Reason(
        "RESOLVED_BELOW_MIN_EFFECT",
        f"a difference of {percent(abs(comparison.reduction))} is resolved, below the minimum of "
        f"{percent(comparison.min_effect)}",
        "Quote it as detected but below the minimum effect.",
    )


def between_block_interval(comparison: Comparison) -> Reason:
    (lower, upper), (wide_lower, wide_upper) = comparison.interval, comparison.interval_used
    return Reason(
        "BETWEEN_BLOCK_INTERVAL",
        f"the blocks differ by more than their runs scatter; between blocks the interval is [{percent(wide_lower)}, "
        f"{percent(wide_upper)}], within them [{percent(lower)}, {percent(upper)}]",
        "Quote the wider interval, and check that every block measured the same thing.",
    )


def arms_scatter_unevenly(comparison: Comparison) -> Reason:
    lower, upper = comparison.interval_used
    return Reason(
        "ARMS_SCATTER_UNEVENLY",
        "the baseline and this candidate scatter more than the campaign's other arms, so the verdict rests on their "
        f"own scatter: [{percent(lower)}, {percent(upper)}]",
        "Quote that interval, and look for what makes the other arms' times so steady.",
    )


def looks(comparison: Comparison) -> Reason:
    return Reason(
        "LOOKS",
        f"α = {comparison.alpha:g}: each interval is a {comparison.level_text} one, because the data are "
        "looked at more than once",
        "Do not add blocks beyond the plan.",
    )


def _more_blocks(current: int, wanted: int, arms: int = TWO_ARMS) -> int:
    """At least ``wanted`` blocks, more than ``current``, and even; of more arms a multiple of their number."""
    return -(-max(wanted, current + 1) // arms) * arms


def _spread_advice(comparison: Comparison) -> str:
    """How many blocks an effect of this size, or a little above the minimum, would need at this scatter."""
    count = len(comparison.blocks)
    effect = max(abs(comparison.reduction), COMFORTABLE_EFFECTS * comparison.min_effect)
    scatter = comparison.scatter * estimated_scatter_factor(count, comparison.arm_count)
    quieter = "Use a larger workload, a quieter machine, or the worker timer where this is the client's."
    if not (comparison.min_effect < effect < 1 and scatter < 1):
        return quieter
    plan = plan_for(
        effect, scatter, min_effect=comparison.min_effect, alpha=comparison.alpha, arms=comparison.arm_count
    )
    if plan.blocks is None:
        return quieter
    blocks = max(plan.blocks, _more_blocks(count, plan.blocks, planned_numbers(comparison.arm_count)[0].step))
    return f"At this scatter an effect of {percent(effect)} needs about {blocks} blocks: --blocks {blocks}."
