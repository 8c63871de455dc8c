"""What the GPUs' conditions forbid or ask a reader to know: reasons with codes, and the sentences of the report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fuseproof.harness.analysis.gpu_clocks import CLOCK_LIMIT, ClockDifference
from fuseproof.harness.analysis.gpu_conditions import BASES, GpuConditions
from fuseproof.harness.analysis.metrics import seconds_of
from fuseproof.harness.analysis.runs import ARM_WORDS, ARMS, CellRuns
from fuseproof.harness.campaign.gpu_records import POWER_CAPPED, THERMALLY_SLOWED
from fuseproof.harness.number_format import count, gib, number
from fuseproof.harness.statistics.reasons import Reason, change, percent

SHARE_LIMIT = 0.10
"""Shares of samples with an event reason that differ by more are flagged."""
NORMAL_EVENTS = frozenset({"idle", "applications clocks"})
"""These event reasons say nothing about a measurement."""
EVENT_CODES = {
    POWER_CAPPED: ("POWER_CAP", "Compare the arms' energy as well, or measure on a card with power to spare."),
    THERMALLY_SLOWED: (
        "THERMAL_SLOWDOWN",
        "Let the card cool between the slots, or warm it up longer before the first.",
    ),
}
CLOCK_STEPS = {
    "CLOCK_CHANGED": "Warm the card up until its clock is steady and measure again; the machine's owner may lock it "
    "with nvidia-smi --lock-gpu-clocks, which fuseproof never does.",
    "CLOCK_AGAINST_EFFECT": "Quote both: seconds at these clocks and this power limit, cycles for the work itself.",
}
COST_LIMIT = 0.005
"""The sampler keeps its own processor time below this share of the cores' time; more is flagged."""


def gpu_caps(runs: CellRuns, conditions: GpuConditions | None, primary: str, min_effect: float) -> tuple[Reason, ...]:
    """What forbids a verdict: a changed clock that may be the effect, or that turns it round in cycles, others on the
    GPUs.

    ``primary`` is the timer whose effect is counted in cycles; below ``min_effect`` its sign decides nothing.
    """
    found = list(_neighbours(runs))
    for clock in conditions.clocks if conditions is not None else ():
        if not clock.is_resolved or _works_against(runs, clock, primary, min_effect):
            continue
        if clock.is_beyond_limit or _flips_in_cycles(runs, clock, primary, min_effect):
            found.append(_clock_changed("CLOCK_CHANGED", runs, conditions, clock, primary))
    return tuple(found)


def clock_warnings(
    runs: CellRuns, conditions: GpuConditions | None, primary: str, min_effect: float
) -> tuple[Reason, ...]:
    """Changed clocks that forbid nothing: the arm that is ahead ran at the lower one, so by more in cycles."""
    return tuple(
        _clock_changed("CLOCK_AGAINST_EFFECT", runs, conditions, clock, primary)
        for clock in (conditions.clocks if conditions is not None else ())
        if clock.is_resolved and clock.is_beyond_limit and _works_against(runs, clock, primary, min_effect)
    )


def gpu_warnings(conditions: GpuConditions | None) -> tuple[Reason, ...]:
    """What a reader must know beside the word: limits that one arm met more often, clocks that cannot be told apart,
    arms on different cards, a sampler that cost more than it may.
    """
    if conditions is None:
        return ()
    found = [*_unresolved_clocks(conditions), *_unlike_cards(conditions), *_costly_sampler(conditions)]
    seen = dict.fromkeys(name for arm in conditions.arms for name in arm.event_shares if name not in NORMAL_EVENTS)
    for name in seen:
        code, step = EVENT_CODES.get(name, ("CLOCK_EVENTS", "Find out what sets that reason, and measure again."))
        shares = {arm.arm: arm.event_shares.get(name, 0.0) for arm in conditions.arms if arm.event_samples}
        if len(shares) == len(conditions.arms) and max(shares.values()) - min(shares.values()) > SHARE_LIMIT + 1e-9:
            told = " and ".join(
                f"{percent(share, 0)} of the {ARM_WORDS[arm]}'s{' samples' if index == 0 else ''}"
                for index, (arm, share) in enumerate(shares.items())
            )
            detail = f"{name} in {told}, more than {100 * SHARE_LIMIT:.0f} points apart"
            found.append(Reason(code, detail, step))
    return tuple(found)


def clock_text(conditions: GpuConditions, clock: ClockDifference) -> str:
    """Both arms' mean SM clocks, their difference and its error over the runs, in words."""
    signed = number(100 * clock.share, 2, signed=True)
    error = "" if clock.error is None else f" ± {number(100 * clock.error, 2)}"
    where = BASES[conditions.basis] if conditions.basis else ""
    return f"mean SM clock {number(clock.baseline_mhz, 0)} → {number(clock.arm_mhz, 0)} MHz ({signed}{error} %) {where}"


def sampling_text(conditions: GpuConditions) -> str | None:
    """How the GPUs were looked at, and what that cannot exclude; None without a sample."""
    if conditions.interval_s is None:
        return None
    gap_s = conditions.longest_gap_s or conditions.interval_s
    cost = (
        ""
        if conditions.cpu_share is None
        else f", at a measured cost of at most {percent(conditions.cpu_share, 3)} of the cores' time in a slot (limit "
        f"{percent(COST_LIMIT, 1)})"
    )
    return (
        f"the GPUs were sampled every {number(conditions.interval_s, 2)} s (median, longest gap {number(gap_s, 2)} s) "
        f"by a side process{cost}; what lasts shorter than a gap, such as a brief clock drop, cannot be excluded; "
        "neighbours are looked for between slots only"
    )


def _flips_in_cycles(runs: CellRuns, clock: ClockDifference, primary: str, min_effect: float) -> bool:
    """Whether an effect that matters in seconds is none, or the opposite one, in cycles."""
    effect = _log_effect(runs, primary, clock.arm)
    if effect is None or abs(math.expm1(effect)) < min_effect:
        return False
    return effect * (effect + clock.log_ratio) <= 0


def _works_against(runs: CellRuns, clock: ClockDifference, primary: str, min_effect: float) -> bool:
    """Whether the arm that takes less time, by an effect that matters, also had the lower clock (decision 13)."""
    effect = _log_effect(runs, primary, clock.arm)
    return effect is not None and abs(math.expm1(effect)) >= min_effect and effect * clock.log_ratio > 0


def _clock_changed(
    code: str, runs: CellRuns, conditions: GpuConditions | None, clock: ClockDifference, primary: str
) -> Reason:
    effect = _log_effect(runs, primary, clock.arm)
    cycles = ""
    if effect is not None:
        saved = -math.expm1(effect + clock.log_ratio)
        cycles = f"; {change(-math.expm1(effect))} is {change(saved).replace('time', 'cycles')}"
    text = "" if conditions is None else clock_text(conditions, clock)
    return Reason(code, f"{text}, limit {percent(CLOCK_LIMIT, 0)}{cycles}", CLOCK_STEPS[code])


def _unresolved_clocks(conditions: GpuConditions) -> Iterable[Reason]:
    """Clocks beyond the limit that nobody can tell from the scatter of one arm's own runs."""
    for clock in conditions.clocks:
        if clock.is_resolved or not clock.is_beyond_limit:
            continue
        why = (
            f"too few samples to judge it: {clock.too_few}"
            if clock.too_few
            else "within the error between the runs of one arm"
        )
        yield Reason(
            "CLOCK_UNRESOLVED",
            f"{clock_text(conditions, clock)}, more than {percent(CLOCK_LIMIT, 0)} but {why}",
            "Measure a longer request or more blocks, so that the clocks can be told apart.",
        )


def _unlike_cards(conditions: GpuConditions) -> Iterable[Reason]:
    if conditions.unlike_cards is not None:
        yield Reason(
            "CARDS_DIFFER",
            f"the arms worked on different GPUs ({conditions.unlike_cards}): what the cards differ in is part of the "
            "effect, and their clocks were not compared",
            "Give both arms the same card.",
        )


def shared_card_warnings(runs: CellRuns, conditions: GpuConditions | None, gpus: object) -> tuple[Reason, ...]:
    """That what was seen of a card is not the slot's alone: it is divided by MIG, or an MPS server holds it.

    ``gpus`` are those that the campaign's environment describes.
    """
    found = []
    known = [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list | tuple) else []
    divided = [
        str(gpu.get("uuid"))
        for gpu in known
        if conditions is not None and gpu.get("mig_mode") == "Enabled" and gpu.get("uuid") in conditions.cards
    ]
    if divided:
        found.append(
            Reason(
                "MIG_PARENT",
                f"{', '.join(divided)} is divided by MIG: clocks, power, event reasons and device-used memory are the "
                "whole card's, with whatever its other instances did",
                "Keep the card's other instances idle, and say MIG beside every number.",
            )
        )
    rests = [run.record.gpu.at_rest for run in runs.runs if run.record.gpu is not None]
    servers = dict.fromkeys(name for rest in rests if rest is not None for name in rest.mps)
    if servers:
        found.append(
            Reason(
                "MPS_SERVER",
                f"{', '.join(servers)}: what other clients of CUDA's multi-process service do there is not seen",
                "Measure without MPS, or make sure that it has no other client.",
            )
        )
    return tuple(found)


def _costly_sampler(conditions: GpuConditions) -> Iterable[Reason]:
    share = conditions.cpu_share
    if share is not None and share > COST_LIMIT:
        yield Reason(
            "SAMPLER_COST",
            f"sampling the GPUs took up to {percent(share)} of the cores' time in a slot, more than "
            f"{percent(COST_LIMIT, 1)}",
            "Measure longer requests: in a short slot the first samples weigh most.",
        )


def _neighbours(runs: CellRuns) -> Iterable[Reason]:
    """CONTENTION by what was on the GPUs right after a counting run, while nothing of the campaign ran."""
    cards = [run.record.gpu for run in runs.runs if run.record.gpu is not None]
    rests = [gpu.at_rest for gpu in cards if gpu.at_rest is not None]
    restless = [rest for rest in rests if rest.foreign or rest.is_at_rest is False]
    if not restless:
        return
    who = list(dict.fromkeys(name for rest in restless for name in rest.foreign))
    left_mib = [
        rest.used_mib[uuid] - before
        for rest in restless
        for uuid, before in rest.baseline_mib.items()
        if uuid in rest.used_mib
    ]
    left = (
        f"up to {gib(max(left_mib), 2)} GiB more in use than before the session" if max(left_mib, default=0) > 0 else ""
    )
    told = "; ".join(text for text in (", ".join(who[:3]), left) if text)
    yield Reason(
        "CONTENTION",
        f"the GPUs were not free after {len(restless)} of {count(len(rests), 'run')} ({told})",
        "Find out with nvidia-smi who uses them, then measure again.",
    )


def _log_effect(runs: CellRuns, timer: str, other: str) -> float | None:
    """ln(other arm / baseline) of the geometric mean times."""
    means = []
    for arm in (ARMS[0], other):
        times = [seconds_of(run, timer) for run in runs.runs if run.record.arm == arm]
        if not times or not all(time is not None and math.isfinite(time) and time > 0 for time in times):
            return None
        means.append(math.fsum(math.log(time or math.nan) for time in times) / len(times))
    return means[1] - means[0]
