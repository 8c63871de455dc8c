"""What two arms' outputs must have in common: ``exact``, or ``close`` with floors for SSIM and PSNR.

``exact`` means that every decoded value is the same; it is decided by comparing values, never by SSIM. ``close`` sets
a smallest SSIM, a smallest PSNR in dB, or both. A number that is missing or NaN breaks a contract.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, Protocol

from fuseproof.errors import UsageError

EXAMPLE = 'write "exact" or, for example, "close:ssim>=0.95,psnr>=28" (one or both terms)'
_TERM = re.compile(r"(?P<metric>[a-z]+)\s*>=\s*(?P<minimum>\d+(?:\.\d*)?|\.\d+)")


class Measured(Protocol):
    """What a contract needs to know of a comparison; ``harness.media.MediaComparison`` has it."""

    @property
    def equality(self) -> Literal["file", "pixels", "different"]: ...

    @property
    def mismatch(self) -> str | None:
        """Why the two cannot be compared at all (size, channels, bit depth), with both values."""

    @property
    def degenerate(self) -> tuple[str, ...]:
        """Why agreement proves nothing (a constant picture, non-finite values)."""

    @property
    def lossy(self) -> tuple[str, ...]:
        """Why equal files do not prove equal outputs (a lossy container)."""

    @property
    def unseen(self) -> tuple[str, ...]:
        """Differences that no SSIM or PSNR sees (the frame rate or the sound of a video)."""

    @property
    def differing(self) -> str:
        """How much differs, in words."""

    @property
    def ssim(self) -> float | None: ...

    @property
    def ssim_unavailable(self) -> str | None: ...

    @property
    def psnr_db(self) -> float | None: ...

    @property
    def psnr_is_infinite(self) -> bool: ...

    @property
    def psnr_unavailable(self) -> str | None: ...


@dataclass(frozen=True)
class Contract:
    """A parsed contract; ``str()`` gives back text that :func:`parse_contract` reads to an equal one."""

    kind: Literal["exact", "close"]
    ssim_minimum: float | None = None
    psnr_minimum_db: float | None = None

    def __post_init__(self) -> None:
        has_floor = self.ssim_minimum is not None or self.psnr_minimum_db is not None
        if has_floor != (self.kind == "close"):
            raise UsageError(f"A {self.kind} contract with these floors makes no sense.", next_step=EXAMPLE)
        if self.ssim_minimum is not None and not 0 <= self.ssim_minimum <= 1:
            raise UsageError(f"The smallest SSIM is {self.ssim_minimum:g}; it must lie in 0..1.", next_step=EXAMPLE)
        if self.psnr_minimum_db is not None and not 0 <= self.psnr_minimum_db < math.inf:
            raise UsageError(
                f"The smallest PSNR is {self.psnr_minimum_db:g} dB; it must be finite and not negative.",
                next_step=EXAMPLE,
            )

    def __str__(self) -> str:
        floors = [("ssim", self.ssim_minimum), ("psnr", self.psnr_minimum_db)]
        terms = ",".join(f"{metric}>={_shortest(minimum)}" for metric, minimum in floors if minimum is not None)
        return f"{self.kind}:{terms}" if terms else self.kind

    def violations(self, metrics: Measured) -> list[str]:
        """Every way in which ``metrics`` break this contract, each naming the offending number; empty when it holds."""
        if metrics.mismatch is not None:
            return [metrics.mismatch]
        proof_gaps = list(metrics.degenerate)
        if self.kind == "exact":
            differences = [metrics.differing] if metrics.equality == "different" else []
            return differences + proof_gaps + list(metrics.lossy)
        return self._floors_missed(metrics) + list(metrics.unseen) + proof_gaps

    def _floors_missed(self, metrics: Measured) -> list[str]:
        missed = []
        if self.ssim_minimum is not None:
            missed.append(_shortfall("SSIM", "", metrics.ssim, self.ssim_minimum, metrics.ssim_unavailable))
        if self.psnr_minimum_db is not None and not metrics.psnr_is_infinite:
            missed.append(_shortfall("PSNR", " dB", metrics.psnr_db, self.psnr_minimum_db, metrics.psnr_unavailable))
        return [sentence for sentence in missed if sentence]


def parse_contract(text: str) -> Contract:
    """Read ``exact`` or ``close:ssim>=0.95,psnr>=28``; spaces and letter case do not matter.

    Raises:
        UsageError: unknown kind or metric, a metric named twice, a floor that is no number or out of range.
    """
    kind, colon, terms = text.strip().casefold().partition(":")
    if kind.strip() == "exact" and not colon:
        return Contract("exact")
    if kind.strip() != "close" or not terms.strip():
        raise UsageError(f"The contract {text!r} is not known.", next_step=EXAMPLE)
    floors: dict[str, float] = {}
    for term in terms.split(","):
        metric, minimum = _parse_term(term, text)
        if metric in floors:
            raise UsageError(f"The contract {text!r} names {metric} twice.", next_step=EXAMPLE)
        floors[metric] = minimum
    return Contract("close", ssim_minimum=floors.get("ssim"), psnr_minimum_db=floors.get("psnr"))


def _parse_term(term: str, text: str) -> tuple[str, float]:
    match = _TERM.fullmatch(term.strip())
    if match is None or match["metric"] not in ("ssim", "psnr"):
        raise UsageError(
            f"The term {term.strip()!r} in the contract {text!r} is not ssim>=NUMBER or psnr>=NUMBER.",
            next_step=EXAMPLE,
        )
    return match["metric"], float(match["minimum"])


def _shortfall(name: str, unit: str, value: float | None, minimum: float, unavailable: str | None) -> str:
    """Empty when the floor is met; written so that NaN does not meet it."""
    if value is None:
        return f"{name} is not available ({unavailable or 'no value'}), so {name} >= {_shortest(minimum)}{unit} fails"
    if value >= minimum:
        return ""
    return f"{name} {_digits_that_show(value, minimum)}{unit} is below {_shortest(minimum)}{unit}"


def _digits_that_show(value: float, minimum: float) -> str:
    """``value`` with as few digits as keep it visibly below ``minimum``: 0.94999 must not print as 0.95."""
    for digits in range(4, 17):
        text = f"{value:.{digits}g}"
        if float(text) < minimum:
            return text
    return repr(value)


def _shortest(value: float) -> str:
    """The shortest decimal text that reads back to ``value``, without an exponent."""
    return f"{Decimal(repr(value)):f}".removesuffix(".0")
