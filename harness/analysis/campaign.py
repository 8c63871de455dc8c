"""A campaign folder in, everything its report says out: one typed result per cell, the same on every machine.

Nothing here measures or guesses: a cell's word comes from :func:`fuseproof.harness.statistics.verdict.decide` on its
primary metric, unless the runs did unequal work or an arm failed; the other metrics are descriptive.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuseproof.errors import UsageError
from fuseproof.harness.analysis.caveats import contention_reasons
from fuseproof.harness.analysis.contradictions import COPIED_DUMP, DOUBTED_CODES, copied_dumps
from fuseproof.harness.analysis.equal_work import EqualWork, broken_promises, check_cell_work
from fuseproof.harness.analysis.fastpaths import FastpathProof, check_fastpaths
from fuseproof.harness.analysis.memory import NOT_COMPARED, MemoryCheck, check_memory
from fuseproof.harness.analysis.metrics import MetricResult, judge_metrics
from fuseproof.harness.analysis.output_check import OutputCheck, check_outputs
from fuseproof.harness.analysis.runs import ARM_WORDS, CellRuns, LostBlock, read_cell
from fuseproof.harness.analysis.soundness import refuse_unsound_campaign
from fuseproof.harness.campaign.folder import Campaign
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.statistics.reasons import Reason
from fuseproof.harness.statistics.verdict import Verdict, Word, invalid
from fuseproof.schedules.plan import Plan

REPORT_SCHEMA = "fuseproof.report/1"

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_SLOWER = 3
EXIT_CONTRACT = 4
EXIT_INVALID = 6
EXIT_ORDER = (EXIT_FAILED, EXIT_INVALID, EXIT_CONTRACT, EXIT_SLOWER)
"""Where several codes apply, the first of these counts."""


@dataclass(frozen=True)
class CellAnalysis:
    """One cell. ``verdict`` is the primary metric's, or INVALID with the reasons why there is none."""

    runs: CellRuns
    verdict: Verdict
    metrics: tuple[MetricResult, ...]
    """Primary first; empty when the cell is INVALID."""
    equal_work: EqualWork
    outputs: OutputCheck
    memory: MemoryCheck
    fastpaths: FastpathProof
    warnings: tuple[Reason, ...]

    @property
    def name(self) -> str:
        return self.runs.cell.name

    @property
    def word(self) -> Word:
        return self.verdict.word

    @property
    def primary(self) -> MetricResult | None:
        return self.metrics[0] if self.metrics else None

    def exit_codes(self) -> set[int]:
        """What this cell asks of the exit code: a failed arm always counts, the rest only once the cell is complete."""
        codes = {EXIT_INVALID if lost.is_void else EXIT_FAILED for lost in self.runs.lost if lost.has_failed}
        if not self.runs.is_complete:
            return codes
        if self.word is Word.INVALID:
            codes.add(EXIT_INVALID)
        if self.word is Word.SLOWER:
            codes.add(EXIT_SLOWER)
        if not self.outputs.keeps_contract:
            codes.add(EXIT_CONTRACT)
        return codes

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "name": self.name,
            "word": self.word.value,
            "verdict": self.verdict.to_json(),
            "metrics": [metric.to_json() for metric in self.metrics],
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
            "fastpaths": self.fastpaths.to_json(),
            "warnings": [asdict(warning) for warning in self.warnings],
        }


@dataclass(frozen=True)
class CampaignAnalysis:
    """A whole campaign. ``only_blocks`` is empty unless the reader asked for some blocks only."""

    directory: Path
    campaign: Campaign
    cells: tuple[CellAnalysis, ...]
    only_blocks: tuple[int, ...] = ()

    @property
    def plan(self) -> Plan:
        return self.campaign.plan

    @property
    def is_self_comparison(self) -> bool:
        """Both arms run the same thing: an A/A campaign, whatever its arms are called."""
        baseline, candidate = self.plan.arms.baseline, self.plan.arms.candidate
        names = {"name"}
        return self.plan.aa or baseline.model_dump(exclude=names) == candidate.model_dump(exclude=names)

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
        campaign = self.campaign
        return {
            "schema": REPORT_SCHEMA,
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
        }


def analyse(campaign: Campaign, only_blocks: Sequence[int] = ()) -> CampaignAnalysis:
    """Judge every cell of a campaign, from its folder alone.

    ``only_blocks`` restricts the numbers to these blocks (from 1); the analysis remembers which others there are.
    Raises :class:`FuseproofError` naming a damaged file, :class:`UsageError` for a block that does not exist.
    """
    refuse_unsound_campaign(campaign)
    copies = copied_dumps(campaign)
    by_cell: dict[str, list[SlotRecord]] = defaultdict(list)
    for slot in campaign.slots():
        by_cell[slot.cell].append(slot)
    cells = tuple(
        _analyse_cell(campaign, read_cell(campaign, cell, by_cell[cell.name], only_blocks, copies))
        for cell in campaign.plan.cells
    )
    _refuse_unknown_blocks(cells, only_blocks)
    return CampaignAnalysis(campaign.directory, campaign, cells, tuple(sorted(set(only_blocks))))


def _refuse_unknown_blocks(cells: Sequence[CellAnalysis], only_blocks: Sequence[int]) -> None:
    largest = max(cell.runs.planned_blocks for cell in cells)
    unknown = sorted(number for number in set(only_blocks) if not 1 <= number <= largest)
    if unknown:
        raise UsageError(
            f"There is no block {unknown[0]}; this campaign has blocks 1 to {largest}.",
            next_step="Leave --block out to see all of them.",
        )


def _analyse_cell(campaign: Campaign, runs: CellRuns) -> CellAnalysis:
    plan = campaign.plan
    equal_work = check_cell_work(runs, plan)
    outputs = check_outputs(runs, campaign.directory)
    fastpaths = check_fastpaths(runs)
    objections = _objections(runs, equal_work)
    metrics = () if objections or not runs.blocks else judge_metrics(runs, plan, contention_reasons(runs))
    verdict = _verdict(runs, objections, metrics)
    return CellAnalysis(
        runs=runs,
        verdict=verdict,
        metrics=metrics if verdict.word is not Word.INVALID else (),
        equal_work=equal_work,
        outputs=outputs,
        memory=check_memory(runs, campaign.environment) if verdict.word is not Word.INVALID else NOT_COMPARED,
        fastpaths=fastpaths,
        warnings=(
            *_campaign_warnings(campaign, runs),
            *_commit_warnings(equal_work),
            *fastpaths.warnings,
            *outputs.warnings,
        ),
    )


def _objections(runs: CellRuns, equal_work: EqualWork) -> tuple[Reason, ...]:
    """Why a cell has no ratio: unequal work, broken promises, or failed arms and nothing that counts."""
    found = list(broken_promises(runs))
    reason = equal_work.reason()
    if reason is not None:
        found.insert(0, reason)
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
    if code in DOUBTED_CODES:
        return Reason(code, detail, "Restore the slot's files as they were, or measure again in a new campaign.")
    return Reason(code, detail, f"Read {slot.directory}/stderr.log, then go on with --resume.")


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


def _campaign_warnings(campaign: Campaign, runs: CellRuns) -> tuple[Reason, ...]:
    """What the runner noted about a cell's arms."""
    noted = [warning for warning in campaign.warnings if warning.cell == runs.cell.name]
    return tuple(Reason(warning.code, warning.detail, warning.next_step) for warning in noted)


def _commit_warnings(equal_work: EqualWork) -> tuple[Reason, ...]:
    return tuple(
        Reason(
            "COMMITS_DIFFER",
            f"the {ARM_WORDS[arm]} runs have {len(commits)} different commits: {', '.join(map(_short, commits))}",
            "Measure every block of an arm at one commit.",
        )
        for arm, commits in equal_work.commits
        if len(commits) > 1
    )


def _short(commit: str) -> str:
    """A commit's first twelve digits and what follows it ("+dirty ...")."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]+", r"\1", commit)


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
