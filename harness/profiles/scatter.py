"""How far the profiled steps of one stage lie apart."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from fuseproof.harness.profiles.profile import Profile, Stage

FEWEST = 2
"""Steps from which anything can be said of their scatter."""


@dataclass(frozen=True)
class Scatter:
    """Device time of one step, over the profiled steps."""

    steps: int
    median_us: float
    least_us: float
    most_us: float

    @property
    def is_known(self) -> bool:
        return self.steps >= FEWEST


def scatter(profile: Profile, stage: Stage) -> Scatter:
    """Of the stage's steps; a stage that was profiled as a whole is one step."""
    times = [step.device_us for step in profile.steps if step.stage == stage.name] or [stage.device_us]
    return Scatter(len(times), statistics.median(times), min(times), max(times))
