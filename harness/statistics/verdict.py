"""FASTER, SLOWER, SAME or INCONCLUSIVE, with the reasons for it and what to do next.

The word comes from :mod:`fuseproof.harness.statistics.decision`; this module puts the reasons in order (the first one
is the headline and picks the next step) and adds the warnings, which are printed beside any word and never change it.
No word is ever given without its numbers: the :class:`Comparison` travels with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from fuseproof.harness.statistics import reasons
from fuseproof.harness.statistics.comparison import Block, Comparison, Thresholds, compare, summary_of
from fuseproof.harness.statistics.contrasts import Summary
from fuseproof.harness.statistics.decision import Checks, Word, check, words
from fuseproof.harness.statistics.outliers import gap_outliers, slow_first_slot, tail_outliers
from fuseproof.harness.statistics.reasons import Reason

__all__ = ["Reason", "Verdict", "Word", "decide", "invalid", "post_worker_tails"]

MEAN_MEDIAN_SHARE = 0.005
OTHER_SIGN_SHARE = 0.001
"""Of the longer of the two times: half a point of a slowdown to three times the baseline is no disagreement."""
PLANNED_ALPHA = 0.05


@dataclass(frozen=True)
class Verdict:
    """A word, why, what else a reader must know, and the numbers (None when there are none to show)."""

    word: Word
    reasons: tuple[Reason, ...]
    """Empty for FASTER, SLOWER and SAME; otherwise the headline first."""
    warnings: tuple[Reason, ...]
    comparison: Comparison | None

    @property
    def headline(self) -> Reason | None:
        """The first reason: it picks the next step."""
        return self.reasons[0] if self.reasons else None

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values: finite numbers, strings, lists, null."""
        return {
            "word": self.word.value,
            "reasons": [asdict(reason) for reason in self.reasons],
            "warnings": [asdict(warning) for warning in self.warnings],
            "comparison": None if self.comparison is None else self.comparison.to_json(),
        }


def decide(
    blocks: Sequence[Block],
    thresholds: Thresholds | None = None,
    *,
    caps: Sequence[Reason] = (),
    warnings: Sequence[Reason] = (),
) -> Verdict:
    """Judge one metric of one cell from its complete, valid blocks.

    ``caps`` are what the caller knows and the times do not show (contention, a changed clock): with any of them the
    word is INCONCLUSIVE. ``warnings`` are the caller's (post-worker tails, blocks added after a verdict) and are put
    after the rule's own. Without a single block the word is INCONCLUSIVE and there is no comparison.
    """
    thresholds = thresholds or Thresholds()
    if not blocks:
        return Verdict(Word.INCONCLUSIVE, (reasons.too_few_blocks(0), *caps), tuple(warnings), None)
    summary = summary_of(blocks, thresholds)
    checks = check(summary, min_effect=thresholds.min_effect, tick_s=thresholds.tick_s, is_capped=bool(caps))
    comparison = compare(blocks, thresholds)
    word = Word(str(words(summary, checks)))
    tails = tuple(reasons.tail_outlier(run, blocks) for run in tail_outliers(blocks, comparison))
    why: tuple[Reason, ...] = ()
    if word is Word.INCONCLUSIVE:
        capped = _caps(checks, comparison, caps)
        why = (*capped, *_contradictions(blocks, checks, comparison), *_drifts(checks, comparison), *tails)
        why = _on_a_quiet_machine(why)
    own = _warnings(blocks, word, summary, checks, comparison)
    beside = tuple(warning for warning in (*own, *tails) if warning.code not in {reason.code for reason in why})
    return Verdict(word, why, (*beside, *warnings), comparison)


def invalid(*why: Reason) -> Verdict:
    """The measurement proves nothing, so there is no number: unequal work, a fallback, a missing graph."""
    return Verdict(Word.INVALID, why, (), None)


def post_worker_tails(worker: Sequence[Block], client: Sequence[Block], tick_s: float) -> tuple[Reason, ...]:
    """Warnings for runs with an unusual delay between the end of the work and the client's end.

    ``worker`` and ``client`` are the same runs on two timers; ``tick_s`` is the step of the coarser timer in seconds.
    """
    return tuple(reasons.post_worker_tail(run, client) for run in gap_outliers(worker, client, tick_s))


def _caps(checks: Checks, comparison: Comparison, caps: Sequence[Reason]) -> tuple[Reason, ...]:
    own = []
    if len(comparison.blocks) < 2:
        own.append(reasons.too_few_blocks(len(comparison.blocks), comparison.arm_count))
    if checks.timer_is_coarse:
        own.append(reasons.timer_resolution(comparison))
    return (*own, *caps)


def _on_a_quiet_machine(why: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """The headline picks the next step; on a machine that others used it would only repeat what they spoilt."""
    headline, *rest = why
    if headline.code == reasons.CONTENTION or all(reason.code != reasons.CONTENTION for reason in rest):
        return why
    step = f"On a quiet machine: {headline.next_step[0].lower()}{headline.next_step[1:]}"
    return (replace(headline, next_step=step), *rest)


def _contradictions(blocks: Sequence[Block], checks: Checks, comparison: Comparison) -> list[Reason]:
    """Blocks against each other, then the first of: unresolved, too small, not confirmed by the pair median.

    What keeps the interval from being SAME is not its spread when it lies inside the minimum effect already.
    """
    found = []
    if comparison.blocks_differ or not checks.blocks_agree:
        found.append(reasons.blocks_disagree(blocks, comparison))
    if checks.interval_is_same:
        return found
    if not checks.is_resolved:
        found.append(reasons.spread_exceeds_effect(comparison))
    elif not checks.reaches_min_effect:
        found.append(reasons.below_min_effect(comparison))
    elif not checks.robust_agrees:
        found.append(reasons.robust_disagrees(comparison))
    return found


def _drifts(checks: Checks, comparison: Comparison) -> list[Reason]:
    found = []
    is_guarded = _is_guarded(checks)
    if is_guarded or checks.drift_is_seen:
        found.append(reasons.drift(comparison))
    only_alias = bool(checks.interval_is_same and not checks.interval_with_alias_is_same)
    would_pass_mirrored = is_guarded and bool(checks.exceeds_balanced_guard)
    if _is_unmirrored(comparison) and (only_alias or would_pass_mirrored):
        found.append(reasons.order_not_mirrored(comparison))
    if checks.curvature_is_seen:
        found.append(reasons.curved_drift(comparison))
    return found


def _is_guarded(checks: Checks) -> bool:
    """An effect that passes every other check is small enough to be drift."""
    is_effect = checks.is_resolved & checks.reaches_min_effect & checks.robust_agrees
    return bool(is_effect & ~checks.exceeds_drift)


def _is_unmirrored(comparison: Comparison) -> bool:
    return len(comparison.blocks) >= 2 and not comparison.is_balanced


def _forms_disagree(comparison: Comparison) -> bool:
    """Whether arithmetic and geometric means visibly tell different stories: in size, or in sign.

    A single slow run moves the arithmetic mean further; whoever recomputes the effect from it finds another number.
    """
    apart = abs(comparison.mean_reduction - comparison.reduction) / max(1.0, 1.0 - comparison.reduction)
    has_other_sign = comparison.mean_reduction * comparison.reduction < 0
    return apart > MEAN_MEDIAN_SHARE or (has_other_sign and apart > OTHER_SIGN_SHARE)


def _warnings(
    blocks: Sequence[Block], word: Word, summary: Summary, checks: Checks, comparison: Comparison
) -> list[Reason]:
    found = []
    if word is Word.SAME and abs(comparison.log_effect) > comparison.half_width:
        found.append(reasons.resolved_below_min_effect(comparison))
    disagreement = abs(comparison.mean_reduction - comparison.pair_median_reduction)
    if disagreement > max(MEAN_MEDIAN_SHARE, comparison.noise_floor_median):
        found.append(reasons.mean_median_disagree(comparison))
    elif _forms_disagree(comparison):
        found.append(reasons.means_disagree(comparison))
    first = slow_first_slot(blocks, comparison)
    if first is not None:
        found.append(reasons.first_slot_slow(first, blocks))
    if checks.drift_is_seen and word is not Word.INCONCLUSIVE:
        found.append(reasons.drift(comparison, "DRIFT_SEEN"))
    if comparison.is_widened:
        found.append(reasons.between_block_interval(comparison))
    if comparison.arms_scatter_unevenly:
        found.append(reasons.arms_scatter_unevenly(comparison))
    if _is_unmirrored(comparison):
        found.append(reasons.order_not_mirrored(comparison))
    if comparison.alpha != PLANNED_ALPHA:
        found.append(reasons.looks(comparison))
    return found
