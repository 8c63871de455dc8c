"""The sections that keep the books: Raw runs, Environment, Limitations."""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.harness.analysis.audit import audit
from fuseproof.harness.analysis.campaign import CampaignAnalysis, failure_reason
from fuseproof.harness.analysis.caveats import claimed_times_text, weights_text
from fuseproof.harness.analysis.contention import unmeasured_text
from fuseproof.harness.analysis.contradictions import DOUBTED_CODES
from fuseproof.harness.analysis.imported import imported_caveats
from fuseproof.harness.analysis.metrics import TITLES, timers_of
from fuseproof.harness.analysis.runs import LostBlock
from fuseproof.harness.analysis.sentences import cell_warnings, chosen_text, warning_texts
from fuseproof.harness.campaign.folder import MISSING as MISSING_SLOT
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.number_format import MISSING, count, gib, number, seconds, shortened
from fuseproof.harness.report.document import (
    CodeBlock,
    Details,
    Paragraph,
    Part,
    Section,
    Strong,
    Table,
    Text,
    bullets,
)
from fuseproof.harness.report.layout import Layout
from fuseproof.harness.report.overview import common_overrides
from fuseproof.harness.report.results import ASSUMPTION
from fuseproof.harness.report.setup_facts import flattened, is_ever_changing

RAW_RUNS_FILE = "raw-runs.md"
MOST_LOGS = 3
MOST_WARNINGS = 5
MOST_FOLDED_WARNINGS = 60
MOST_DIFFERENCES = 8
MOST_SESSION_DIFFERENCES = 12


def raw_runs_section(analysis: CampaignAnalysis, layout: Layout) -> Section:
    """Every run ever started, usable or not, in the order they ran."""
    slots = [slot for runs in analysis.all_runs for slot in runs.slots]
    used = sum(len(runs.runs) for runs in analysis.all_runs)
    given = sum(slot.state != "absent" for slot in slots)
    summary = f"All {count(given, 'run')}, of which {used} count"
    if not layout.has_raw_runs:
        note = f"{summary}: moved to {RAW_RUNS_FILE} beside this file, because the text would not fit a pull request."
        return Section("Raw runs", (Paragraph(note),))
    return Section("Raw runs", (Details(summary, (raw_table(analysis),)),))


def raw_table(analysis: CampaignAnalysis) -> Table:
    """One row a slot; the columns are the timers and the memory that any slot recorded."""
    slots = [slot for runs in analysis.all_runs for slot in runs.slots]
    known = timers_of(analysis.edition)
    timers = [name for name in known if any(getattr(slot.times, f"{name}_s") is not None for slot in slots)]
    has_device = any(slot.memory.peak_reserved_mib is not None for slot in slots)
    peak_title = "Peak reserved GiB" if has_device else "Peak RSS GiB"
    rows: list[tuple[Text, ...]] = []
    for runs in analysis.all_runs:
        counted = {run.record.id for run in runs.runs}
        for slot in runs.slots:
            peak = slot.memory.peak_reserved_mib if has_device else slot.memory.peak_rss_mib
            attempt = "" if slot.attempt == 1 else f" (attempt {slot.attempt})"
            rows.append(
                (
                    f"{runs.name}-r{slot.block}{attempt}",
                    slot.label,
                    *(seconds(getattr(slot.times, f"{name}_s")) for name in timers),
                    gib(peak),
                    _slot_note(slot, slot.id in counted),
                )
            )
    head = ("Block", "Arm", *(TITLES[name] for name in timers), peak_title, "Note")
    return Table(head, tuple(rows), numeric=range(2, len(head) - 1))


def _slot_note(slot: SlotRecord, is_counted: bool) -> str:
    notes = []
    if slot.kind == "warmup":
        notes.append("discarded warm-up")
    if slot.state != "done":
        notes.append(shortened(f"{slot.state} {slot.reason_code or ''}: {slot.reason or 'no reason recorded'}", 160))
    elif not is_counted and slot.kind == "timed":
        notes.append("not counted")
    if slot.contention.busy:
        notes.append(f"busy machine ({_share(slot.contention.other_cpu_share)} of all cores used by others)")
    elif slot.contention.other_cpu_share is None and slot.state == "done":
        notes.append("contention not measured")
    return "; ".join(notes)


def _share(share: float | None) -> str:
    return MISSING if share is None else f"{number(100 * share, 0)} %"


def environment_section(analysis: CampaignAnalysis, layout: Layout) -> Section:
    """The machine and the software as they described themselves, and the settings every slot ran with."""
    rows = list(flattened(analysis.campaign.environment))
    overrides = common_overrides(analysis)
    rows += [(f"slot environment {name}", value) for name, value in overrides.items()]
    table = Table(("What", "Value"), tuple((name, shortened(value, 300)) for name, value in rows))
    parts: list[Part] = [table]
    differences = _session_differences(analysis)
    if differences:
        parts.append(Paragraph("The campaign was resumed, and these changed between its sessions:"))
        parts += bullets(differences)
    return Section("Environment", (Details("Machine, software and settings", tuple(parts)),))


def _session_differences(analysis: CampaignAnalysis) -> tuple[Text, ...]:
    sessions = analysis.campaign.sessions
    if len(sessions) < 2:
        return ()
    first = dict(flattened(sessions[0].environment))
    changed = {
        shortened(f"{name}: {first.get(name, 'nothing')} → {value}", 200): None
        for session in sessions[1:]
        for name, value in flattened(session.environment)
        if first.get(name) != value and not is_ever_changing(name)
    }
    return tuple(list(changed)[:MOST_SESSION_DIFFERENCES])


def limitations_section(analysis: CampaignAnalysis, layout: Layout) -> Section:
    """What was lost, what was not checked, and what a reader must not conclude."""
    warnings: list[Text] = [(Strong(cell.name), f": {text}") for cell in analysis.cells for text in warning_texts(cell)]
    items: list[Text] = [*_lost(analysis), *_omitted(analysis), *_work(analysis)]
    is_short = len(warnings) <= MOST_WARNINGS and analysis.plan.ablation is None
    items += warnings if is_short else _warning_counts(analysis)
    if any(len(cell.runs.blocks) > 1 and cell.metrics for cell in analysis.cells):
        items.append(ASSUMPTION)
    unmeasured = None if analysis.campaign.origin is None else unmeasured_text(analysis.all_runs)
    caveats = (unmeasured, claimed_times_text(analysis.plan), weights_text(analysis))
    items += [f"{text[0].upper()}{text[1:]}." for text in (*imported_caveats(analysis), *caveats) if text]
    items.append("One machine, these workloads: nothing is claimed about others.")
    folded = () if is_short else (Details("All warnings", bullets(warnings[:MOST_FOLDED_WARNINGS])),)
    return Section("Limitations", (*bullets(items), *folded, *_logs(analysis, layout)))


def _warning_counts(analysis: CampaignAnalysis) -> list[Text]:
    """One line a code, when there are too many warnings to read."""
    cells: dict[str, dict[str, None]] = {}
    for cell in analysis.cells:
        for warning in cell_warnings(cell):
            cells.setdefault(warning.code, {})[cell.name] = None
    return [f"{code} in {_names(list(names))}; details below and in report.json." for code, names in cells.items()]


def _lost(analysis: CampaignAnalysis) -> list[Text]:
    records = audit(analysis)
    blocks = f" Blocks {records.block_line}." if records.block_line else ""
    items: list[Text] = [f"{records.line}. {_kept_text(analysis)}{blocks}"]
    lost = [(runs, lost) for runs in analysis.all_runs for lost in runs.lost]
    for runs, block in lost[:6]:
        items.append((Strong(runs.name), f": block {block.number} lost: {_lost_reason(block)}"))
    if len(lost) > 6:
        items.append(f"{count(len(lost) - 6, 'more lost block')} in report.json.")
    return items


def _kept_text(analysis: CampaignAnalysis) -> str:
    slots = [slot for runs in analysis.all_runs for slot in runs.slots]
    gone = sum(slot.reason_code == MISSING_SLOT for slot in slots)
    doubted = sum(slot.reason_code in DOUBTED_CODES for slot in slots) - gone
    absent = sum(slot.state == "absent" for slot in slots)
    if not gone and not doubted and not absent:
        return "All are kept on disk."
    texts = [f"{count(absent, 'run')} of which no file was given"] if absent else []
    texts += [f"{count(gone, 'run')} missing from the disk"] if gone else []
    texts += [f"{count(doubted, 'run')} with files that are not as the run left them"] if doubted else []
    return f"Of these, {', '.join(texts)}; the others are kept on disk."


def _lost_reason(lost: LostBlock) -> str:
    return shortened(failure_reason(lost).detail, 300)


def _omitted(analysis: CampaignAnalysis) -> list[Text]:
    return [(Strong(runs.name), f": {chosen_text(runs)}.") for runs in analysis.all_runs if runs.omitted]


def _work(analysis: CampaignAnalysis) -> list[Text]:
    """Equal work: what forbids the ratio, what was declared, what could not be checked; said once for equal cells."""
    items: dict[str, list[str]] = {}
    for cell in analysis.cells:
        work = cell.equal_work
        for start, found in (
            ("unequal work:", work.differences),
            ("the arms differ by declaration in", work.declared),
            ("the arms also differ in", work.notes),
            ("equal work could not be checked (not recorded by the arms) for", work.unchecked),
        ):
            if found:
                items.setdefault(f"{start} {'; '.join(found[:MOST_DIFFERENCES])}", []).append(cell.name)
    texts = list(items.items())[:MOST_DIFFERENCES]
    return [(Strong(_names(names)), f": {shortened(text, 500)}.") for text, names in texts]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _logs(analysis: CampaignAnalysis, layout: Layout) -> list[Part]:
    """The last lines of failed slots."""
    failed = [slot for runs in analysis.all_runs for slot in runs.slots if slot.state == "invalid" and slot.log_tail]
    parts = []
    for slot in failed[:MOST_LOGS]:
        lines = "\n".join(line[:200] for line in slot.log_tail[-layout.log_lines :])
        parts.append(Details(f"Last lines of {slot.id} ({slot.reason_code})", (CodeBlock(lines),)))
    return list(parts)
