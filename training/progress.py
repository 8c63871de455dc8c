"""One line every few seconds on stderr: where a stage is, how fast, and its losses."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from training.pace import Pace

EVERY_S = 10.0


class Progress:
    """Says how a stage goes; the rate is that since the line before. Says nothing but at points of the curve."""

    def __init__(self, stage: str, batch: int, every_s: float = EVERY_S) -> None:
        self._stage, self._batch, self._every_s = stage, batch, every_s
        self._last: tuple[float, int] | None = None

    def tell(self, pace: Pace, losses: Mapping[str, float]) -> None:
        """A line, if the last one is old enough."""
        now = time.monotonic()
        if self._last is not None and now - self._last[0] < self._every_s:
            return
        line = f"{self._stage}: step {pace.step}, {pace.spent_s:.0f} s, {100 * pace.share:.0f} %"
        if self._last is not None:
            steps_per_s = (pace.step - self._last[1]) / max(now - self._last[0], 1e-9)
            line += f", {steps_per_s:.2f} steps/s, {steps_per_s * self._batch:.0f} samples/s"
        values = ", ".join(f"{name} {value:.4f}" for name, value in losses.items())
        sys.stderr.write(f"{line}; {values}\n")
        self._last = (now, pace.step)
