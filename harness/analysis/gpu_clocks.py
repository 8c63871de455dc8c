"""How far apart two arms' SM clocks are, and whether that is more than the runs of one arm differ among themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CLOCK_LIMIT = 0.01
"""Mean SM clocks of the arms that differ by more, beyond their own error, forbid a verdict."""
FEWEST_SAMPLES = 3
"""Of a run: fewer readings of a clock are no mean."""
FEWEST_RUNS = 2
"""Of an arm: one run has no error of its own."""
LEVEL = 0.95


@dataclass(frozen=True)
class ClockDifference:
    """One arm's mean SM clock against the baseline's. ``error`` is the half width of Welch's 95 % interval over the
    runs, in log units, like ``log_ratio``; None where there are too few runs or samples for one, and ``too_few`` says
    which.
    """

    arm: str
    baseline_mhz: float
    arm_mhz: float
    error: float | None
    too_few: str | None = None

    @property
    def share(self) -> float:
        """+0.02: 2 % higher than the baseline's."""
        return self.arm_mhz / self.baseline_mhz - 1.0

    @property
    def log_ratio(self) -> float:
        return math.log(self.arm_mhz / self.baseline_mhz)

    @property
    def is_resolved(self) -> bool:
        """Whether the clocks differ by more than the runs of one arm do."""
        return self.error is not None and abs(self.log_ratio) > self.error

    @property
    def is_beyond_limit(self) -> bool:
        return abs(self.share) > CLOCK_LIMIT


def clock_difference(
    arm: str, baseline: Sequence[float], other: Sequence[float], fewest_samples: int
) -> ClockDifference | None:
    """From each run's mean clock in MHz (> 0); None where an arm has none.

    ``fewest_samples`` is how many samples the run with the fewest has.
    """
    if not baseline or not other:
        return None
    means = (math.fsum(baseline) / len(baseline), math.fsum(other) / len(other))
    too_few = None
    if fewest_samples < FEWEST_SAMPLES:
        too_few = f"a run has {fewest_samples} samples, {FEWEST_SAMPLES} are needed"
    elif min(len(baseline), len(other)) < FEWEST_RUNS:
        too_few = f"an arm has {min(len(baseline), len(other))} run, {FEWEST_RUNS} are needed"
    error = None if too_few else _welch_half_width([math.log(v) for v in baseline], [math.log(v) for v in other])
    return ClockDifference(arm, *means, error, too_few)


def _welch_half_width(first: Sequence[float], second: Sequence[float]) -> float:
    from scipy.special import stdtrit

    shares = [_variance(values) / len(values) for values in (first, second)]
    total = math.fsum(shares)
    if total == 0:
        return 0.0
    freedom = total**2 / math.fsum(
        share**2 / (len(values) - 1) for share, values in zip(shares, (first, second), strict=True)
    )
    return float(stdtrit(freedom, 0.5 + LEVEL / 2)) * math.sqrt(total)


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
