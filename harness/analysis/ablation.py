"""What each fast path is worth, of a campaign whose arms are those of ``abba --ablate``.

Alone: the arm with one unit (and what it needs) against the arm with just what it needs. Left out: all but the unit
(and what needs it) against all. Interaction: left out minus alone, what company adds to a unit or takes from it. The
alone effects of all units, and the left-out effects of the units that need no other, each add up to a sum that is held
against the whole, with the interval of their difference. All of it is in seconds of the primary timer: reductions in
per cent of one time do not add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuseproof.harness.analysis.ablation_calls import RanUnits, calls_of_units
from fuseproof.harness.analysis.ablation_effects import CellAblation, Effect, Total, UnitEffects
from fuseproof.harness.analysis.ablation_prediction import predictions_of
from fuseproof.harness.analysis.bench_conditions import differences_of_bench
from fuseproof.harness.analysis.editions import CURVED_DRIFT_TOLD
from fuseproof.harness.analysis.metrics import TITLES, seconds_of
from fuseproof.harness.campaign.kept_bench import KeptBench, kept_bench
from fuseproof.harness.number_format import count, number
from fuseproof.harness.statistics.ablation import ArmLevels, Estimate, arm_levels
from fuseproof.schedules.ablation import BASELINE, WHOLE, Ablation

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
    from fuseproof.harness.analysis.runs import CellRuns

Weights = Counter[str]
CAPS = ("CONTENTION", "CONTENTION_UNMEASURED", "CLOCK_CHANGED", "TIMER_RESOLUTION", "UNPAIRED_BLOCKS")
"""Codes that forbid a word whatever the times say."""


def ablations_of(analysis: CampaignAnalysis) -> tuple[CellAblation, ...]:
    """One entry a workload of an ablation, in the order of the plan; empty for every other campaign."""
    if analysis.plan.ablation is None:
        return ()
    bench = kept_bench(analysis.directory)
    return tuple(
        _cell(analysis, analysis.plan.ablation, runs, _comparisons(analysis.cells, runs), bench)
        for runs in analysis.all_runs
    )


def _comparisons(cells: Iterable[CellAnalysis], runs: CellRuns) -> list[CellAnalysis]:
    return [cell for cell in cells if cell.runs.cell.name == runs.cell.name]


def _cell(
    analysis: CampaignAnalysis,
    ablation: Ablation,
    runs: CellRuns,
    cells: Sequence[CellAnalysis],
    bench: KeptBench | None,
) -> CellAblation:
    plan = analysis.plan
    reason = _no_numbers(plan.primary, runs, cells)
    if reason is not None:
        return CellAblation(runs.cell.name, plan.primary, len(runs.blocks), reason)
    letter: dict[str, str] = {plan.key_of(letter): letter for letter in plan.letters}
    levels = arm_levels(
        [(block.orientation, [seconds_of(run, plan.primary) or 0.0 for run in block.runs]) for block in runs.blocks]
    )
    maths = _Maths(ablation, levels, letter, tells_curvature=analysis.edition >= CURVED_DRIFT_TOLD)
    other_card, other_versions = (None, []) if bench is None else differences_of_bench(bench, analysis.campaign, cells)
    ran = calls_of_units(runs, ablation, letter)
    return CellAblation(
        cell=runs.cell.name,
        timer=plan.primary,
        blocks=len(runs.blocks),
        no_numbers=None,
        baseline_s=levels.means_s[letter[BASELINE]],
        whole_s=levels.means_s[letter[WHOLE]],
        scatter_s=levels.scatter_s,
        degrees_of_freedom=levels.degrees_of_freedom,
        is_widened=levels.is_widened,
        whole=maths.effect(maths.whole),
        units=_units(maths, ran, None if other_card else bench, _size(runs)),
        alone=maths.total(maths.alone_sum(ablation.units)) if ablation.by != "without" else None,
        left_out=maths.total(maths.left_out_sum()) if ablation.by != "alone" else None,
        outside=ran.outside,
        other_outputs=tuple(cell.runs.candidate_name or cell.name for cell in cells if not cell.outputs.keeps_contract),
        caps=_caps(cells),
        has_bench=bench is not None,
        curvature=maths.curvature_text() if maths.tells_curvature else None,
        bench_notes=_bench_notes(other_card, other_versions),
    )


def _no_numbers(timer: str, runs: CellRuns, cells: Sequence[CellAnalysis]) -> str | None:
    if not runs.blocks:
        return "no block of it is complete"
    invalid = next((cell for cell in cells if cell.word.value == "INVALID"), None)
    if invalid is not None:
        why = invalid.verdict.headline
        return f"{invalid.name} is INVALID" + (f" ({why.code}: {why.detail.rstrip('.')})" if why else "")
    lacking = next((run.record.id for run in runs.runs if not (seconds_of(run, timer) or 0) > 0), None)
    return None if lacking is None else f"{lacking} has no {TITLES[timer]}"


def _bench_notes(other_card: str | None, other_versions: Sequence[str]) -> tuple[str, ...]:
    if other_card is not None:
        return (f"Nothing is predicted, because the times of single kernels are of another card: {other_card}.",)
    told = "; ".join(other_versions)
    return (f"The times of single kernels were measured under other versions: {told}.",) if told else ()


def _caps(cells: Sequence[CellAnalysis]) -> tuple[str, ...]:
    found = dict.fromkeys(reason.code for cell in cells for reason in cell.verdict.reasons)
    return tuple(code for code in found if code in CAPS)


def _size(runs: CellRuns) -> str | None:
    """``1024x1024``, by the dump of the first run."""
    dump = runs.runs[0].dump
    width, height = (None, None) if dump is None else (dump.config.get("width"), dump.config.get("height"))
    return None if width is None or height is None else f"{width}x{height}"


@dataclass(frozen=True)
class _Maths:
    """Effects as weights of arms: what saves time is the slower arm minus the faster one."""

    ablation: Ablation
    levels: ArmLevels
    letter: dict[str, str]
    """By the key of an arm."""
    tells_curvature: bool = True

    @property
    def whole(self) -> Weights:
        return _minus(self._arm(frozenset()), self._arm(frozenset(self.ablation.units)))

    def alone(self, unit: str) -> Weights:
        needed = self.ablation.needed_by(unit)
        return _minus(self._arm(needed), self._arm(needed | {unit}))

    def left_out(self, unit: str) -> Weights:
        every = frozenset(self.ablation.units)
        return _minus(self._arm(every - {unit} - self.ablation.needing(unit)), self._arm(every))

    def alone_sum(self, units: Iterable[str]) -> Weights:
        return _sum(self.alone(unit) for unit in units)

    def left_out_sum(self) -> Weights:
        return _sum(self.left_out(unit) for unit in self.ablation.roots)

    def total(self, weights: Weights) -> Total:
        difference = _minus(weights, self.whole)
        curved_s = self.levels.curved_s(difference) if self.tells_curvature else 0.0
        return Total(self.effect(weights), self.effect(difference), self.effect(self.whole), curved_s)

    def curvature_text(self) -> str | None:
        """What curved drift may do to the effects; None where every arm has had every place."""
        levels, ablation = self.levels, self.ablation
        if levels.is_balanced:
            return None
        contrasts = [self.alone(unit) for unit in ablation.units] if ablation.by != "without" else []
        contrasts += [self.left_out(unit) for unit in ablation.units] if ablation.by != "alone" else []
        most = max(levels.curved_s(weights) for weights in contrasts)
        blocks = count(levels.block_count, "block")
        if math.isinf(most):
            return (
                f"ORDER_NOT_MIRRORED: {blocks} cannot tell curved drift from effects, so no sum is called another than "
                "the whole: run two blocks or more in mirrored order."
            )
        code = "CURVED_DRIFT: the drift within these blocks is curved, and" if levels.is_curved else (
            "ORDER_NOT_MIRRORED:"
        )  # fmt: skip
        return (
            f"{code} {blocks} of {len(levels.means_s)} arms did not give every arm every place, so drift as curved as "
            f"these runs allow may move a fast path's effect by up to {number(1000 * most, 1)} ms beyond its interval."
        )

    def effect(self, weights: Weights) -> Effect:
        baseline_s = self.levels.means_s[self.letter[BASELINE]]
        estimate: Estimate = self.levels.contrast({arm: weight for arm, weight in weights.items() if weight})
        low, high = estimate.interval
        return Effect(
            seconds=estimate.seconds,
            interval_s=(low, high),
            share=estimate.seconds / baseline_s,
            interval=(low / baseline_s, high / baseline_s),
            is_resolved=estimate.is_resolved,
        )

    def _arm(self, units: frozenset[str]) -> Weights:
        return Weights({self.letter[self.ablation.key_of[units]]: 1})


def _minus(first: Weights, second: Weights) -> Weights:
    found = Weights(first)
    found.subtract(second)
    return found


def _sum(weights: Iterable[Weights]) -> Weights:
    found = Weights()
    for one in weights:
        found.update(one)
    return found


def _units(maths: _Maths, ran: RanUnits, bench: KeptBench | None, size: str | None) -> tuple[UnitEffects, ...]:
    ablation = maths.ablation
    predicted = predictions_of(ablation, ran, bench, size)
    has_alone, has_left_out = ablation.by != "without", ablation.by != "alone"
    has_both = has_alone and has_left_out
    found = []
    for unit, sites in ablation.units.items():
        group = (unit, *sorted(ablation.needing(unit)))
        of_group = maths.alone_sum(group) if has_alone else Weights()
        found.append(
            UnitEffects(
                unit=unit,
                sites=sites,
                needs=tuple(sorted(ablation.needed_by(unit))),
                takes_along=group[1:],
                alone=maths.effect(maths.alone(unit)) if has_alone else None,
                left_out=maths.effect(maths.left_out(unit)) if has_left_out else None,
                alone_of_group=maths.effect(of_group) if has_alone else None,
                interaction=maths.effect(_minus(maths.left_out(unit), of_group)) if has_both else None,
                calls=ran.of_unit[unit],
                prediction=predicted.get(unit),
            )
        )
    return tuple(found)
