"""The Telemetry section: how the GPUs ran under each arm, how closely that was seen, and what it cannot exclude."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fuseproof.harness.analysis.campaign import CampaignAnalysis, CellAnalysis
from fuseproof.harness.analysis.gpu_clocks import CLOCK_LIMIT, ClockDifference
from fuseproof.harness.analysis.gpu_conditions import BASES, ArmConditions, GpuConditions
from fuseproof.harness.analysis.gpu_reasons import NORMAL_EVENTS, clock_text, sampling_text
from fuseproof.harness.analysis.runs import ARM_WORDS
from fuseproof.harness.number_format import MISSING, count, number
from fuseproof.harness.report.document import Bullets, Details, Paragraph, Part, Section, Table, Text
from fuseproof.harness.report.layout import Layout
from fuseproof.harness.report.traces import slot_traces
from fuseproof.harness.statistics.reasons import percent

HEAD = ("Workload", "Arm", "SM clock MHz", "Memory clock MHz", "Power W", "Highest °C (memory)", "Events", "Samples")
UNITS = "Means over the runs; temperatures are the highest seen. Events: share of samples with a clock event reason."


def telemetry_section(analysis: CampaignAnalysis, layout: Layout) -> Section | None:
    """A row an arm and cell, folded where there is no room for it; None for a campaign without GPUs."""
    looked = [(cell, cell.gpu) for cell in analysis.cells if cell.gpu is not None]
    if not looked:
        return None
    is_short = layout.shows_all_timers and len(looked) <= layout.rows
    shown = looked if is_short else looked[: layout.verdict_rows]
    rows = tuple(_row(cell, arm) for cell, gpu in shown for arm in gpu.arms)
    table = Table(HEAD, rows, numeric=range(2, 6))
    left_out = len(looked) - len(shown)
    parts: list[Part] = [Bullets(tuple(_sentences([gpu for _, gpu in looked])))]
    more = (Paragraph(f"{count(left_out, 'more cell')} in report.html and report.json."),) if left_out else ()
    folded: tuple[Part, ...] = (table, Paragraph(UNITS), *more)
    parts += folded if is_short and len(looked) == 1 else [Details("GPU conditions by arm", folded)]
    if layout.has_figures:
        traces = slot_traces(analysis)
        parts += [Details("GPU traces, slot by slot", traces)] if traces else []
    return Section("Telemetry", tuple(parts))


def _row(cell: CellAnalysis, arm: ArmConditions) -> tuple[Text, ...]:
    memory_c = "" if arm.memory_temperature_c is None else f" ({number(arm.memory_temperature_c, 0)})"
    return (
        cell.name,
        ARM_WORDS[arm.arm],
        number(arm.sm_clock_mhz, 0),
        number(arm.memory_clock_mhz, 0),
        number(arm.power_w, 0),
        f"{number(arm.temperature_c, 0)}{memory_c}",
        _events(arm),
        str(arm.samples),
    )


def _events(arm: ArmConditions) -> str:
    if not arm.event_samples:
        return MISSING
    told = [f"{name} {percent(share, 0)}" for name, share in arm.event_shares.items() if name not in NORMAL_EVENTS]
    return ", ".join(told) or "none"


def _sentences(all_conditions: Sequence[GpuConditions]) -> list[Text]:
    """What holds for all cells, from the worst of them."""
    found: list[Text] = [_clock_sentence(all_conditions)]
    sampled = [gpu for gpu in all_conditions if gpu.interval_s is not None]
    if sampled:
        widest = max(sampled, key=lambda gpu: gpu.longest_gap_s or 0.0)
        found.append(_sentence(sampling_text(widest) or ""))
    blind = sum(gpu.runs_without_samples for gpu in all_conditions)
    if blind:
        why = next((gpu.reason for gpu in all_conditions if gpu.reason), "no sample")
        total = sum(gpu.runs for gpu in all_conditions)
        found.append(f"In {blind} of {count(total, 'run')} nobody knows how the GPUs ran: {why}.")
    waits = [gpu.total_wait_s for gpu in all_conditions if gpu.total_wait_s is not None]
    if waits:
        longest = max(gpu.longest_wait_s or 0.0 for gpu in all_conditions)
        found.append(
            f"Between the slots the GPUs' memory was waited for: {number(math.fsum(waits), 1)} s in all, at most "
            f"{number(longest, 1)} s after a slot."
        )
    return found


def _clock_sentence(all_conditions: Sequence[GpuConditions]) -> str:
    known = [(gpu.worst_clock, gpu) for gpu in all_conditions if gpu.worst_clock is not None]
    if not known:
        if any(gpu.unlike_cards for gpu in all_conditions):
            return "The arms' clocks were not compared: the arms worked on different cards."
        return "The arms' clocks were not compared: not every run has samples of a working card."
    clock, worst = max(known, key=lambda pair: _distance(pair[0]))
    if len(all_conditions) == 1:
        return _sentence(f"{clock_text(worst, clock)}, limit {percent(CLOCK_LIMIT, 0)}{_cards_text(worst)}")
    bases = ", ".join(sorted({BASES[gpu.basis] for _, gpu in known if gpu.basis}))
    return (
        f"The arms' mean SM clocks differ by at most {percent(abs(clock.share))} (limit {percent(CLOCK_LIMIT, 0)}) in "
        f"{len(known)} of {count(len(all_conditions), 'cell')}, {bases}."
    )


def _distance(clock: ClockDifference) -> float:
    return abs(clock.share)


def _cards_text(conditions: GpuConditions) -> str:
    return f"; judged by {count(len(conditions.cards), 'card')}, the same in every run" if conditions.cards else ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
