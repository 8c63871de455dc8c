"""A share of successes and its Wilson interval (scipy's)."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import binomtest


@dataclass(frozen=True)
class Share:
    """``successes`` of ``trials``, with the 95 % Wilson interval of the share."""

    successes: int
    trials: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share itself, 0..1."""
        return self.successes / self.trials

    def __str__(self) -> str:
        return (
            f"{100 * self.value:.1f} % ({self.successes} of {self.trials}), "
            f"95 % interval [{100 * self.low:.1f}, {100 * self.high:.1f}]"
        )


def share_with_interval(successes: int, trials: int) -> Share:
    """The share with its interval; ``trials`` is at least 1."""
    interval = binomtest(successes, trials).proportion_ci(confidence_level=0.95, method="wilson")
    return Share(successes, trials, float(interval.low), float(interval.high))
