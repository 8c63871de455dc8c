"""The first sections of a report: Summary and Setup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
from fuseproof.harness.analysis.caveats import weights_text
from fuseproof.harness.analysis.claims import unclaimed_texts
from fuseproof.harness.analysis.editions import COUNTED_LEAD
from fuseproof.harness.analysis.runs import ARMS, Run
from fuseproof.harness.analysis.sentences import (
    broken_counts,
    memory_line,
    outputs_line,
    standing_notes,
    verdict_line,
    what_ran_texts,
    word_counts,
)
from fuseproof.harness.analysis.treatment import treatment_text
from fuseproof.harness.number_format import count, number, shortened
from fuseproof.harness.report.ablation import shown_letters
from fuseproof.harness.report.arm_sources import program_rows, shown_overrides, source_rows
from fuseproof.harness.report.document import Bullets, Code, Paragraph, Part, Section, Strong, Table, Text
from fuseproof.harness.report.imported import (
    imported_machine,
    imported_protocol,
    imported_workload,
    origin_rows,
)
from fuseproof.harness.report.layout import Layout
from fuseproof.harness.report.reproduce import assignments
from fuseproof.harness.statistics.verdict import Word
from fuseproof.schedules.order import ArmLetter
from fuseproof.schedules.plan import Arm, Plan

NOTABLE_FIRST = (Word.SLOWER, Word.FASTER, Word.INVALID, Word.INCONCLUSIVE, Word.SAME)
MOST_SUMMARY_CELLS = 3
MOST_WHAT_RAN = 6
NAMED_LIBRARIES = ("torch", "triton", "diffusers", "transformers")
REQUEST_KEYS = (
    ("width", "width"),
    ("height", "height"),
    ("num_inference_steps", "steps"),
    ("guidance_scale", "guidance"),
    ("seed", "seed"),
    ("num_frames", "frames"),
)
RUN_KEYS = (
    ("quality", "quality"),
    ("backend_used", "backend"),
    ("dtype", "dtype"),
    ("device", "device"),
    ("attention_backend", "attention"),
    ("enable_torch_compile", "torch.compile"),
    ("warmup_mode", "warm-up"),
    ("warmup_steps", "warm-up steps"),
)


def notable_cells(analysis: CampaignAnalysis) -> list[CellAnalysis]:
    """The cells, those that need a reader's attention first; stable, so that plan order decides among equals."""
    return sorted(analysis.cells, key=lambda cell: (cell.outputs.keeps_contract, NOTABLE_FIRST.index(cell.word)))


def summary_section(analysis: CampaignAnalysis, layout: Layout) -> Section:
    """The verdict with its interval, outputs and memory in a line each, and what holds for the whole campaign."""
    if len(analysis.cells) == 1:
        cell = analysis.cells[0]
        rest = verdict_line(cell).removeprefix(f"{cell.word.value}: ")
        parts: tuple[Part, ...] = (
            Paragraph((Strong(cell.word.value), f" · {rest}")),
            Bullets(
                (
                    *(f"{text[0].upper()}{text[1:]}." for _, text in unclaimed_texts(analysis)),
                    outputs_line(cell.outputs),
                    *what_ran_texts(cell),
                    memory_line(cell.memory),
                )
            ),
        )
    else:
        parts = _many_cells_summary(analysis, layout)
    notes = tuple(f"Note: {note}." for note in standing_notes(analysis))
    return Section("Summary", (*parts, Bullets(notes)) if notes else parts)


def _many_cells_summary(analysis: CampaignAnalysis, layout: Layout) -> tuple[Part, ...]:
    cells = analysis.cells
    shown = notable_cells(analysis)[: min(MOST_SUMMARY_CELLS, layout.rows)]
    lines: list[Text] = [_cell_line(cell) for cell in shown]
    unclaimed = unclaimed_texts(analysis)
    lines += [(Strong(name), f": {text}.") for name, text in unclaimed[:MOST_SUMMARY_CELLS]]
    if len(unclaimed) > MOST_SUMMARY_CELLS:
        lines.append(f"{len(unclaimed) - MOST_SUMMARY_CELLS} more clear words are not claimed: Claims says why.")
    lines.append(_outputs_text(cells, analysis.noun))
    lines += _what_ran_lines(cells)
    lines.append(_memory_text(cells, analysis.noun))
    hidden = len(cells) - len(shown)
    if hidden and analysis.edition < COUNTED_LEAD:
        lines.insert(len(shown), f"… and {count(hidden, f'more {analysis.noun}')}: Result has them all.")
    listed = f"; {len(shown)} of them here, all in Result" if hidden and analysis.edition >= COUNTED_LEAD else ""
    where = f" in {count(len(cells), analysis.noun)}"
    lead = Paragraph((Strong(word_counts(analysis)), f"{where}{broken_counts(analysis)}{listed}."))
    return (lead, Bullets(tuple(lines)))


def _outputs_text(cells: Sequence[CellAnalysis], noun: str) -> str:
    """Equality and contracts of what was compared; a contract holds of no outputs only in name."""
    compared = [cell for cell in cells if cell.outputs.decided_by is not None]
    broken = sum(not cell.outputs.keeps_contract for cell in cells)
    kept = sum(cell.outputs.keeps_contract for cell in compared)
    without = len(cells) - len(compared)
    parts = []
    if compared:
        identical = sum(cell.outputs.status == "identical" for cell in compared)
        parts.append(f"{identical} of {count(len(compared), f'compared {noun}')} identical")
        parts.append(f"contracts hold in {kept} of {len(compared)}")
    if without:
        parts.append(f"nothing to compare in {without} of {count(len(cells), noun)}")
    if broken > len(compared) - kept:
        parts.append(f"contracts are not met in {broken} of {len(cells)}")
    return f"Outputs: {'; '.join(parts)}."


def _what_ran_lines(cells: Sequence[CellAnalysis]) -> list[Text]:
    """What did not run as asked, cell by cell; the rest is counted and stands in Limitations."""
    texts: list[Text] = [(Strong(cell.name), f": {text}") for cell in cells for text in what_ran_texts(cell)]
    hidden = len(texts) - MOST_WHAT_RAN
    more: list[Text] = [f"{count(hidden, 'more such warning')} in Limitations."] if hidden > 0 else []
    return [*texts[:MOST_WHAT_RAN], *more]


def _memory_text(cells: Sequence[CellAnalysis], noun: str) -> str:
    moved = [cell for cell in cells if cell.memory.agreement not in ("unchanged", "unknown")]
    still = f"unchanged or unknown in {len(cells) - len(moved)} of {len(cells)} {noun}s"
    if not moved:
        return f"Memory: {still}."
    first = moved[0]
    more = f"; it also moves in {count(len(moved) - 1, f'more {noun}')}" if len(moved) > 1 else ""
    return f"Memory: {first.name}: {memory_line(first.memory).removeprefix('Memory: ').rstrip('.')}{more}; {still}."


def _cell_line(cell: CellAnalysis) -> Text:
    return (Strong(cell.word.value), f" · {shortened(verdict_line(cell).removeprefix(f'{cell.word.value}: '), 400)}")


def setup_section(analysis: CampaignAnalysis, layout: Layout) -> Section:
    """Arms side by side, the workloads, the machine, the protocol."""
    plan = analysis.plan
    letters = shown_letters(plan)
    arms = [plan.arm(letter) for letter in letters]
    limit = layout.text_characters
    rows: list[tuple[Text, ...]] = [
        ("Name", *(shortened(arm.name, limit) for arm in arms)),
        ("Command", *(Code(shortened(_arm_text(arm), 2 * limit)) for arm in arms)),
    ]
    if any(arm.env for arm in arms):
        rows.append(("Environment", *(Code(shortened(assignments(arm.env), limit)) for arm in arms)))
    rows += source_rows(analysis.campaign.lineage, limit, letters)
    rows.append(("Commit", *(_commits(analysis, letter) for letter in letters)))
    rows += program_rows(analysis.all_runs, 2 * limit, letters)
    if any(arm.time_pattern for arm in arms):
        rows.append(("Printed time", *(Code(shortened(arm.time_pattern or "none", limit)) for arm in arms)))
    origin = analysis.campaign.origin
    rows += origin_rows(origin)
    workloads = [cell for cell in analysis.cells if cell.runs.candidate == ARMS[1]]
    shown = workloads[: layout.workloads]
    items: list[Text] = [
        _workload(cell, limit) if origin is None else imported_workload(cell, origin, limit) for cell in shown
    ]
    hidden = len(workloads) - len(items)
    if hidden > 0:
        items.append(f"… and {count(hidden, 'more workload')}; all are in campaign.json.")
    treatment = treatment_text(analysis)
    items = [treatment, *items] if treatment else items
    plan_source = analysis.campaign.plan_source
    items += [plan_source.sentence] if plan_source is not None else []
    weights = weights_text(analysis)
    items += [f"{weights[0].upper()}{weights[1:]}."] if weights else []
    environment = analysis.campaign.environment
    items += [_machine(environment) if origin is None else imported_machine(environment), _protocol(analysis)]
    head = ("", "Baseline (A)", *(f"Candidate ({letter})" for letter in letters[1:]))
    return Section("Setup", (Table(head, tuple(rows)), Bullets(tuple(items))))


def _arm_text(arm: Arm) -> str:
    return arm.command if arm.command is not None else f"fuseproof generate {arm.flags}".strip()


def _commits(analysis: CampaignAnalysis, arm: ArmLetter) -> Text:
    found = dict.fromkeys(commit for cell in analysis.cells for commit in cell.commits.get(arm, ()))
    return Code(", ".join(found)) if found else "not recorded"


def _workload(cell: CellAnalysis, limit: int) -> Text:
    name, first = cell.runs.cell.name, cell.runs.runs[0] if cell.runs.runs else None
    contract = f"contract {cell.outputs.contract}"
    if first is None or first.dump is None or not first.dump.config:
        flags = cell.runs.cell.flags
        shown: tuple[Any, ...] = (": ", Code(shortened(flags, 2 * limit))) if flags else ()
        return (Strong(name), *shown, f"; {contract}.")
    prompts = first.dump.prompts
    quoted = [Code(shortened(prompt, limit)) for prompt in prompts[:1]]
    more = f" and {count(len(prompts) - 1, 'more prompt')}" if len(prompts) > 1 else ""
    model = shortened(first.dump.model or "unknown model", limit)
    facts = ", ".join([*_other_size(first.dump.config), *_facts(first, REQUEST_KEYS), *_facts(first, RUN_KEYS)])
    return (Strong(name), ": ", Code(model), ", ", *quoted, f"{more}; {facts}; {contract}.")


def _facts(run: Run, keys: Iterable[tuple[str, str]]) -> list[str]:
    config = run.dump.config if run.dump else {}
    return [f"{title} {_plain(config[key])}" for key, title in keys if config.get(key) is not None]


def _other_size(config: Mapping[str, Any]) -> list[str]:
    """The size that was asked for, where an input image decided another; the one that was made is among the facts."""
    asked, width, height = config.get("requested_size"), config.get("width"), config.get("height")
    if asked in (None, f"{width}x{height}", f"width {width}", f"height {height}"):
        return []
    return [f"requested size {_plain(asked)}"]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return shortened(str(value), 60)


def _machine(environment: Mapping[str, Any]) -> Text:
    """The machine in one line, from whatever the description holds."""
    processor, memory = _mapping(environment, "processor"), _mapping(environment, "memory")
    system, libraries = _mapping(environment, "operating_system"), _mapping(environment, "libraries")
    python_version = _mapping(environment, "python").get("version")
    gpus = environment.get("gpus") or []
    names = [str(gpu.get("name")) for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []
    parts = [
        ", ".join(names) if names else "no GPU",
        str(processor.get("model") or environment.get("cpu") or "processor unknown"),
        f"{processor['usable_cores']} cores" if processor.get("usable_cores") else "",
        f"{number(float(memory['total_mib']) / 1024, 1)} GiB" if _is_number(memory.get("total_mib")) else "",
        " ".join(str(system[key]) for key in ("system", "release") if system.get(key)),
        f"Python {python_version}" if python_version else "",
        *(f"{name} {libraries[name]}" for name in NAMED_LIBRARIES if libraries.get(name)),
    ]
    return "Machine: " + ", ".join(part for part in parts if part) + "."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and value > 0


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = values.get(key)
    return found if isinstance(found, Mapping) else {}


def common_overrides(analysis: CampaignAnalysis) -> dict[str, str]:
    """The variables set for the slots alone, with every value that any counting run had."""
    found: dict[str, dict[str, None]] = {}
    for cell in analysis.cells:
        for run in cell.runs.runs:
            for name, value in shown_overrides(run.record).items():
                found.setdefault(name, {})[value] = None
    return {name: " or ".join(values) for name, values in sorted(found.items())}


def _threads(analysis: CampaignAnalysis) -> str:
    threads = common_overrides(analysis).get("OMP_NUM_THREADS")
    return f"; OMP_NUM_THREADS {threads}" if threads else ""


def _planned_blocks(plan: Plan) -> str:
    numbers = {cell.name: plan.blocks_of(cell.name) for cell in plan.cells}
    if len(set(numbers.values())) == 1:
        return count(next(iter(numbers.values())), "planned block")
    return "planned blocks " + ", ".join(f"{name} {number}" for name, number in numbers.items())


def _protocol(analysis: CampaignAnalysis) -> Text:
    plan = analysis.plan
    if analysis.campaign.origin is not None:
        return imported_protocol(analysis, analysis.campaign.origin)
    orders = list(dict.fromkeys(" ".join(b.orientation for b in cell.runs.blocks) for cell in analysis.cells))
    ran = orders[0] if len(orders) == 1 and orders[0] else f"{plan.order} order"
    number_of = len(plan.letters) if plan.warmup_slots > 1 else plan.warmup_slots
    warmups = f"{count(number_of, 'discarded warm-up slot')} first" if number_of else "no warm-up slots"
    if len(ran) > 60:
        ran = f"{plan.order} order"
    return (
        f"Protocol: a fresh process for every run, {_planned_blocks(plan)} ({ran}), {warmups}; load and "
        f"warm-up are outside the timers{_threads(analysis)}; primary timer {plan.primary}, minimum effect "
        f"{100 * plan.min_effect:g} %, fuseproof {analysis.campaign.fuseproof_version}."
    )
