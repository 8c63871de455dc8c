"""What two profiles say of the device time that is gone, how sure that is, and when they cannot tell.

The interval of a stage is from (fastest step before − slowest after) to (slowest before − fastest after): of a handful
of steps no narrower one can be defended. It is one definition, used wherever predicted stands beside measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuseproof.harness.number_format import number, percent
from fuseproof.harness.profiles.profile import Profile, Stage

if TYPE_CHECKING:
    from fuseproof.harness.profiles.comparison import Difference, ProfileComparison, StageDifference

MOST_BANDWIDTH_RATIO = 1.1
TOLD_SHARE = 0.05
"""Of a step: classes from this share on are expected to keep their time where their launches are the same."""


@dataclass(frozen=True)
class Prediction:
    """Device time of the whole request that is gone, in microseconds; negative where there is more of it."""

    gain_us: float
    low_us: float
    high_us: float
    launches_us_at_most: float
    """What launches that are gone may save besides where the device waited for them; never negative."""
    doubts: tuple[str, ...]
    """Why the profiles cannot tell; empty where they can."""

    @property
    def can_tell(self) -> bool:
        return not self.doubts

    @property
    def range_us(self) -> tuple[float, float]:
        """What a timed pair is held against: the interval, its upper end with all that fewer launches may save."""
        return self.low_us, self.high_us + self.launches_us_at_most

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "device_us": self.gain_us,
            "device_us_interval": [self.low_us, self.high_us],
            "launches_us_at_most": self.launches_us_at_most,
            "can_tell": self.can_tell,
            "doubts": list(self.doubts),
        }


def predict(comparison: ProfileComparison) -> Prediction:
    """By all stages that both profiled, profiled steps taken to be like those that were not."""
    low_us = math.fsum(stage.interval_us[0] * stage.before.passes_of_request for stage in comparison.stages)
    high_us = math.fsum(stage.interval_us[1] * stage.before.passes_of_request for stage in comparison.stages)
    doubts = tuple(_doubts(comparison, low_us, high_us))
    return Prediction(comparison.device_gain_us, low_us, high_us, comparison.launch_gain_us, doubts)


def _doubts(comparison: ProfileComparison, low_us: float, high_us: float) -> Iterator[str]:
    main = comparison.main
    if not main.has_scatter:
        yield (
            f"{main.before.name} has one profiled step on a side, so nothing is known of its scatter (profile more "
            "with --steps)"
        )
    elif low_us <= 0 <= high_us:
        yield "the profiled steps of a side lie further apart than the two sides do"
    elif _sign(comparison.stages) != _sign([stage for stage in comparison.stages if stage.has_scatter]):
        yield "stages of one pass decide it, and nothing is known of their scatter"
    for stage in comparison.stages:
        moved = unchanged_move(comparison.before, comparison.after, stage)
        if moved is not None and stage.has_scatter:
            yield (
                f"{stage.before.name}: {moved.name}, whose launches are the same on both sides, moved by "
                f"{_moved(moved)}; the whole step moved by {_moved(stage.step)}"
            )
    for side, profile in (("before", comparison.before), ("after", comparison.after)):
        disturbance = profile.raw.get("disturbance")
        if isinstance(disturbance, dict) and disturbance.get("busy") is True:
            yield f"the machine was not quiet while {side} was profiled"


def _moved(row: Difference) -> str:
    return f"{number(abs(row.saved_us) / 1e3, 3)} ms ({percent(abs(row.change), 1)})"


def _sign(stages: Sequence[StageDifference]) -> int:
    """+1 or -1 where the whole interval of these stages lies on one side of zero, else 0."""
    low_us = math.fsum(stage.interval_us[0] * stage.before.passes_of_request for stage in stages)
    high_us = math.fsum(stage.interval_us[1] * stage.before.passes_of_request for stage in stages)
    return (low_us > 0) - (high_us < 0)


def unchanged_move(before: Profile, after: Profile, stage: StageDifference) -> Difference | None:
    """The class whose launches are the same on both sides, by operation and kernel, and that moved by more than the
    stage did: in time, or, of a class that is no small part of the step, in its share. None where there is none.
    """
    one, other = _launched(before, stage.before), _launched(after, stage.after)
    same = [row for row in stage.classes if one.get(row.name, 0) == other.get(row.name)]
    whole = stage.step
    moved = [
        row
        for row in same
        if abs(row.saved_us) > abs(whole.saved_us)
        or ((row.before_us or 0.0) > TOLD_SHARE * (whole.before_us or 0.0) and abs(row.change) > abs(whole.change))
    ]
    return max(moved, key=lambda row: abs(row.saved_us), default=None)


def _launched(profile: Profile, stage: Stage) -> dict[str, Counter[tuple[str, str]]]:
    """Class → launches of all profiled steps, scaled to one step, by operation and kernel: what a site fused launches
    another kernel than what it replaces.
    """
    found: dict[str, Counter[tuple[str, str]]] = {}
    for row in profile.rows_of(stage):
        found.setdefault(row.kernel_class, Counter())[row.operation, row.kernel] += row.calls
    return {name: _of_one_step(calls, stage.steps) for name, calls in found.items()}


def _of_one_step(calls: Counter[tuple[str, str]], steps: int) -> Counter[tuple[str, str]]:
    """Launches of one step in thousandths, so that sides with other numbers of profiled steps compare."""
    return Counter({key: round(1000 * value / steps) for key, value in calls.items()})


def bandwidth_warning(before: Profile, after: Profile) -> Iterator[str]:
    """Where the copies measured beside the two profiles differ by more than a tenth."""
    one, other = before.device.copy_bandwidth_gb_s, after.device.copy_bandwidth_gb_s
    if one is None or other is None:
        return
    if max(one, other) > MOST_BANDWIDTH_RATIO * min(one, other):
        yield (
            f"the copy bandwidth is {number(one, 2)} GB/s before and {number(other, 2)} GB/s after, "
            f"{number(100 * (max(one, other) / min(one, other) - 1), 0)} % apart: the machine was in two states, and "
            "the floors of the two profiles are not each other's"
        )
