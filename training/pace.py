"""How long a stage lasts, over as many runs as it takes: by seconds, or by steps where a run must repeat exactly."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

WARM_UP_STEPS = 150
WARM_UP_SHARE = 0.02
"""Of a stage that is planned in steps, where that is less."""
LAST_RATE_SHARE = 0.02


@dataclass
class Pace:
    """Where a stage stands. ``total_s`` is planned for it; this run ends after ``run_s``, and the next resumes.

    With ``total_steps`` the schedule follows steps and clocks only end a run. ``optimizer_began_at`` is the step at
    which the optimizer knew nothing: not 0 where only the weights of an earlier run came back.
    """

    total_s: float
    run_s: float
    total_steps: int | None = None
    step: int = 0
    spent_before_s: float = 0.0
    optimizer_began_at: int = 0
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

    @property
    def is_last_run(self) -> bool:
        """Whether the stage is planned to end in this run."""
        return self.total_steps is not None or self.spent_s + self.run_left_s >= self.total_s

    @property
    def run_left_s(self) -> float:
        """Of this run."""
        return self.run_s - self.run_spent_s

    def rate(self, peak: float) -> float:
        """The learning rate now: a cosine down to a fiftieth of ``peak``, after a short linear rise.

        The rise counts the optimizer's steps, never seconds: data and compiling take more of these than it would.
        """
        fall = 0.5 * (1 + math.cos(math.pi * self.share))
        warm_up = min(WARM_UP_STEPS, WARM_UP_SHARE * self.total_steps) if self.total_steps else WARM_UP_STEPS
        rise = min((self.step - self.optimizer_began_at + 1) / max(warm_up, 1), 1.0)
        return peak * rise * (LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * fall)
