"""A campaign folder in, everything its report says out: one typed result per cell, the same on every machine.

With three or more arms there is one result per cell and candidate, each against the baseline; candidates are never
compared with each other.

Nothing here measures or guesses: a cell's word comes from :func:`fuseproof.harness.statistics.verdict.decide` on its
primary metric, unless the runs did unequal work or an arm failed; the other metrics are descriptive.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fuseproof.errors import UsageError
from fuseproof.harness.analysis.arm_warnings import arm_warnings
from fuseproof.harness.analysis.campaign_warnings import commit_warnings, noted_warnings, program_warnings
from fuseproof.harness.analysis.cell_references import CellPair, compare_cells
from fuseproof.harness.analysis.checked_calls import CODE as EVERY_CALL_CHECKED
from fuseproof.harness.analysis.checked_calls import checked_runs
from fuseproof.harness.analysis.contention import contention_caps, contention_warnings
from fuseproof.harness.analysis.contradictions import COPIED_DUMP, DOUBTED_CODES, copied_dumps
from fuseproof.harness.analysis.editions import EDITION, TIME_SAVED, WARM_UP_AND_FIGURES, schema_of, with_earlier_code
from fuseproof.harness.analysis.equal_work import EqualWork, broken_promises, check_cell_work
from fuseproof.harness.analysis.fastpaths import FastpathProof, check_fastpaths
from fuseproof.harness.analysis.floor import CellFloor, cell_floor, floor_warnings
from fuseproof.harness.analysis.gpu_conditions import GpuConditions, check_gpu_conditions, gpu_cards
from fuseproof.harness.analysis.gpu_reasons import clock_warnings, gpu_caps, gpu_warnings, shared_card_warnings
from fuseproof.harness.analysis.imported import imported_objections, imported_warnings, in_imported_words
from fuseproof.harness.analysis.memory import NOT_COMPARED, MemoryCheck, check_memory
from fuseproof.harness.analysis.metrics import MetricResult, judge_metrics, timers_of
from fuseproof.harness.analysis.output_check import OutputCheck, check_outputs
from fuseproof.harness.analysis.outside_timers import outside_timers
from fuseproof.harness.analysis.placement import card_warnings
from fuseproof.harness.analysis.planning import plans_of
from fuseproof.harness.analysis.profiled_runs import runs_under_a_profiler
from fuseproof.harness.analysis.qualification import Qualification, qualify
from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, BASELINE, CellRuns, LostBlock, read_cell
from fuseproof.harness.analysis.soundness import refuse_unsound_campaign
from fuseproof.harness.campaign.evidence import SMALLEST_DUMP
from fuseproof.harness.campaign.floors import Floor, kept_floor
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.harness.statistics.verdict import Verdict, Word, invalid
from fuseproof.schedules.order import ArmLetter
from fuseproof.schedules.plan import Plan

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_SLOWER = 3
EXIT_CONTRACT = 4
EXIT_INVALID = 6
EXIT_ORDER = (EXIT_FAILED, EXIT_INVALID, EXIT_CONTRACT, EXIT_SLOWER)
"""Where several codes apply, the first of these counts."""


@dataclass(frozen=True)
class CellAnalysis:
    """One cell and candidate. ``verdict`` is the primary metric's, or INVALID with the reasons why there is none."""

    runs: CellRuns
    verdict: Verdict
    metrics: tuple[MetricResult, ...]
    """Primary first; empty when the cell is INVALID."""
    equal_work: EqualWork
    outputs: OutputCheck
    memory: MemoryCheck
    fastpaths: FastpathProof
    qualification: Qualification
    warnings: tuple[Reason, ...]
    gpu: GpuConditions | None = None
    """How the GPUs ran under both arms; None where no run had one to look at."""
    floor: CellFloor | None = None
    """The A/A floor that the campaign's folder holds, for this cell; None where it holds none."""
    edition: int = EDITION
    is_ablation: bool = False
    """Its effect is told as an ablation's: as time saved, with the interval that the verdict rests on."""

    @property
    def name(self) -> str:
        return self.runs.name

    @property
    def word(self) -> Word:
        return self.verdict.word

    @property
    def primary(self) -> MetricResult | None:
        return self.metrics[0] if self.metrics else None

    @property
    def commits(self) -> dict[ArmLetter, tuple[str, ...]]:
        """The distinct commits that the runs recorded, by the letters of baseline and candidate."""
        return {BASELINE if arm == BASELINE else self.runs.candidate: found for arm, found in self.equal_work.commits}

    def exit_codes(self) -> set[int]:
        """What this cell asks of the exit code: a failed arm always counts, the rest only once the cell is complete."""
        codes = {EXIT_INVALID if lost.is_void else EXIT_FAILED for lost in self.runs.lost if lost.has_failed}
        if not self.runs.is_complete:
            return codes
        if self.word is Word.INVALID and not self._is_about_bits:
            codes.add(EXIT_INVALID)
        if self.word is Word.SLOWER:
            codes.add(EXIT_SLOWER)
        if not self.outputs.keeps_contract:
            codes.add(EXIT_CONTRACT)
        return codes

    @property
    def _is_about_bits(self) -> bool:
        """Runs that were made to look at bits found wrong ones: that is their result, not their worthless times."""
        found_wrong = not self.outputs.keeps_contract
        return found_wrong and all(reason.code == EVERY_CALL_CHECKED for reason in self.verdict.reasons)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "name": self.name,
            **({} if self.runs.whole is None else {"cell": self.runs.cell.name, "candidate": self.runs.candidate}),
            "word": self.word.value,
            "verdict": self.verdict.to_json(),
            "metrics": [
                metric.to_json() | {"blocks_to_resolve": [asdict(plan) for plan in plans_of(metric)]}
                for metric in self.metrics
            ],
            "blocks": {
                "planned": self.runs.planned_blocks,
                "counted": [block.number for block in self.runs.blocks],
                "omitted_by_request": list(self.runs.omitted),
                "lost": [_lost_json(lost) for lost in self.runs.lost],
            },
            "slots": dict(sorted(self.runs.slot_states().items())),
            "equal_work": self.equal_work.to_json(),
            "outputs": self.outputs.to_json(),
            "memory": self.memory.to_json(),
            "qualification": self.qualification.to_json(),
            "fastpaths": self.fastpaths.to_json(),
            "gpu": None if self.gpu is None else self.gpu.to_json(),
            "floor": None if self.floor is None else self.floor.to_json(),
            "warnings": [asdict(warning) for warning in self.warnings],
        }


@dataclass(frozen=True)
class CampaignAnalysis:
    """A whole campaign. ``only_blocks`` is empty unless the reader asked for some blocks only."""

    directory: Path
    campaign: Campaign
    cells: tuple[CellAnalysis, ...]
    only_blocks: tuple[int, ...] = ()
    between_cells: tuple[CellPair, ...] = ()
    """Cells against the cells that the plan names as their reference."""
    edition: int = EDITION
    """Of the report (:mod:`fuseproof.harness.analysis.editions`)."""

    @property
    def plan(self) -> Plan:
        return self.campaign.plan

    @property
    def is_self_comparison(self) -> bool:
        """Both arms run the same thing: an A/A campaign, whatever its arms are called."""
        baseline, candidate = self.plan.arms.baseline, self.plan.arms.candidate
        if self.campaign.origin is not None:
            return self.plan.aa  # equal texts of commands say nothing of what they ran
        if len(self.plan.letters) > len(ARMS):
            return False
        names = {"name"}
        return self.plan.aa or baseline.model_dump(exclude=names) == candidate.model_dump(exclude=names)

    @property
    def has_several_candidates(self) -> bool:
        """Three or more arms: every entry of ``cells`` is one candidate of a cell against the baseline."""
        return len(self.plan.letters) > len(ARMS)

    @property
    def noun(self) -> str:
        """What an entry of ``cells`` is called."""
        return "comparison" if self.has_several_candidates else "cell"

    @property
    def all_runs(self) -> tuple[CellRuns, ...]:
        """Every cell of the plan once, with all its arms: what accounts for slots."""
        return tuple({cell.runs.cell.name: cell.runs.everything for cell in self.cells}.values())

    def words(self) -> Counter[Word]:
        """How many cells there are of each word."""
        return Counter(cell.word for cell in self.cells)

    def exit_code(self) -> int:
        """0, or what went wrong: 1 an arm failed, 6 invalid, 4 outputs break their contract, 3 slower."""
        codes = {code for cell in self.cells for code in cell.exit_codes()}
        if self.campaign.status == "failed" and not codes:
            codes.add(EXIT_FAILED)
        return next((code for code in EXIT_ORDER if code in codes), EXIT_DONE)

    def summary_lines(self) -> list[str]:
        """The result as plain text: per cell the verdict, one line per metric, outputs, memory."""
        from fuseproof.harness.analysis.sentences import summary_lines

        return summary_lines(self)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values, without paths of this machine."""
        from fuseproof.harness.analysis.ablation import ablations_of
        from fuseproof.harness.analysis.audit import audit
        from fuseproof.harness.analysis.claims import claims

        campaign = self.campaign
        return {
            "schema": schema_of(self.edition),
            "campaign": campaign.name,
            "title": campaign.plan.title,
            "created": campaign.created,
            "status": campaign.status,
            "fuseproof_version": campaign.fuseproof_version,
            "primary": campaign.plan.primary,
            "min_effect": campaign.plan.min_effect,
            "is_self_comparison": self.is_self_comparison,
            "only_blocks": list(self.only_blocks),
            "words": {word.value: count for word, count in sorted(self.words().items())},
            "exit_code": self.exit_code(),
            "cells": [cell.to_json() for cell in self.cells],
            "between_cells": [pair.to_json() for pair in self.between_cells],
            **({} if self.plan.ablation is None else {"ablation": [cell.to_json() for cell in ablations_of(self)]}),
            "claims": [claim.to_json() for claim in claims(self)],
            "audit": audit(self).to_json(),
        }


def analyse(campaign: Campaign, only_blocks: Sequence[int] = (), edition: int = EDITION) -> CampaignAnalysis:
    """Judge every cell of a campaign, from its folder alone.

    ``only_blocks`` restricts the numbers to these blocks (from 1); the analysis remembers which others there are.
    ``edition`` is that of the report, today's unless an earlier one is rendered again.
    Raises :class:`FuseproofError` naming a damaged file, :class:`UsageError` for a block that does not exist.
    """
    refuse_unsound_campaign(campaign)
    copies, floor = copied_dumps(campaign), kept_floor(campaign.directory)
    by_cell: dict[str, list[SlotRecord]] = defaultdict(list)
    for slot in campaign.slots():
        by_cell[slot.cell].append(slot)
    cells = tuple(
        _analyse_cell(campaign, runs, floor, edition)
        for cell in campaign.plan.cells
        for runs in _comparisons(campaign.plan, read_cell(campaign, cell, by_cell[cell.name], only_blocks, copies))
    )
    _refuse_unknown_blocks(cells, only_blocks)
    if campaign.origin is not None:
        cells = tuple(_reworded(cell, in_imported_words) for cell in cells)
    if edition < WARM_UP_AND_FIGURES:
        cells = tuple(_reworded(cell, with_earlier_code) for cell in cells)
    between = compare_cells(cells, campaign.directory)
    return CampaignAnalysis(campaign.directory, campaign, cells, tuple(sorted(set(only_blocks))), between, edition)


def _reworded(cell: CellAnalysis, change: Callable[[Reason], Reason]) -> CellAnalysis:
    """The cell with every reason of its verdicts and every warning changed."""

    def judged(verdict: Verdict) -> Verdict:
        reasons, warnings = (tuple(map(change, found)) for found in (verdict.reasons, verdict.warnings))
        return replace(verdict, reasons=reasons, warnings=warnings)

    metrics = tuple(
        metric if metric.verdict is None else replace(metric, verdict=judged(metric.verdict)) for metric in cell.metrics
    )
    return replace(cell, verdict=judged(cell.verdict), warnings=tuple(map(change, cell.warnings)), metrics=metrics)


def _comparisons(plan: Plan, runs: CellRuns) -> Sequence[CellRuns]:
    """The cell itself with two arms; with more, the cell as the comparison of each candidate sees it."""
    if len(plan.letters) == len(ARMS):
        return (runs,)
    return [runs.against(letter, plan.arm(letter).name) for letter in plan.letters[1:]]


def _refuse_unknown_blocks(cells: Sequence[CellAnalysis], only_blocks: Sequence[int]) -> None:
    largest = max(cell.runs.planned_blocks for cell in cells)
    unknown = sorted(number for number in set(only_blocks) if not 1 <= number <= largest)
    if unknown:
        raise UsageError(
            f"There is no block {unknown[0]}; this campaign has blocks 1 to {largest}.",
            next_step="Leave --block out to see all of them.",
        )


def _analyse_cell(campaign: Campaign, runs: CellRuns, kept: Floor | None, edition: int) -> CellAnalysis:
    plan = campaign.plan.against(runs.candidate)
    equal_work = check_cell_work(runs, plan)
    outputs = check_outputs(runs, campaign.directory)
    fastpaths = check_fastpaths(runs)
    objections = (*_objections(runs, equal_work), *imported_objections(campaign, runs))
    gpu = check_gpu_conditions(runs)
    floor = None if kept is None else cell_floor(kept, plan, runs.cell.name, campaign.environment, gpu_cards(gpu))
    caps_of = partial(_caps, campaign, plan, runs, gpu)
    metrics = () if objections or not runs.blocks else judge_metrics(runs, plan, caps_of, timers_of(edition))
    verdict = _verdict(runs, objections, metrics)
    return CellAnalysis(
        runs=runs,
        verdict=verdict,
        metrics=metrics if verdict.word is not Word.INVALID else (),
        equal_work=equal_work,
        outputs=outputs,
        memory=check_memory(runs, campaign.environment) if verdict.word is not Word.INVALID else NOT_COMPARED,
        fastpaths=fastpaths,
        qualification=qualify(runs, metrics if verdict.word is not Word.INVALID else (), plan.requirements()),
        warnings=(
            *noted_warnings(campaign, runs),
            *contention_warnings(campaign, runs.everything),
            *imported_warnings(campaign, runs, plan),
            *commit_warnings(equal_work),
            *program_warnings(runs),
            *fastpaths.warnings,
            *arm_warnings(runs),
            *clock_warnings(runs, gpu, plan.primary, plan.min_effect),
            *gpu_warnings(gpu),
            *shared_card_warnings(runs, gpu, campaign.environment.get("gpus")),
            *floor_warnings(floor, verdict),
            *card_warnings(runs),
            *outputs.warnings,
            *(outside_timers(metrics) if edition >= WARM_UP_AND_FIGURES else ()),
        ),
        gpu=gpu,
        floor=floor,
        edition=edition,
        is_ablation=campaign.plan.ablation is not None and edition >= TIME_SAVED,
    )


def _caps(
    campaign: Campaign, plan: Plan, whole: CellRuns, gpu: GpuConditions | None, runs: CellRuns
) -> tuple[Reason, ...]:
    """What of the machine forbids a directional word for ``runs``: the ``whole`` cell, or what an earlier look had.

    ``gpu`` are the conditions of the whole.
    """
    own = gpu if runs is whole else check_gpu_conditions(runs)
    return (*contention_caps(campaign, runs.everything), *gpu_caps(runs, own, plan.primary, plan.min_effect))


def _objections(runs: CellRuns, equal_work: EqualWork) -> tuple[Reason, ...]:
    """Why a cell has no ratio: unequal work, broken promises, or failed arms and nothing that counts."""
    found = list(broken_promises(runs))
    reason = equal_work.reason()
    if reason is not None:
        found.insert(0, reason)
    found += checked_runs(runs)
    found += runs_under_a_profiler(runs)
    found += [
        failure_reason(lost)
        for lost in runs.lost
        if lost.has_failed and (not runs.blocks or (lost.slot and lost.slot.reason_code == COPIED_DUMP))
    ]
    return tuple(found)


def failure_reason(lost: LostBlock) -> Reason:
    """A block that an arm's failure has cost, with the arm named: "candidate OOM"."""
    slot = lost.slot
    if slot is None:
        return Reason("NOT_RUN", f"block {lost.number} has not run", "Go on with --resume.")
    word, code = ARM_WORDS[slot.arm], slot.reason_code or slot.state.upper()
    detail = f"{word} {code} in {slot.id}: {slot.reason or 'no reason recorded'}"
    if code == "USAGE":
        return Reason(code, detail, "Correct the arm's flags and start a new campaign: this one keeps its plan.")
    if code in DOUBTED_CODES:
        return Reason(code, detail, "Restore the slot's files as they were, or measure again in a new campaign.")
    advice = f"{SMALLEST_DUMP} " if code == "NO_DUMP" else ""
    return Reason(code, detail, f"{advice}Read the logs in {slot.directory}, then go on with --resume.")


def _verdict(runs: CellRuns, objections: tuple[Reason, ...], metrics: tuple[MetricResult, ...]) -> Verdict:
    if objections:
        return invalid(*objections)
    if not runs.blocks:
        reason = Reason("TOO_FEW_BLOCKS", "no complete block", "Let the campaign finish: --resume goes on.")
        return Verdict(Word.INCONCLUSIVE, (reason,), (), None)
    primary = metrics[0]
    if primary.verdict is None:
        step = "Let both arms write that timer, or judge by another one: --primary."
        return invalid(Reason("MISSING_TIMER", f"{primary.title}: {primary.note}", step))
    return primary.verdict


def _lost_json(lost: LostBlock) -> dict[str, Any]:
    slot = lost.slot
    return {
        "block": lost.number,
        "has_failed": lost.has_failed,
        "slot": None if slot is None else slot.id,
        "state": None if slot is None else slot.state,
        "reason_code": None if slot is None else slot.reason_code,
        "reason": None if slot is None else slot.reason,
    }
