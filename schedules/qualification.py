"""What every block of a cell must show on its own before its speed-up is claimed: ``worker>=1.5%``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fuseproof.errors import UsageError

TIMERS = ("worker", "denoise", "client")
EXAMPLE = 'write "worker>=1.5%" or "client>=0.015"'
_REQUIREMENT = re.compile(r"(?P<timer>[a-z]+)\s*>=\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<percent>%?)")


@dataclass(frozen=True)
class Requirement:
    """One timer and the smallest mean reduction that each block must reach, as a share (0.015: 1.5 % less time)."""

    timer: str
    minimum: float

    def __str__(self) -> str:
        return f"{self.timer}>={100 * self.minimum:.10g}%"


def parse_requirement(text: str) -> Requirement:
    """Read ``worker>=1.5%`` or ``worker>=0.015``; :class:`UsageError` says what was seen and what is allowed."""
    found = _REQUIREMENT.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no requirement of a block", next_step=EXAMPLE)
    if found["timer"] not in TIMERS:
        raise UsageError(f"{text!r} names the timer {found['timer']!r}; it is one of {', '.join(TIMERS)}")
    minimum = float(found["number"]) / (100.0 if found["percent"] else 1.0)
    if not (math.isfinite(minimum) and 0 < minimum < 1):
        raise UsageError(f"{text!r} asks for {100 * minimum:g} %; it must be above 0 % and below 100 %")
    return Requirement(found["timer"], minimum)


def parse_requirements(texts: tuple[str, ...]) -> tuple[Requirement, ...]:
    """All of them; a timer is named once at most."""
    found = tuple(parse_requirement(text) for text in texts)
    names = [requirement.timer for requirement in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"the timer {twice!r} is named twice")
    return found


def split_requirements(text: str) -> tuple[Requirement, ...]:
    """``worker>=1.5%,client>=1%`` as requirements; :class:`UsageError` for a text that names none."""
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts:
        raise UsageError("The requirements of a block are empty.", next_step=f"Leave them out, or {EXAMPLE}.")
    return parse_requirements(parts)
