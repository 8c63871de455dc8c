"""The text of an A-B-B-A comparison: verdict first, then blocks, numbers, memory, warnings and the raw runs."""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.harness.number_format import MISSING, count, interval, latency_change, number, percent
from fuseproof.harness.perf.abba import PRIMARY, AbbaComparison
from fuseproof.harness.perf.blocks import METRICS, AbbaBlock, seconds_of
from fuseproof.harness.perf.memory import KINDS, format_gib, request_peaks_gib
from fuseproof.harness.perf.text import escape_cell, latency_phrase, markdown_table, render_outputs, render_unequal_work
from fuseproof.harness.statistics.comparison import Comparison
from fuseproof.harness.statistics.reasons import no_point_estimate, share_of_log, share_of_scatter, signed_percent
from fuseproof.harness.statistics.verdict import Reason, Verdict, Word

DIRECTIONAL = (Word.FASTER, Word.SLOWER)


def render_abba(comparison: AbbaComparison) -> str:
    """The whole report as markdown, ending in a newline."""
    is_unequal = any(check.blocking for check in comparison.work)
    is_forced = is_unequal and comparison.verdict.word is not Word.INVALID
    has_numbers = comparison.verdict.comparison is not None
    sections = [
        _title(comparison),
        render_unequal_work(comparison.work, is_forced=is_forced) if is_unequal else "",
        _reasons_section(comparison.verdicts),
        "### Blocks\n\n" + _blocks_table(comparison) if has_numbers else "",
        "### Numbers\n\n" + _numbers_table(comparison.verdicts) if has_numbers else "",
        render_outputs(comparison.outputs, comparison.outputs_reference) if comparison.outputs else "",
        "### Memory\n\n" + escape_cell(comparison.memory.sentence) if comparison.memory else "",
        _warnings_section(comparison),
        _arms_section(comparison),
        "### Raw runs\n\n" + _raw_table(comparison.blocks, list(comparison.verdicts)) if has_numbers else "",
    ]
    return "\n\n".join(section.strip("\n") for section in sections if section) + "\n"


def _title(comparison: AbbaComparison) -> str:
    verdict = comparison.verdict
    lines = [f"## A-B-B-A comparison: {verdict.word}", ""]
    numbers = verdict.comparison
    if numbers is None:
        return "\n".join([*lines, "The measurement proves nothing, so no ratio is shown."])
    lines.append(
        f"**{verdict.word}**: {METRICS[PRIMARY][0]} {_effect(verdict, numbers)}, "
        f"{_confidence(numbers)} % interval of the reduction {interval(*numbers.interval)} %, "
        f"{count(len(numbers.blocks), 'block')} ({' '.join(block.orientation for block in numbers.blocks)}), "
        f"df {numbers.degrees_of_freedom}, minimum effect {percent(numbers.min_effect)}."
    )
    return "\n".join(lines)


def _effect(verdict: Verdict, numbers: Comparison) -> str:
    """The headline number; a doubtful point estimate gives way to the pair median.

    "Faster" and "slower" stand beside FASTER and SLOWER only: words are for what was shown.
    """
    is_directional = verdict.word in DIRECTIONAL
    doubt = no_point_estimate(verdict.warnings)
    if doubt is not None:
        return f"pair median {_change(numbers.pair_median_reduction, is_directional)} ({doubt})"
    return _change(numbers.reduction, is_directional)


def _change(reduction: float, is_directional: bool) -> str:
    return latency_phrase(-reduction) if is_directional else latency_change(reduction, directional=False)


def _confidence(numbers: Comparison) -> str:
    return f"{100 * (1 - numbers.alpha):g}"


def _reasons_section(verdicts: dict[str, Verdict]) -> str:
    reasons = [(METRICS[name][0], reason) for name, verdict in verdicts.items() for reason in verdict.reasons]
    return _reason_list("### Reasons", [reason for _, reason in reasons], [title for title, _ in reasons])


def _warnings_section(comparison: AbbaComparison) -> str:
    own = [(METRICS[name][0], warning) for name, verdict in comparison.verdicts.items() for warning in verdict.warnings]
    warnings = [*comparison.warnings, *(warning for _, warning in own)]
    return _reason_list("### Warnings", warnings, [*("" for _ in comparison.warnings), *(title for title, _ in own)])


def _reason_list(title: str, reasons: Sequence[Reason], prefixes: Sequence[str]) -> str:
    if not reasons:
        return ""
    lines = [
        f"- {reason.code}{f' ({prefix})' if prefix else ''}: {escape_cell(reason.detail)}. {reason.next_step}"
        for prefix, reason in zip(prefixes, reasons, strict=True)
    ]
    return "\n".join([title, "", *lines])


def _blocks_table(comparison: AbbaComparison) -> str:
    titles = [METRICS[name][0] for name in comparison.verdicts]
    headers = ["Block", "Order", *(f"{title}: A → B (s), mean reduction" for title in titles)]
    rows = []
    for index, block in enumerate(comparison.blocks):
        cells = []
        for verdict in comparison.verdicts.values():
            numbers = _numbers(verdict).blocks[index]
            means = f"{number(numbers.baseline_mean_s, 4)} → {number(numbers.candidate_mean_s, 4)}"
            cells.append(f"{means} ({percent(numbers.mean_reduction)})")
        rows.append([block.name, block.orientation, *cells])
    pooled = [_numbers(verdict) for verdict in comparison.verdicts.values()]
    pooled_cells = [
        f"{number(numbers.baseline.mean_s, 4)} → {number(numbers.candidate.mean_s, 4)} "
        f"({percent(numbers.mean_reduction)})"
        for numbers in pooled
    ]
    rows.append(["pooled", "", *pooled_cells])
    return markdown_table(headers, rows, numeric_from=2)


def _numbers_table(verdicts: dict[str, Verdict]) -> str:
    columns = [_number_cells(verdict) for verdict in verdicts.values()]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return markdown_table(["", *(METRICS[name][0] for name in verdicts)], rows, numeric_from=1)


def _number_cells(verdict: Verdict) -> dict[str, str]:
    numbers = _numbers(verdict)
    detectable = numbers.smallest_detectable_effect
    return {
        "verdict": verdict.word.value,
        "reduction (log form)": percent(numbers.reduction),
        f"{_confidence(numbers)} % interval": f"{interval(*numbers.interval)} %",
        "interval used for the verdict": f"{interval(*numbers.interval_used)} %",
        "mean form": percent(numbers.mean_reduction),
        "pair median": percent(numbers.pair_median_reduction),
        "median of arms": percent(numbers.median_reduction),
        "minimum of arms": percent(numbers.minimum_reduction),
        "scatter of one run": percent(share_of_scatter(numbers.scatter), 3),
        "spread F (worst of one arm)": percent(numbers.noise_floor),
        "drift per slot, by block": ", ".join(
            signed_percent(share_of_log(block.drift_per_slot), 3) for block in numbers.blocks
        ),
        "arms separated in every block": "yes" if numbers.arms_are_separated else "no",
        "smallest detectable effect": MISSING if detectable is None else percent(detectable),
        "permutation p": "no test below 3 blocks" if len(numbers.blocks) < 3 else number(numbers.permutation_p, 3),
    }


def _arms_section(comparison: AbbaComparison) -> str:
    unchecked = dict.fromkeys(field for check in comparison.work for field in check.unchecked)
    lines = [f"differs between the arms: {note}" for note in comparison.arms_differ]
    if unchecked:
        lines.append(f"not recorded in every dump, so not checked: {', '.join(unchecked)}.")
    if len(comparison.blocks) == 2 and comparison.verdict.word in DIRECTIONAL:
        lines.append("assumed, since two blocks cannot test it: the effect does not change from block to block.")
    return "\n".join(["### Arms", "", *(f"- {escape_cell(line)}" for line in lines)]) if lines else ""


def _raw_table(blocks: Sequence[AbbaBlock], metrics: Sequence[str]) -> str:
    peaks = [request_peaks_gib([dump]) for block in blocks for dump in block.dumps]
    kinds = [kind for kind in KINDS if any(kind in peak for peak in peaks)]
    headers = ["Block", "Slot", *(f"{METRICS[metric][0]} (s)" for metric in metrics)]
    headers += [*(f"Peak {kind} (GiB)" for kind in kinds), "Commit", "File"]
    rows: list[list[str]] = []
    for block in blocks:
        for slot, label, dump in zip(block.slot_labels, block.labels, block.dumps, strict=True):
            peak = peaks[len(rows)]
            memory = [format_gib(peak[kind]) if kind in peak else MISSING for kind in kinds]
            times = [number(seconds_of(dump, metric), 4) for metric in metrics]
            rows.append([block.name, slot, *times, *memory, dump.short_commit, label])
    return markdown_table(headers, rows, numeric_from=2)


def _numbers(verdict: Verdict) -> Comparison:
    if verdict.comparison is None:
        raise AssertionError("a verdict over whole blocks carries its numbers")
    return verdict.comparison
