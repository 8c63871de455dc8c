"""What `fuseproof profile` is doing, as lines on stderr: loading, warm-up, each step, reading what was seen."""

from __future__ import annotations

import time
from collections.abc import Callable

QUIET_S = 2.0
"""Of steps that follow each other faster only some are told."""
DENOISING = "DenoisingStage"
DECODING = "DecodingStage"


class ProfileProgress:
    """An observer of a session that says where it is; silent unless ``is_wanted``."""

    def __init__(
        self, say: Callable[[str], None], *, is_wanted: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say if is_wanted else lambda _text: None
        self._clock = clock
        self._said_at = -QUIET_S
        self._pass = ""
        self._steps = 0
        self._last_profiled: int | None = None
        self._total: int | None = None
        self._is_denoising = False
        self._done = 0

    def phase(self, text: str) -> None:
        """Say what comes next."""
        self._tell(text)

    def warming_up(self) -> None:
        """The passes that follow are no part of the profile."""
        self._pass, self._last_profiled, self._done = "warm-up", None, 0

    def profiling(self, steps: int) -> None:
        """The pass that follows is the profile, of at most ``steps`` denoising steps."""
        self._pass, self._steps, self._done = "profile", steps, 0

    def stage_started(self, name: str, total_steps: int | None) -> None:
        """Say the stage; of denoising its steps follow."""
        self._is_denoising, self._total = name == DENOISING, total_steps
        if self._is_denoising and self._pass == "profile" and not self._done:
            total = total_steps or 0
            self._last_profiled = min(self._steps, total) + (1 if total > self._steps else 0)
        if self._is_denoising:
            self._tell(f"{self._pass}: {name}")

    def step_finished(self, step: int) -> None:
        """Say every step unless they are fast, the last one of each stage always."""
        self._done += 1
        is_last = self._total is not None and step + 1 >= self._total
        if is_last or self._clock() - self._said_at >= QUIET_S:
            self._tell(f"{self._pass}: step {step + 1}" + (f" of {self._total}" if self._total else ""))
        if self._done == self._last_profiled:
            self._tell("reading the profiled steps")

    def stage_finished(self, name: str, milliseconds: float) -> None:
        """Behind decoding what was seen is joined to modules and lines."""
        if name == DECODING and self._pass == "profile":
            self._tell("joining what was seen to sites, modules and lines")

    def _tell(self, text: str) -> None:
        self._said_at = self._clock()
        self._say(text)
