"""The default rendering of a comparison: markdown that reads well in a terminal and pastes into a pull request.

Signs are never ambiguous: a faster candidate is "−2.25 % latency (1.023× faster)". Words carry the meaning, colours and
emoji do not. Whatever came from a dump is escaped: a prompt may hold pipes, backticks, HTML or terminal codes.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.harness.escape import visible
from fuseproof.harness.number_format import latency_change, number
from fuseproof.harness.perf.comparison import PerfComparison, TimeRow
from fuseproof.harness.perf.memory import MemoryRow, format_gib
from fuseproof.harness.perf.outputs import OutputsComparison, outputs_lines
from fuseproof.harness.perf.steps import StepStatistics
from fuseproof.harness.perf.work import SPEED_FIELD, WorkCheck

LONGEST_PROMPT = 80
ABSENT = "n/a"
DOUBT_ADVICE = "check that both runs did the same work on an idle machine, or run A-B-B-A blocks"
BUSY = "Others used the machine, and may have made this difference"
SINGLE_RUNS = (
    "Single runs: a description, not a verdict. How far two runs of one program differ here is not known; pass A-B-B-A "
    "blocks with --abba for that."
)
_REFERENCES = {ord(character): f"&#{ord(character)};" for character in "&<>|`*@\\"}
"""Character references hold in a table cell and in a paragraph alike; names with underscores stay readable."""


def render_comparison(comparison: PerfComparison, *, is_forced: bool = False) -> str:
    """The whole report as markdown, ending in a newline; ``is_forced`` shows numbers of unequal work all the same."""
    if not comparison.is_equal_work and not is_forced:
        unequal = (
            render_unequal_work(comparison.work),
            _explanations(comparison),
            render_outputs(comparison.outputs, comparison.labels[0]),
        )
        return _joined(unequal)
    sections = [
        _title(comparison),
        *([render_unequal_work(comparison.work, is_forced=True)] if not comparison.is_equal_work else []),
        _explanations(comparison),
        "### Times\n\n" + _times_table(comparison),
        _steps_section(comparison),
        "### Stages\n\n" + _stages_table(comparison),
        render_outputs(comparison.outputs, comparison.labels[0]),
        _memory_section(comparison),
        _work_section(comparison),
        _bullets("### Warnings", comparison.warnings),
    ]
    return _joined(sections)


def _joined(sections: Sequence[str]) -> str:
    return "\n\n".join(section.strip("\n") for section in sections if section) + "\n"


def _explanations(comparison: PerfComparison) -> str:
    return "\n".join(f"{escape_cell(text[0].upper() + text[1:])}." for text in comparison.explanations)


def render_unequal_work(checks: Sequence[WorkCheck], *, is_forced: bool = False) -> str:
    """What differs between the runs, and that this forbids a ratio."""
    consequence = "compared all the same (--force): the ratios below mean nothing" if is_forced else "no ratio is shown"
    rows = [
        [difference.sentence or difference.field, difference.baseline, difference.other, check.label]
        for check in checks
        for difference in check.blocking
    ]
    title = f"### INVALID: unequal work, {consequence}"
    return f"{title}\n\n{markdown_table(['What differs', 'Baseline', 'Other', 'File'], rows)}\n"


def render_outputs(comparisons: Sequence[OutputsComparison], reference: str) -> str:
    """The section that says which outputs are the same; ``reference`` names the run they are compared with."""
    lines = [escape_cell(line) for line in outputs_lines(comparisons, reference)]
    differing = [output for comparison in comparisons for output in comparison.differing]
    if any(output.agrees_in is None and not output.is_unpaired for output in differing):
        lines.append("How far apart they are: `fuseproof compare-media`.")
    text = f"Outputs: {lines[0]}" if len(lines) == 1 else "\n".join(f"- {line}" for line in lines)
    return f"### Outputs\n\n{text}"


def latency_phrase(change: float) -> str:
    """A relative change of a time with its direction spelt out: -0.0225 → ``−2.25 % latency (1.023× faster)``."""
    return latency_change(-change, directional=format_percent(change) != "0.00 %")


def format_percent(share: float) -> str:
    """A signed percentage with two decimals; zero has no sign."""
    return f"{number(share * 100, signed=True)} %"


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, numeric_from: int | None = None) -> str:
    """A markdown table with escaped cells; columns from ``numeric_from`` on are aligned to the right."""
    first_numeric = len(headers) if numeric_from is None else numeric_from
    rules = [":---" if index < first_numeric else "---:" for index in range(len(headers))]
    lines = [[escape_cell(cell) for cell in line] for line in (headers, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rules, *lines[1:]])


def escape_cell(text: str) -> str:
    """Text that stays inside its table cell: no markdown structure, no HTML, no control characters."""
    return visible(" ".join(text.split())).translate(_REFERENCES).replace("](", "]&#40;")


def _title(comparison: PerfComparison) -> str:
    headline, baseline = comparison.headline, comparison.dumps[0]
    lines = ["## Perf comparison", ""]
    for role, label, dump in zip(_roles(comparison), comparison.labels, comparison.dumps, strict=True):
        lines.append(f"- {role}: {escape_cell(label)} (commit {escape_cell(dump.short_commit)})")
    if baseline.model or baseline.prompts:
        prompt = " / ".join(baseline.prompts) or "no prompt recorded"
        prompt = prompt if len(prompt) <= LONGEST_PROMPT else f"{prompt[:LONGEST_PROMPT]}..."
        lines.append(f"- Request: {escape_cell(baseline.model or 'unknown model')}: {escape_cell(prompt)}")
    lines.append("")
    for index, label in enumerate(comparison.labels[1:]):
        change, candidate_ms = headline.change(index), headline.candidates_ms[index]
        if change is None or candidate_ms is None:
            continue
        numbers = f"{headline.name} {_milliseconds(headline.baseline_ms)} → {_milliseconds(candidate_ms)} ms"
        doubt = headline.doubt(index)
        if doubt is None:
            lines.append(f"{escape_cell(label)}: {numbers}, {_phrase(comparison, change)}.")
        else:
            lines.append(f"{escape_cell(label)}: {numbers}, {doubt}; {DOUBT_ADVICE}.")
    lines += [f"{BUSY}: {escape_cell('; '.join(comparison.busy))}."] if comparison.busy else []
    lines.append(SINGLE_RUNS)
    return "\n".join(lines)


def _phrase(comparison: PerfComparison, change: float) -> str:
    """A change in words; on a busy machine "faster" would say more than the times do."""
    return latency_change(-change, directional=False) if comparison.busy else latency_phrase(change)


def _roles(comparison: PerfComparison) -> list[str]:
    candidates = len(comparison.labels) - 1
    return ["Baseline", *(["Candidate"] if candidates == 1 else [f"Candidate {i + 1}" for i in range(candidates)])]


def _headers(comparison: PerfComparison, first: str, unit: str) -> list[str]:
    if len(comparison.labels) == 2:
        return [first, f"Baseline ({unit})", f"Candidate ({unit})", f"Diff ({unit})", "Change"]
    return [first, f"Baseline ({unit})", *(f"{label} ({unit})" for label in comparison.labels[1:])]


def _time_cells(row: TimeRow, *, in_words: bool, has_busy_runs: bool = False) -> list[str]:
    cells = [_milliseconds(row.baseline_ms)]
    for index, candidate_ms in enumerate(row.candidates_ms):
        change = row.change(index)
        text = row.marker(index) or ABSENT
        if change is not None:
            text = _change_in_words(row, index, change, has_busy_runs) if in_words else format_percent(change)
        if len(row.candidates_ms) > 1:
            cells.append(f"{_milliseconds(candidate_ms)} ({text})")
            continue
        has_both = candidate_ms is not None and row.baseline_ms is not None
        difference = number((candidate_ms or 0) - (row.baseline_ms or 0), signed=True) if has_both else ABSENT
        cells += [_milliseconds(candidate_ms), difference, text]
    return cells


def _times_table(comparison: PerfComparison) -> str:
    rows = []
    for row in comparison.times:
        name = f"{row.name} ({row.note})" if row.note else row.name
        in_words = row.name in {"Worker E2E", comparison.headline.name}
        rows.append([name, *_time_cells(row, in_words=in_words, has_busy_runs=bool(comparison.busy))])
    rows.append(["Throughput (req/s)", *_throughput_cells(comparison.throughput_per_s)])
    return markdown_table(_headers(comparison, "Metric", "ms"), rows, numeric_from=1)


def _throughput_cells(per_second: Sequence[float]) -> list[str]:
    baseline, candidates = per_second[0], per_second[1:]
    if len(candidates) == 1:
        change = format_percent(candidates[0] / baseline - 1)
        return [f"{baseline:.4g}", f"{candidates[0]:.4g}", number(candidates[0] - baseline, 4, signed=True), change]
    return [f"{baseline:.4g}", *(f"{value:.4g} ({format_percent(value / baseline - 1)})" for value in candidates)]


def _steps_section(comparison: PerfComparison) -> str:
    if not any(comparison.steps):
        return "### Denoise steps\n\nn/a: no dump records its steps."
    headers = ["Statistic (steady steps of request 0)", "Baseline", *_candidate_columns(comparison)]
    rows = [[name, *(_step_cell(entry, name) for entry in comparison.steps)] for name in _STEP_ROWS]
    return "### Denoise steps\n\n" + markdown_table(headers, rows, numeric_from=1)


_STEP_ROWS = (
    "number of steps",
    "step left out (counted from 0)",
    "mean (ms)",
    "median (ms)",
    "minimum (ms)",
    "maximum (ms)",
)


def _step_cell(entry: StepStatistics | None, name: str) -> str:
    if entry is None:
        return "n/a"
    left_out = ", ".join(f"step {index}" for index in entry.left_out_steps) or "none"
    times_ms = (entry.mean_ms, entry.median_ms, entry.minimum_ms, entry.maximum_ms)
    cells = (str(entry.count), left_out, *(f"{time_ms:.2f}" for time_ms in times_ms))
    return cells[_STEP_ROWS.index(name)]


def _change_in_words(row: TimeRow, index: int, change: float, has_busy_runs: bool) -> str:
    is_doubtful = has_busy_runs or row.doubt(index) is not None
    return latency_change(-change, directional=False) if is_doubtful else latency_phrase(change)


def _candidate_columns(comparison: PerfComparison) -> list[str]:
    return ["Candidate"] if len(comparison.labels) == 2 else list(comparison.labels[1:])


def _stages_table(comparison: PerfComparison) -> str:
    rows = [[row.name, *_time_cells(row, in_words=False)] for row in comparison.stages]
    remainder = comparison.unattributed
    rows.append([f"{remainder.name} ({remainder.note})", *_time_cells(remainder, in_words=False)])
    rows += [
        [f"{row.name} (outside the total)", *_time_cells(row, in_words=False)] for row in comparison.outside_stages
    ]
    return markdown_table(_headers(comparison, "Stage", "ms"), rows, numeric_from=1)


def _memory_section(comparison: PerfComparison) -> str:
    table = comparison.memory
    if not table.rows:
        return ""
    rows = [[row.title, row.kind, *_memory_cells(row)] for row in table.rows]
    headers = ["Checkpoint", "Kind", "Baseline (GiB)", *(f"{name} (GiB)" for name in _candidate_columns(comparison))]
    headers += ["Diff (GiB)"] if len(comparison.labels) == 2 else []
    sentences = [claim.sentence for claim in table.claims]
    if len(sentences) > 1:
        labelled = zip(comparison.labels[1:], sentences, strict=True)
        sentences = [f"- {escape_cell(label)}: {sentence}" for label, sentence in labelled]
    return "### Memory\n\n" + "\n".join(sentences) + "\n\n" + markdown_table(headers, rows, numeric_from=2)


def _memory_cells(row: MemoryRow) -> list[str]:
    values = [row.baseline_gib, *row.candidates_gib]
    cells = [ABSENT if value is None else format_gib(value) for value in values]
    if len(values) == 2:
        before, after = values
        cells.append(ABSENT if before is None or after is None else number(after - before, 3, signed=True))
    return cells


def _work_section(comparison: PerfComparison) -> str:
    lines = []
    for check in comparison.work:
        prefix = f"{check.label}: " if len(comparison.work) > 1 else ""
        doubt = next((note for note in check.notes if note.field == SPEED_FIELD), None)
        if doubt is not None:
            lines.append(f"{prefix}{doubt}, so the work may have been unequal in something that is not recorded.")
        elif not check.blocking:
            but = ", but others used the machine" if comparison.busy else ""
            lines.append(f"{prefix}nothing recorded says that the work or its measurement was unequal{but}.")
        shown = [note for note in check.notes if note.field not in (SPEED_FIELD, "outputs")]
        lines += [f"{prefix}differs: {difference}" for difference in shown]
        if check.unchecked:
            lines.append(f"{prefix}not recorded in both dumps, so not checked: {', '.join(check.unchecked)}.")
    return _bullets("### Equal work", lines)


def _bullets(title: str, lines: Sequence[str]) -> str:
    return "\n".join([title, "", *(f"- {escape_cell(line)}" for line in lines)]) if lines else ""


def _milliseconds(value: float | None) -> str:
    return number(value)
