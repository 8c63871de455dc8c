"""How long a stage lasts, over as many runs as it takes: by seconds, or by steps where a run must repeat exactly."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

WARM_UP_SHARE = 0.02
LAST_RATE_SHARE = 0.02


@dataclass
class Pace:
    """Where a stage stands. ``total_s`` is planned for it; this run ends after ``run_s``, and the next resumes.

    With ``total_steps`` the schedule follows steps and clocks only end a run.
    """

    total_s: float
    run_s: float
    total_steps: int | None = None
    step: int = 0
    spent_before_s: float = 0.0
    stop_at_step: int | None = None
    started: float = field(default_factory=time.monotonic)

    @property
    def run_spent_s(self) -> float:
        """Since this run's start."""
        return time.monotonic() - self.started

    @property
    def spent_s(self) -> float:
        """On the stage, in all runs."""
        return self.spent_before_s + self.run_spent_s

    @property
    def share(self) -> float:
        """How much of the stage is done, 0..1."""
        done = self.step / self.total_steps if self.total_steps else self.spent_s / self.total_s
        return min(done, 1.0)

    @property
    def is_finished(self) -> bool:
        """Whether the whole stage is done."""
        return self.share >= 1.0

    @property
    def must_stop(self) -> bool:
        """Whether this run is over, finished or not."""
        return self.is_finished or self.run_spent_s >= self.run_s or self.step == self.stop_at_step

    def rate(self, peak: float) -> float:
        """The learning rate now: a short linear rise, then a cosine down to a fiftieth of ``peak``."""
        share = self.share
        if share < WARM_UP_SHARE:
            return peak * (share + 0.02 * WARM_UP_SHARE) / WARM_UP_SHARE
        fall = 0.5 * (1 + math.cos(math.pi * (share - WARM_UP_SHARE) / (1 - WARM_UP_SHARE)))
        return peak * (LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * fall)
