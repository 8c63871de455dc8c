"""Did both arms find the GPUs in the same state? Clocks, power, event reasons and neighbours, arm against arm.

A win that a higher clock made is no win of the code: the mean SM clocks of the arms must agree within 1 %, and the
effect must have the same sign in cycles (time x mean SM clock). A power cap is normal on some cards: its share of
samples is compared between the arms, never judged by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.analysis.metrics import seconds_of
from fuseproof.harness.analysis.runs import ARMS, CellRuns, Run
from fuseproof.harness.campaign.gpu_records import POWER_CAPPED, THERMALLY_SLOWED, PhaseConditions
from fuseproof.harness.campaign.gpu_telemetry import working_cards
from fuseproof.harness.campaign.records import SlotRecord
from fuseproof.harness.number_format import count, gib, number
from fuseproof.harness.statistics.reasons import Reason, change, percent
from fuseproof.schedules.order import ArmLetter

CLOCK_LIMIT = 0.01
"""Mean SM clocks of the arms that differ by more forbid a verdict."""
SHARE_LIMIT = 0.10
"""Shares of samples with an event reason that differ by more are flagged."""
BASES = {
    "request": "in the request phase",
    "busy": "in samples with at least half utilisation, because not every run tells its phases",
}


@dataclass(frozen=True)
class ArmConditions:
    """One arm over its counting runs: means over runs, highest temperatures, shares of samples by event reason.

    Only cards that worked count. ``power_w`` and the like are None where no run's cards told them.
    """

    arm: ArmLetter
    runs: int
    samples: int
    sm_clock_mhz: float | None
    memory_clock_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    memory_temperature_c: float | None
    utilization_percent: float | None
    event_samples: int
    """How many samples told the event reasons."""
    event_shares: dict[str, float]


@dataclass(frozen=True)
class GpuConditions:
    """Both arms, and how they were looked at. ``basis`` is which samples count; None where no clock can be compared."""

    arms: tuple[ArmConditions, ...]
    basis: str | None
    runs: int
    runs_without_samples: int
    interval_s: float | None
    longest_gap_s: float | None
    cpu_share: float | None
    reason: str | None
    longest_wait_s: float | None
    total_wait_s: float | None

    @property
    def clock_difference(self) -> float | None:
        """The candidate's mean SM clock against the baseline's: +0.02 is 2 % higher."""
        clocks = [arm.sm_clock_mhz for arm in self.arms]
        if self.basis is None or len(clocks) != len(ARMS) or not all(clocks):
            return None
        baseline, candidate = (clock or math.nan for clock in clocks)
        return candidate / baseline - 1.0

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self) | {"clock_difference": self.clock_difference}


def check_gpu_conditions(runs: CellRuns) -> GpuConditions | None:
    """Sum up the counting runs of a cell; None where no slot of it had a GPU to look at."""
    looked = [run.record.gpu for run in runs.runs if run.record.gpu is not None]
    if not looked:
        return None
    basis = _basis(runs.runs)
    gaps = [gpu.longest_gap_s for gpu in looked if gpu.longest_gap_s is not None]
    shares = [gpu.cpu_share for gpu in looked if gpu.cpu_share is not None]
    waits = [slot.gpu.at_rest.waited_s for slot in runs.slots if slot.gpu is not None and slot.gpu.at_rest is not None]
    return GpuConditions(
        arms=tuple(_arm(arm, runs.of_arm(arm), basis) for arm in ARMS),
        basis=basis,
        runs=len(runs.runs),
        runs_without_samples=sum(not _has_samples(run) for run in runs.runs),
        interval_s=max((gpu.interval_s for gpu in looked if gpu.interval_s is not None), default=None),
        longest_gap_s=max(gaps, default=None),
        cpu_share=max(shares, default=None),
        reason=next((gpu.reason for gpu in looked if gpu.reason), None),
        longest_wait_s=max(waits, default=None),
        total_wait_s=round(sum(waits), 3) if waits else None,
    )


def gpu_caps(runs: CellRuns, conditions: GpuConditions | None, primary: str, min_effect: float) -> tuple[Reason, ...]:
    """What forbids a verdict: clocks that differ, an effect that is another one in cycles, others on the GPUs.

    ``primary`` is the timer whose effect is counted in cycles; below ``min_effect`` its sign decides nothing.
    """
    found = list(_neighbours(runs))
    difference = None if conditions is None else conditions.clock_difference
    if conditions is None or difference is None:
        return tuple(found)
    effect = _log_effect(runs, primary)
    in_cycles = None if effect is None else effect + math.log1p(difference)
    has_other_sign = (
        effect is not None
        and in_cycles is not None
        and abs(math.expm1(effect)) >= min_effect
        and effect * in_cycles <= 0
    )
    if abs(difference) > CLOCK_LIMIT or has_other_sign:
        found.append(_clock_changed(conditions, difference, effect, in_cycles))
    return tuple(found)


def gpu_warnings(conditions: GpuConditions | None) -> tuple[Reason, ...]:
    """What a reader must know beside the word: a power or heat limit that one arm met more often than the other."""
    if conditions is None:
        return ()
    found = []
    for name, code, step in (
        (POWER_CAPPED, "POWER_CAP", "Compare the arms' energy as well, or measure on a card with power to spare."),
        (
            THERMALLY_SLOWED,
            "THERMAL_SLOWDOWN",
            "Let the card cool between the slots, or warm it up longer before the first.",
        ),
    ):
        shares = [arm.event_shares.get(name, 0.0) for arm in conditions.arms if arm.event_samples]
        if len(shares) == len(ARMS) and abs(shares[1] - shares[0]) > SHARE_LIMIT + 1e-9:
            detail = (
                f"{name} in {percent(shares[0], 0)} of the baseline's samples and {percent(shares[1], 0)} of the "
                f"candidate's, more than {100 * SHARE_LIMIT:.0f} points apart"
            )
            found.append(Reason(code, detail, step))
    return tuple(found)


def clock_text(conditions: GpuConditions, difference: float) -> str:
    """Both arms' mean SM clocks and their difference in words."""
    baseline, candidate = (arm.sm_clock_mhz for arm in conditions.arms)
    signed = number(100 * difference, 2, signed=True)
    where = BASES[conditions.basis] if conditions.basis else ""
    return f"mean SM clock {number(baseline, 0)} → {number(candidate, 0)} MHz ({signed} %) {where}"


def sampling_text(conditions: GpuConditions) -> str | None:
    """How the GPUs were looked at, and what that cannot exclude; None without a sample."""
    if conditions.interval_s is None:
        return None
    gap_s = conditions.longest_gap_s or conditions.interval_s
    cost = (
        "" if conditions.cpu_share is None else f", at a cost of {percent(conditions.cpu_share, 3)} of the cores' time"
    )
    return (
        f"the GPUs were sampled every {conditions.interval_s:g} s (longest gap {gap_s:.2f} s) by a side process{cost}; "
        "what lasts shorter than a gap, such as a brief clock drop, cannot be excluded; "
        "neighbours are looked for between slots only"
    )


def _clock_changed(
    conditions: GpuConditions, difference: float, effect: float | None, in_cycles: float | None
) -> Reason:
    cycles = ""
    if effect is not None and in_cycles is not None:
        saved = -math.expm1(in_cycles)
        cycles = f"; {change(-math.expm1(effect))} is {change(saved).replace('time', 'cycles')}"
    return Reason(
        "CLOCK_CHANGED",
        f"{clock_text(conditions, difference)}, limit {percent(CLOCK_LIMIT, 0)}{cycles}",
        "Warm the card up until its clock is steady and measure again; the machine's owner may lock it with "
        "nvidia-smi --lock-gpu-clocks, which fuseproof never does.",
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


def _log_effect(runs: CellRuns, timer: str) -> float | None:
    """ln(candidate / baseline) of the geometric mean times."""
    means = []
    for arm in ARMS:
        times = [seconds_of(run, timer) for run in runs.of_arm(arm)]
        if not times or not all(time is not None and math.isfinite(time) and time > 0 for time in times):
            return None
        means.append(sum(math.log(time or math.nan) for time in times) / len(times))
    return means[1] - means[0]


def _has_samples(run: Run) -> bool:
    return run.record.gpu is not None and bool(run.record.gpu.cards)


def _basis(runs: Sequence[Run]) -> str | None:
    """Which samples of all runs can be compared: the request's, else those of a busy card, else none."""
    if all(_request_clock(run.record) is not None for run in runs):
        return "request"
    return "busy" if all(_busy_clock(run.record) is not None for run in runs) else None


def _request_clock(record: SlotRecord) -> float | None:
    cards = working_cards(record.gpu)
    return _mean(card.phases["request"].sm_clock_mhz if "request" in card.phases else None for card in cards)


def _busy_clock(record: SlotRecord) -> float | None:
    phases = [phase for card in working_cards(record.gpu) for phase in card.phases.values()]
    known = [(phase.busy_sm_clock_mhz, phase.busy_samples) for phase in phases if phase.busy_sm_clock_mhz is not None]
    total = sum(samples for _, samples in known)
    return sum(clock * samples for clock, samples in known) / total if total else None


def _arm(arm: ArmLetter, runs: Sequence[Run], basis: str | None) -> ArmConditions:
    clock = _request_clock if basis == "request" else _busy_clock
    phases = [phase for run in runs for phase in _phases(run.record, basis)]
    told = sum(phase.event_samples for phase in phases)
    counts: dict[str, int] = {}
    for phase in phases:
        for name, hits in phase.event_counts.items():
            counts[name] = counts.get(name, 0) + hits
    return ArmConditions(
        arm=arm,
        runs=len(runs),
        samples=sum(phase.samples for phase in phases),
        sm_clock_mhz=_mean(clock(run.record) for run in runs),
        memory_clock_mhz=_mean(phase.memory_clock_mhz for phase in phases),
        power_w=_mean(phase.power_w for phase in phases),
        temperature_c=_highest(phase.temperature_c for phase in phases),
        memory_temperature_c=_highest(phase.memory_temperature_c for phase in phases),
        utilization_percent=_mean(phase.utilization_percent for phase in phases),
        event_samples=told,
        event_shares={name: hits / told for name, hits in sorted(counts.items())} if told else {},
    )


def _phases(record: SlotRecord, basis: str | None) -> list[PhaseConditions]:
    cards = working_cards(record.gpu)
    if basis == "request":
        return [card.phases["request"] for card in cards if "request" in card.phases]
    return [phase for card in cards for phase in card.phases.values()]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
