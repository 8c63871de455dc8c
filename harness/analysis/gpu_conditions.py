"""Did both arms find the GPUs in the same state? Clocks, power, event reasons and neighbours, arm against arm.

A win that a higher clock made is no win of the code: the mean SM clocks of the arms must agree within 1 %, and the
effect must have the same sign in cycles (time x mean SM clock). Both need evidence: a difference that the runs of one
arm show among themselves is said and forbids nothing. A power cap is normal on some cards: its share of samples is
compared between the arms, never judged by itself. Which cards count is chosen once a cell
(:mod:`fuseproof.harness.analysis.judged_cards`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.analysis.gpu_clocks import ClockDifference, clock_difference
from fuseproof.harness.analysis.judged_cards import JudgedCards, judged_cards
from fuseproof.harness.analysis.runs import ARMS, CellRuns, Run
from fuseproof.harness.campaign.gpu_records import (
    CardConditions,
    PhaseConditions,
)
from fuseproof.schedules.order import ArmLetter

BASES = {
    "request": "in the request phase",
    "busy": "in samples with at least half utilisation, because not every run tells its phases",
}


@dataclass(frozen=True)
class ArmConditions:
    """One arm over its counting runs: means over runs, highest temperatures, shares of samples by event reason.

    Within a run every sample of a judged card weighs the same, whatever its phase. ``power_w`` and the like are None
    where no run's cards told them.
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
    clocks: tuple[ClockDifference, ...] = ()
    """Every other arm's mean SM clock against the baseline's."""
    cards: tuple[str, ...] = ()
    """The UUIDs that all runs are judged by."""
    unlike_cards: str | None = None
    """Which cards the arms worked on where that was not the same ones; their clocks are then not compared."""

    @property
    def worst_clock(self) -> ClockDifference | None:
        """The largest difference; None where no clocks can be compared."""
        return max(self.clocks, key=lambda found: abs(found.share), default=None)

    @property
    def clock_difference(self) -> float | None:
        """The arm farthest from the baseline, by mean SM clock: +0.02 is 2 % higher."""
        return None if self.worst_clock is None else self.worst_clock.share

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return asdict(self) | {"clock_difference": self.clock_difference}


def gpu_cards(conditions: GpuConditions | None) -> tuple[str, ...]:
    """The UUIDs that a cell is judged by; empty where nobody looked at a card."""
    return () if conditions is None else conditions.cards


def check_gpu_conditions(runs: CellRuns) -> GpuConditions | None:
    """Sum up the counting runs of a cell; None where no slot of it had a GPU to look at."""
    looked = [run.record.gpu for run in runs.runs if run.record.gpu is not None]
    if not looked:
        return None
    cards = judged_cards(runs)
    basis = _basis(runs.runs, cards)
    gaps = [gpu.longest_gap_s for gpu in looked if gpu.longest_gap_s is not None]
    shares = [gpu.cpu_share for gpu in looked if gpu.cpu_share is not None]
    waits = [slot.gpu.at_rest.waited_s for slot in runs.slots if slot.gpu is not None and slot.gpu.at_rest is not None]
    return GpuConditions(
        arms=tuple(_arm(arm, runs.of_arm(arm), basis, cards) for arm in ARMS),
        basis=basis,
        runs=len(runs.runs),
        runs_without_samples=sum(not _has_samples(run) for run in runs.runs),
        interval_s=max((gpu.interval_s for gpu in looked if gpu.interval_s is not None), default=None),
        longest_gap_s=max(gaps, default=None),
        cpu_share=max(shares, default=None),
        reason=next((gpu.reason for gpu in looked if gpu.reason), None),
        longest_wait_s=max(waits, default=None),
        total_wait_s=round(math.fsum(waits), 3) if waits else None,
        clocks=() if basis is None or cards.unlike else _clocks(runs, basis, cards),
        cards=cards.uuids,
        unlike_cards=cards.unlike,
    )


def _has_samples(run: Run) -> bool:
    return run.record.gpu is not None and bool(run.record.gpu.cards)


def _clocks(runs: CellRuns, basis: str, cards: JudgedCards) -> tuple[ClockDifference, ...]:
    """Every other arm against the baseline, from the runs' own mean clocks."""
    by_arm: dict[str, list[float]] = {}
    counts = []
    for run in runs.runs:
        clock = _clock(run, basis, cards)
        if clock is not None and clock > 0:
            by_arm.setdefault(run.record.arm, []).append(clock)
            counts.append(_clock_samples(run, basis, cards))
    baseline, *others = sorted(by_arm) or [ARMS[0]]
    found = (clock_difference(arm, by_arm[baseline], by_arm[arm], min(counts)) for arm in others)
    return tuple(difference for difference in found if difference is not None)


def _basis(runs: Sequence[Run], cards: JudgedCards) -> str | None:
    """Which samples of all runs can be compared: the request's, else those of a busy card, else none."""
    return next((basis for basis in BASES if all(_clock(run, basis, cards) is not None for run in runs)), None)


def _clock(run: Run, basis: str, cards: JudgedCards) -> float | None:
    """A run's mean SM clock over the samples of its judged cards that the basis counts."""
    if basis == "request":
        return _weighted((phase.sm_clock_mhz, phase.samples) for phase in _phases(run, basis, cards))
    return _weighted((phase.busy_sm_clock_mhz, phase.busy_samples) for phase in _phases(run, basis, cards))


def _clock_samples(run: Run, basis: str, cards: JudgedCards) -> int:
    """How many samples the run's clock rests on, of the card with the fewest."""
    counts = [
        sum(phase.samples if basis == "request" else phase.busy_samples for phase in phases)
        for phases in ([*_phases_of(card, basis)] for card in cards.of(run.record))
        if phases
    ]
    return min(counts, default=0)


def _arm(arm: ArmLetter, runs: Sequence[Run], basis: str | None, cards: JudgedCards) -> ArmConditions:
    by_run = [_phases(run, basis, cards) for run in runs]
    phases = [phase for own in by_run for phase in own]
    told = sum(phase.event_samples for phase in phases)
    counts: dict[str, int] = {}
    for phase in phases:
        for name, hits in phase.event_counts.items():
            counts[name] = counts.get(name, 0) + hits

    def over_runs(field: str) -> float | None:
        return _mean(_weighted((getattr(phase, field), phase.samples) for phase in own) for own in by_run)

    return ArmConditions(
        arm=arm,
        runs=len(runs),
        samples=sum(phase.samples for phase in phases),
        sm_clock_mhz=_mean(_clock(run, basis or "busy", cards) for run in runs),
        memory_clock_mhz=over_runs("memory_clock_mhz"),
        power_w=over_runs("power_w"),
        temperature_c=_highest(phase.temperature_c for phase in phases),
        memory_temperature_c=_highest(phase.memory_temperature_c for phase in phases),
        utilization_percent=over_runs("utilization_percent"),
        event_samples=told,
        event_shares={name: hits / told for name, hits in sorted(counts.items())} if told else {},
    )


def _phases(run: Run, basis: str | None, cards: JudgedCards) -> list[PhaseConditions]:
    return [phase for card in cards.of(run.record) for phase in _phases_of(card, basis)]


def _phases_of(card: CardConditions, basis: str | None) -> Iterable[PhaseConditions]:
    if basis == "request":
        return [card.phases["request"]] if "request" in card.phases else []
    return card.phases.values()


def _weighted(values: Iterable[tuple[float | None, int]]) -> float | None:
    """The mean of values with their numbers of samples; None where there is none."""
    known = [(value, samples) for value, samples in values if value is not None and samples]
    total = sum(samples for _, samples in known)
    return math.fsum(value * samples for value, samples in known) / total if total else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
