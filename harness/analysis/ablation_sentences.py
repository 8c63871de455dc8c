"""An ablation in sentences: whether the parts are the whole, why not, what did not run, and what was predicted."""

from __future__ import annotations

from collections.abc import Mapping

from fuseproof.harness.analysis.ablation_calls import SiteCalls, UnitCalls
from fuseproof.harness.analysis.ablation_effects import CellAblation, Effect, Total, UnitEffects
from fuseproof.harness.number_format import count, number, shortened

MS = 1000.0
MOST_GAPS = 3
MOST_CALLS = 3
LONGEST_REASON = 240
OTHER_CALLS = 0.01
"""Share by which a unit's calls alone may differ from those in company without being named."""


def milliseconds(effect: Effect | None) -> str:
    """``41.3 [38.0, 44.6]``: milliseconds saved, with the 95 % interval."""
    if effect is None:
        return ""
    low, high = effect.interval_s
    return f"{number(MS * effect.seconds, 1)} [{number(MS * low, 1)}, {number(MS * high, 1)}]"


def share_text(effect: Effect | None) -> str:
    """``0.45 %`` of the time without fast paths."""
    return "" if effect is None else f"{number(100 * effect.share, 2)} %"


def whole_text(cell: CellAblation) -> str:
    """The whole with its interval, and what it rests on."""
    if cell.whole is None:
        return f"no numbers, because {cell.no_numbers}."
    basis = f"{count(cell.blocks, 'block')}, df {cell.degrees_of_freedom}"
    return (
        f"{cell.title} {number(cell.baseline_s, 4)} s without fast paths, {number(cell.whole_s, 4)} s with all: the "
        f"whole saves {milliseconds(cell.whole)} ms, {share_text(cell.whole)} (95 % intervals; {basis})."
    )


def sum_texts(cell: CellAblation) -> list[str]:
    """Of each way whether its sum is the whole; then why not, and what of it the runs show."""
    ways = [(way, total) for way, total in (("alone", cell.alone), ("left-out", cell.left_out)) if total is not None]
    sums = [_sum_text(cell, way, total) for way, total in ways]
    why = dict.fromkeys(_why(cell, way, total) for way, total in ways if total.finding == "not the whole")
    if not why:
        return [*sums, *interaction_texts(cell)]
    seen = _calls_seen(cell)
    return [*sums, *(f"Why not: {text[0].lower()}{text[1:]}" for text in why), *interaction_texts(cell), *seen]


def interaction_texts(cell: CellAblation) -> list[str]:
    """The units that are worth something else in company than alone, the largest first."""
    resolved = _resolved_gaps(cell)
    if not any(unit.interaction for unit in cell.units):
        return []
    if not resolved:
        return ["No unit is worth anything else in company than alone, as far as these runs tell."]
    texts = [_gap_text(unit) for unit in resolved[:MOST_GAPS]]
    more = len(resolved) - len(texts)
    return [f"Largest interactions: {'; '.join(texts)}{f'; {more} more in the table' if more > 0 else ''}."]


def note_texts(cell: CellAblation) -> list[str]:
    """What a reader must know before a number of the table is believed."""
    found = [text for unit in cell.units for text in _calls_notes(unit)]
    totals = [total for total in (cell.alone, cell.left_out) if total is not None]
    found += _calls_seen(cell) if all(total.finding != "not the whole" for total in totals) else []
    if cell.units and all(unit.calls.whole is None for unit in cell.units):
        found.append("The arms do not report which fast paths ran, so nothing shows what these times are of.")
    if cell.outside:
        names = ", ".join(cell.outside)
        found.append(f"{names} ran with all fast paths and belongs to no unit: its share is in the whole alone.")
    if cell.other_outputs:
        names = ", ".join(cell.other_outputs)
        found.append(f"Outputs of {names} break the contract: what they save is the time of other outputs.")
    if cell.is_widened:
        found.append("The arms' differences change from block to block by more than runs scatter: intervals are wider.")
    if cell.caps:
        found.append(f"{', '.join(cell.caps)}: what keeps the verdicts from a word is in these numbers as well.")
    found += [cell.curvature] if cell.curvature else []
    found += cell.bench_notes
    if any(total.finding == "unknown" and not total.difference.is_resolved for total in totals):
        found.append(
            f"Runs scatter by {number(MS * (cell.scatter_s or 0), 1)} ms, too much for a sum of this whole: use a "
            "larger workload, a quieter machine or more blocks."
        )
    if cell.blocks == 1:
        found.append("One block: whether the effects hold from block to block was not seen.")
    return found


def prediction_texts(cell: CellAblation) -> list[str]:
    """``layernorm_modulate: 9.8 µs a call × 1,900 calls = 18.6 ms, measured 17.9 [15.2, 20.6] ms: agrees.``"""
    return [text for unit in cell.units if (text := _prediction_text(unit)) is not None]


def unit_line(unit: UnitEffects) -> str:
    """One unit on one line of a terminal."""
    parts = [
        *([f"alone {milliseconds(unit.alone)} ms"] if unit.alone else []),
        *([f"left out {milliseconds(unit.left_out)} ms"] if unit.left_out else []),
        *([f"interaction {milliseconds(unit.interaction)} ms"] if unit.interaction else []),
    ]
    return f"{unit_name(unit)}: {', '.join(parts)}"


def unit_name(unit: UnitEffects) -> str:
    """The unit, what it stands upon and what goes with it."""
    over = f" (over {', '.join(unit.needs)})" if unit.needs else ""
    along = f" (left out with {', '.join(unit.takes_along)})" if unit.takes_along and unit.left_out else ""
    return f"{unit.unit}{over}{along}"


def ablation_lines(cell: CellAblation) -> list[str]:
    """The whole of it as lines of plain text."""
    texts = [*sum_texts(cell), *prediction_texts(cell)]
    return [
        f"ablation of {cell.cell}: {whole_text(cell)}",
        *(f"  {unit_line(unit)}" for unit in by_effect(cell)),
        *(f"  {text}" for text in texts),
        *(f"  note: {text}" for text in note_texts(cell)),
    ]


def by_effect(cell: CellAblation) -> list[UnitEffects]:
    """The units, the one that saves most first."""
    return sorted(cell.units, key=lambda unit: -(unit.measured.seconds if unit.measured else 0.0))


def _sum_text(cell: CellAblation, way: str, total: Total) -> str:
    counted = "" if way == "alone" or not _groups(cell) else ", each with what needs it and counted once,"
    low, high = (number(MS * bound, 1) for bound in total.difference.interval_s)
    apart = f"{number(abs(MS * total.difference.seconds), 1)} ms"
    side = "more" if total.difference.seconds > 0 else "less"
    verdicts = {
        "the whole": "they add up to it, as far as these runs tell",
        "not the whole": f"they do not add up to it, but to {apart} {side}",
        "unknown": "these runs cannot tell whether they add up to it",
    }
    verdict = f"{verdicts[total.finding]} (sum − whole within [{low}, {high}] ms)"
    return (
        f"The {way} effects{counted} sum to {milliseconds(total.sum)} ms; the whole is {milliseconds(cell.whole)} ms: "
        f"{verdict}."
    )


def _groups(cell: CellAblation) -> bool:
    return any(unit.takes_along for unit in cell.units)


def _why(cell: CellAblation, way: str, total: Total) -> str:
    """What the difference means; what times cannot tell apart is said to be so."""
    if (total.difference.seconds < 0) == (way == "alone"):
        return (
            "Fast paths are worth more together than by themselves, as where the host sets the pace and launches that "
            "one saves show only once others have saved theirs, or where one works on what another lays out; which of "
            "these it is, times alone do not tell."
        )
    return (
        "Fast paths overlap: some of what one saves, others save as well, so that any of them alone seems worth more "
        "than it adds in company; which they are, times alone do not tell."
    )


def _calls_seen(cell: CellAblation) -> list[str]:
    found = []
    for unit in cell.units:
        alone, whole = UnitCalls.fused(unit.calls.alone), UnitCalls.fused(unit.calls.whole)
        if unit.alone is None or alone is None or whole is None:
            continue
        if abs(alone - whole) > OTHER_CALLS * max(alone, whole):
            found.append(f"{unit.unit} made {alone:,.0f} fused calls alone and {whole:,.0f} in company")
    return [f"Seen besides: {'; '.join(found[:MOST_CALLS])}."] if found else []


def _resolved_gaps(cell: CellAblation) -> list[UnitEffects]:
    gaps = [unit for unit in cell.units if unit.interaction is not None and unit.interaction.is_resolved]
    return sorted(gaps, key=lambda unit: -abs(unit.interaction.seconds if unit.interaction else 0.0))


def _gap_text(unit: UnitEffects) -> str:
    group = f" with {', '.join(unit.takes_along)}" if unit.takes_along else ""
    if unit.alone_of_group is None or unit.left_out is None:
        return unit.unit
    return (
        f"{unit.unit}{group}, {number(MS * unit.alone_of_group.seconds, 1)} ms alone and "
        f"{number(MS * unit.left_out.seconds, 1)} ms left out ({milliseconds(unit.interaction)} ms)"
    )


def _calls_notes(unit: UnitEffects) -> list[str]:
    calls = unit.calls
    if calls.whole is None:
        return []
    if not UnitCalls.fused(calls.whole):
        return [f"{unit.unit} made no fused call with all fast paths{_states(calls.whole)}: nothing of it was timed."]
    idle = {name: site for name, site in calls.whole.items() if not site.fused}
    found = [f"Of {unit.unit}, {', '.join(idle)} made no fused call{_states(idle)}."] if idle else []
    if unit.alone is not None and calls.alone is not None and not UnitCalls.fused(calls.alone):
        found.append(f"{unit.unit} made no fused call alone{_states(calls.alone)}: its alone effect is of nothing.")
    if unit.left_out is not None and UnitCalls.fused(calls.left_out):
        found.append(f"{unit.unit} ran where it was left out, so its left-out effect is not its own.")
    return found


def _states(sites: Mapping[str, SiteCalls]) -> str:
    """`` (declined: the model is on cpu)``."""
    if not sites:
        return " (not reported)"
    said = dict.fromkeys(
        f"{', '.join(site.states)}: {shortened('; '.join(site.reasons), LONGEST_REASON)}".rstrip(": ")
        for site in sites.values()
    )
    return f" ({'; '.join(said)})"


def _prediction_text(unit: UnitEffects) -> str | None:
    predicted, measured = unit.prediction, unit.measured
    if predicted is None or measured is None:
        return None
    low, high = predicted.saved_s
    overlaps = low <= measured.interval_s[1] and measured.interval_s[0] <= high
    verdict = "agrees" if overlaps else "the measured saving is larger" if measured.seconds > high else "it is smaller"
    lacking = f", without {', '.join(predicted.without_rows)}" if predicted.without_rows else ""
    rows = "" if predicted.rows == 1 else f", from {predicted.rows} shapes and kernels"
    return (
        f"{unit.unit}: {_range(*predicted.saved_us, 1)} µs a call × {predicted.calls:,.0f} calls = "
        f"{_range(MS * low, MS * high, 1)} ms predicted{rows}{lacking}; measured {milliseconds(measured)} ms: "
        f"{verdict}."
    )


def _range(low: float, high: float, digits: int) -> str:
    first, last = number(low, digits), number(high, digits)
    return first if first == last else f"{first} to {last}"
