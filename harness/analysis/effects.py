"""An effect with its interval in words, and whether a single number may stand for it."""

from __future__ import annotations

from dataclasses import replace

from fuseproof.harness.number_format import interval, latency_change, number, percent
from fuseproof.harness.statistics.comparison import Comparison
from fuseproof.harness.statistics.reasons import Reason, no_point_estimate
from fuseproof.harness.statistics.verdict import Verdict, Word

DIRECTIONAL = frozenset({Word.FASTER, Word.SLOWER})
WIDEST_SHOWN = 1.0
"""Half width of a reduction's interval, as a share, that one block may still print."""
WIDE = f"wider than ±{100 * WIDEST_SHOWN:g} %"


def percent_text(share: float | None) -> str:
    """A share as ``5.80 %``; tables of blocks write ``5.80%``."""
    return percent(share).replace("%", " %")


def means_text(comparison: Comparison) -> str:
    """``geometric means 5.6090 → 5.2811 s``: those whose ratio is the effect beside them."""
    baseline_s, candidate_s = comparison.baseline.geometric_mean_s, comparison.candidate.geometric_mean_s
    return f"geometric means {number(baseline_s, 4)} → {number(candidate_s, 4)} s"


def interval_text(
    comparison: Comparison, bounds: tuple[float, float], digits: int = 2, *, is_ablation: bool = False
) -> str:
    """``[5.29, 6.32]``; from one block, an interval wider than the effect can be is only said to be wide.

    So it is of an ablation, however many degrees of freedom its many arms give to one block.
    """
    if is_too_wide(comparison, bounds, is_ablation=is_ablation):
        return WIDE
    return interval(*bounds, digits)


def is_too_wide(comparison: Comparison, bounds: tuple[float, float], *, is_ablation: bool = False) -> bool:
    """Whether an interval from one block, or of an ablation, says nothing at all."""
    lower, upper = bounds
    return (is_ablation or comparison.degrees_of_freedom == 1) and upper - lower >= 2 * WIDEST_SHOWN


def level_text(comparison: Comparison) -> str:
    """``95 % interval``: the level at which the interval was made, 99 % for blocks that nobody planned."""
    return f"{comparison.level_text} interval"


def interval_name(comparison: Comparison) -> str:
    """The level of the interval used, and what made it wider than the scatter of the runs does."""
    widened = [
        *(["between blocks, which differ by more than their runs scatter"] if comparison.is_widened else []),
        *([f"with the timer's step of {comparison.tick_s:g} s"] if comparison.tick_s else []),
    ]
    return ", ".join([level_text(comparison), *widened])


def _bounds(comparison: Comparison, bounds: tuple[float, float], *, is_ablation: bool = False) -> str:
    text = interval_text(comparison, bounds, is_ablation=is_ablation)
    return text if text.endswith("%") else f"{text} %"


def saved_text(verdict: Verdict) -> str:
    """``time saved 3.64 % (1.038× faster), 95 % interval [2.10, 5.18] %, 2 blocks (df 75)``.

    One sign: what saves time is positive, in the effect and in its interval, which is the one that the verdict rests
    on. An interval that says nothing is only said to be wide, and no single number stands beside it.
    """
    comparison = verdict.comparison
    if comparison is None:
        return "no number"
    bounds = _bounds(comparison, comparison.interval_used, is_ablation=True)
    where = f"{interval_name(comparison)}: {bounds}, {block_text(comparison)}"
    doubt = point_doubt(verdict, is_ablation=True)
    if doubt is not None:
        return f"time saved: no single number ({doubt}), {where}"
    _, _, factor = latency_change(comparison.reduction, directional=verdict.word in DIRECTIONAL).rpartition(" latency ")
    return f"time saved {percent_text(comparison.reduction)} {factor}, {where}"


def in_words_where_wide(reason: Reason, comparison: Comparison) -> Reason:
    """The reason of an ablation's verdict without the ends of an interval that says nothing."""
    lower, upper = comparison.interval_used
    if not is_too_wide(comparison, (lower, upper), is_ablation=True):
        return reason
    return replace(reason, detail=reason.detail.replace(f", [{percent(lower)}, {percent(upper)}],", f" is {WIDE} and"))


def effect_text(verdict: Verdict, *, is_judged: bool = True) -> str:
    """The effect with its interval; without a point estimate where means and medians disagree.

    Without a word (``is_judged`` False) nothing is called faster or slower.
    """
    comparison = verdict.comparison
    if comparison is None:
        return "no number"
    level = level_text(comparison)
    blocks = block_text(comparison)
    doubt = point_doubt(verdict)
    if doubt is not None:
        bounds = _bounds(comparison, comparison.interval_used)
        return (
            f"{level} of the reduction {bounds}, pair median {percent_text(comparison.pair_median_reduction)} "
            f"(no point estimate: {doubt}), {blocks}"
        )
    change = latency_change(comparison.reduction, directional=is_judged and verdict.word in DIRECTIONAL)
    bounds = f"{level} of the reduction {_bounds(comparison, comparison.interval)}"
    if comparison.is_widened:
        bounds += f", between blocks {_bounds(comparison, comparison.interval_used)}"
    return f"{change}, {bounds}, {blocks}"


def point_doubt(verdict: Verdict, *, is_ablation: bool = False) -> str | None:
    """Why no single number may stand for the effect; None where one may."""
    comparison = verdict.comparison
    if comparison is None:
        return "no complete block"
    doubt = no_point_estimate(verdict.warnings)
    if doubt is not None:
        return doubt
    is_wide = is_too_wide(comparison, comparison.interval_used, is_ablation=is_ablation)
    return "the interval is too wide" if is_wide else None


def block_text(comparison: Comparison) -> str:
    """``2 blocks (df 3)``."""
    blocks = len(comparison.blocks)
    if blocks == 1:
        return "1 block"
    return f"{blocks} blocks (df {comparison.degrees_of_freedom})"
