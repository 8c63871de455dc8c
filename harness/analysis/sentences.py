"""The results of a campaign as sentences: the same words on the terminal and in every report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuseproof.harness.analysis.arm_warnings import FIRST_SIGHT
from fuseproof.harness.analysis.caveats import weights_text
from fuseproof.harness.analysis.clip_sentences import clip_text
from fuseproof.harness.analysis.contention import CONTENTION_UNMEASURED
from fuseproof.harness.analysis.editions import WARM_UP_AND_FIGURES
from fuseproof.harness.analysis.effects import (
    effect_text,
    in_words_where_wide,
    is_too_wide,
    level_text,
    means_text,
    saved_text,
)
from fuseproof.harness.analysis.fastpath_losses import SITE_FORM_REJECTED, SITE_LOST, SITE_NEVER_FUSED, SITE_REJECTED
from fuseproof.harness.analysis.imported import imported_notes
from fuseproof.harness.analysis.memory import MemoryCheck
from fuseproof.harness.analysis.metrics import MetricResult
from fuseproof.harness.analysis.noise_floor import noise_texts
from fuseproof.harness.analysis.output_check import LEVEL_TITLES, OutputCheck
from fuseproof.harness.analysis.output_pairs import ComparedPair
from fuseproof.harness.analysis.run_warnings import COLD_BATCH, COMPILE_INSIDE
from fuseproof.harness.analysis.runs import ARM_WORDS, CellRuns
from fuseproof.harness.media.clip_comparison import ClipComparison
from fuseproof.harness.media.comparison import distance_text, share_text
from fuseproof.harness.number_format import count, number, shortened
from fuseproof.harness.statistics.reasons import CONTENTION, Reason
from fuseproof.harness.statistics.verdict import Word

if TYPE_CHECKING:
    from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis

MOST_DETAILS = 4
LONGEST_WARNING = 480
MOST_DOUBTS = 6
LONGEST_PROMPT = 40
UNFINISHED = "unfinished (it still runs, or was killed; --resume goes on)"
"""What ``running`` means to a reader: a killed campaign could not write anything else."""


def summary_lines(analysis: CampaignAnalysis) -> list[str]:
    """The whole campaign as lines of plain text."""
    from fuseproof.harness.analysis.ablation import ablations_of
    from fuseproof.harness.analysis.ablation_sentences import ablation_lines
    from fuseproof.harness.analysis.claims import closing_lines, unclaimed_texts

    lines, unclaimed = [], {name for name, _ in unclaimed_texts(analysis)}
    if len(analysis.cells) > 1:
        lines.append(f"{count(len(analysis.cells), analysis.noun)}: {word_counts(analysis)}{broken_counts(analysis)}")
    for cell in analysis.cells:
        lines.append(verdict_line(cell) + (" Not claimed: see below." if cell.name in unclaimed else ""))
        lines += _lines_below(cell) if analysis.plan.ablation is None else []
    lines += [line for cell in ablations_of(analysis) for line in ablation_lines(cell)]
    lines += [f"note: {note}" for note in standing_notes(analysis)]
    return [*lines, *closing_lines(analysis)]


def _lines_below(cell: CellAnalysis) -> list[str]:
    """Timers, outputs, memory and warnings of a cell; of an ablation's many arms they stand in the report alone."""
    lines = [f"  {metric_line(metric)}" for metric in cell.metrics]
    lines += [f"  {cell.floor.text}"] if cell.floor is not None and cell.floor.is_comparable else []
    lines += [f"  {outputs_line(cell.outputs)}", f"  {memory_line(cell.memory)}"]
    lines += [f"  {cell.qualification.sentence}"] if cell.qualification.is_asked else []
    return lines + [f"  warning: {text}" for text in warning_texts(cell)]


def word_counts(analysis: CampaignAnalysis) -> str:
    """``2 FASTER, 1 INCONCLUSIVE``, in the order of the words."""
    words = analysis.words()
    return ", ".join(f"{words[word]} {word.value}" for word in Word if words[word])


def broken_counts(analysis: CampaignAnalysis) -> str:
    """``; contract not met in 1 of 3``, behind the words; empty where every contract is kept."""
    broken = sum(not cell.outputs.keeps_contract for cell in analysis.cells)
    if not broken or analysis.edition < WARM_UP_AND_FIGURES:
        return ""
    return f"; contract not met in {broken} of {len(analysis.cells)}"


def verdict_line(cell: CellAnalysis) -> str:
    """The cell's word, a contract that is not met, its primary effect, and why when there is no clear word."""
    parts = []
    if not cell.outputs.keeps_contract and cell.edition >= WARM_UP_AND_FIGURES:
        parts.append(f"contract {cell.outputs.contract} is not met: {cell.outputs.violations[0].rstrip('.')}.")
    if cell.primary is not None and cell.verdict.comparison is not None:
        effect = saved_text(cell.verdict) if cell.is_ablation else effect_text(cell.verdict)
        parts.append(f"{cell.primary.title} {effect}.")
    if cell.verdict.headline is not None:
        parts.append(reason_text(_shown(cell, cell.verdict.headline)))
    return f"{cell.word.value}: {cell.name}: {' '.join(parts)}"


def _shown(cell: CellAnalysis, reason: Reason) -> Reason:
    comparison = cell.verdict.comparison
    return in_words_where_wide(reason, comparison) if cell.is_ablation and comparison is not None else reason


def metric_line(metric: MetricResult) -> str:
    """One timer on one line; the word of a timer that is not primary is descriptive."""
    if metric.verdict is None or metric.verdict.comparison is None:
        return f"{metric.title}: n/a ({metric.note or 'no complete block'})"
    means = means_text(metric.verdict.comparison)
    if metric.is_primary:  # its effect stands in the verdict's own line
        return f"{metric.title} (primary): {metric.word}, {means}"
    effect = effect_text(metric.verdict, is_judged=metric.is_judged)
    return f"{metric.title} (descriptive): {metric.word}, {means}, {effect}"


def reason_text(reason: Reason) -> str:
    """Code, what was seen, what to do."""
    return f"{reason.code}: {reason.detail.rstrip('.')}. {reason.next_step}".rstrip()


def outputs_line(outputs: OutputCheck) -> str:
    """Equality, determinism and contract on one line."""
    if outputs.decided_by is None:
        return "Outputs: nothing to compare."
    parts = [equality_text(outputs), determinism_text(outputs)]
    if outputs.degenerate:
        parts.append(f"proves nothing: {outputs.degenerate[0]}")
    if outputs.keeps_contract and outputs.accepts_anything:
        parts.append(f"contract {outputs.contract} accepts any picture: the outputs are not judged")
    elif outputs.keeps_contract:
        parts.append(f"contract {outputs.contract} holds{evidence_text(outputs)}")
    else:
        more = f" (and {len(outputs.violations) - 1} more)" if len(outputs.violations) > 1 else ""
        parts.append(f"contract {outputs.contract} is not met: {outputs.violations[0]}{more}{evidence_text(outputs)}")
    return f"Outputs: {'; '.join(parts)}."


def evidence_text(outputs: OutputCheck) -> str:
    """`` (not quality evidence: ...)`` behind a contract, where closeness says nothing about quality."""
    return f" ({outputs.no_evidence})" if outputs.no_evidence else ""


def equality_text(outputs: OutputCheck) -> str:
    """Whether the arms' outputs are equal, at which level, over how many outputs; the worst case where they are not."""
    deepest = outputs.levels[-1]
    equal, total = deepest.baseline_equal + deepest.candidate_equal, deepest.baseline_total + deepest.candidate_total
    counted = f"{equal} of {total} equal in {LEVEL_TITLES[deepest.level]}"
    if outputs.status == "identical":
        return f"identical ({counted})"
    if outputs.status == "pixels identical":
        return f"decoded pixels identical, raw arrays differ ({counted})"
    worst = "" if outputs.worst is None else f"; worst case {pair_text(outputs.worst)}"
    return f"different ({counted}){worst}"


def pair_text(pair: ComparedPair) -> str:
    """One differing pair: which one, and how far apart."""
    prompt = f" (“{shortened(pair.prompt, LONGEST_PROMPT)}”)" if pair.prompt else ""
    place = f"output {pair.request + 1}{prompt} of {pair.candidate.split('/outputs/')[0].removeprefix('slots/')}"
    if pair.comparison is None:
        return f"{place}: {pair.error}"
    if pair.comparison.mismatch is not None:
        return f"{place}: {pair.comparison.mismatch}"
    comparison = pair.comparison
    if isinstance(comparison, ClipComparison):
        return f"{place}: {clip_text(comparison)}"
    share = comparison.differing_share
    return (
        f"{place}: SSIM {ssim_text(pair)}, PSNR {psnr_text(pair)}, max |Δ| {distance_text(comparison.max_abs)}, "
        f"{'n/a' if share is None else share_text(share)} of values differ"
    )


def ssim_text(pair: ComparedPair) -> str:
    """SSIM with enough digits never to read as 1 when values differ."""
    if pair.comparison is None or pair.comparison.ssim is None:
        return "n/a"
    value = pair.comparison.ssim
    return next((text for digits in range(6, 17) if float(text := f"{value:.{digits}f}") < 1.0), "just below 1")


def psnr_text(pair: ComparedPair) -> str:
    """PSNR in dB."""
    if pair.comparison is None or pair.comparison.psnr_db is None:
        return "∞" if pair.comparison is not None and pair.comparison.psnr_is_infinite else "n/a"
    return f"{number(pair.comparison.psnr_db, 2)} dB"


def determinism_text(outputs: OutputCheck) -> str:
    """Which arms agree with themselves."""
    wavering = [arm for arm in outputs.determinism if not arm.is_deterministic]
    if not wavering:
        return "both arms deterministic"
    return ", ".join(
        f"{ARM_WORDS[arm.arm]} NON-DETERMINISTIC ({arm.distinct} different outputs in {arm.runs} runs)"
        for arm in wavering
    )


def memory_line(memory: MemoryCheck) -> str:
    """The memory sentence."""
    return memory.sentence


def cell_warnings(cell: CellAnalysis) -> list[Reason]:
    """What a reader must know beside the word: of the primary verdict, of the cell, and tails of the client's timer."""
    found = list(cell.verdict.warnings)
    found += [reason for reason in cell.verdict.reasons[1:] if not _speaks_of_wide_interval(cell, reason)]
    found += cell.warnings
    for metric in cell.metrics[1:]:
        if metric.verdict is not None:
            found += [warning for warning in metric.verdict.warnings if warning.code == "POST_WORKER_TAIL"]
    return list(dict.fromkeys(found))


def _speaks_of_wide_interval(cell: CellAnalysis, reason: Reason) -> bool:
    """One block tests nothing, which its headline says; an interval too wide to print adds nothing to that."""
    comparison = cell.verdict.comparison
    if comparison is None or reason.code != "SPREAD_EXCEEDS_EFFECT":
        return False
    return is_too_wide(comparison, comparison.interval_used, is_ablation=cell.is_ablation)


def warning_texts(cell: CellAnalysis) -> list[str]:
    """The cell's warnings, those of one code together, with no more than one next step.

    The headline's next step stands beside the word; only a cell without a headline takes its first warning's.
    """
    groups: dict[str, list[Reason]] = {}
    for warning in cell_warnings(cell):
        groups.setdefault(warning.code, []).append(warning)
    needs_step = cell.verdict.headline is None
    return [
        shortened(reason_text(_together(warnings, has_step=needs_step and index == 0)), LONGEST_WARNING)
        for index, warnings in enumerate(groups.values())
    ]


SUMMARY_CODES = (
    CONTENTION,
    CONTENTION_UNMEASURED,
    "COMMITS_DIFFER",
    "FASTPATH_NOT_TAKEN",
    "BASELINE_NOT_FUSED",
    SITE_REJECTED,
    SITE_FORM_REJECTED,
    SITE_LOST,
    SITE_NEVER_FUSED,
    FIRST_SIGHT,
    COMPILE_INSIDE,
    COLD_BATCH,
)
"""What decides what was timed at all, and beside whom: a report says it in its Summary."""


def what_ran_texts(cell: CellAnalysis) -> list[str]:
    """That others used the machine, that the candidate's own code did not run, or that its check was timed with it.

    One text a code; what is the headline of the verdict stands beside the word already.
    """
    groups: dict[str, list[Reason]] = {code: [] for code in SUMMARY_CODES}
    for warning in (*cell.verdict.reasons[1:], *cell.warnings):
        if warning.code in groups:
            groups[warning.code].append(warning)
    return [
        shortened(reason_text(_together(warnings, has_step=False)), LONGEST_WARNING)
        for warnings in groups.values()
        if warnings
    ]


def _together(warnings: Sequence[Reason], *, has_step: bool) -> Reason:
    details = [warning.detail.rstrip(".") for warning in warnings]
    more = f"; {len(details) - MOST_DETAILS} more" if len(details) > MOST_DETAILS else ""
    step = warnings[0].next_step if has_step else ""
    return Reason(warnings[0].code, "; ".join(details[:MOST_DETAILS]) + more, step)


def standing_notes(analysis: CampaignAnalysis) -> list[str]:
    """What holds for the whole campaign: cut short, blocks left out, an A/A run."""
    from fuseproof.harness.analysis.campaign import failure_reason

    notes = imported_notes(analysis)
    if analysis.campaign.status != "complete":
        done = sum(len(runs.blocks) for runs in analysis.all_runs)
        planned = sum(runs.planned_blocks for runs in analysis.all_runs)
        status = UNFINISHED if analysis.campaign.status == "running" else analysis.campaign.status
        notes.append(
            f"the campaign is {status}: {done} of {planned} planned blocks are complete, and only those are judged"
        )
    notes += [
        f"{runs.name}: block {lost.number} does not count: {failure_reason(lost).detail.rstrip('.')}"
        for runs in analysis.all_runs
        for lost in runs.lost
        if lost.is_doubted
    ][:MOST_DOUBTS]
    notes += [f"{runs.name}: {chosen_text(runs)}" for runs in analysis.all_runs if runs.omitted]
    several = several_candidates_text(analysis)
    notes += [several] if several else []
    if analysis.is_self_comparison:
        notes.append("both arms are the same command (A/A): any difference is noise, and this is the noise")
        notes += noise_texts(analysis)
    weights = weights_text(analysis)
    notes += [weights] if weights else []
    return notes


def several_candidates_text(analysis: CampaignAnalysis) -> str | None:
    """How candidates were compared where there are several, and at which level; None with one."""
    if not analysis.has_several_candidates:
        return None
    number_of = len(analysis.plan.letters) - 1
    shown = next((cell.verdict.comparison for cell in analysis.cells if cell.verdict.comparison is not None), None)
    level = ""
    if shown is not None:
        together = f"{100 * (1 - shown.alpha):g} %"
        level = f"; each interval is a {level_text(shown)}, so that those of one cell hold together at {together}"
    return (
        f"each of {number_of} candidates is held against the baseline (A), by the scatter of all arms' runs{level}; "
        "candidates are not compared with each other"
    )


def chosen_text(runs: CellRuns) -> str:
    """``block 3 of 3 run; others omitted by request``."""
    numbers = [str(block.number) for block in runs.blocks]
    total = len(runs.blocks) + len(runs.omitted)
    noun = "block" if len(numbers) == 1 else "blocks"
    return f"{noun} {', '.join(numbers) or 'none'} of {total} run; others omitted by request"
