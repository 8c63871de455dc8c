"""Quality: what it permits, and which approximate sites it puts in force, all of a tier or none per family.

``lossless`` permits exact sites, which are mounted once and stay. What ``extra-high`` and ``high`` add is approximate:
it is in force only while a quality that permits it is, for the thread that asked, and never beyond.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from fuseproof.errors import UsageError
from fuseproof.fastpaths.approximation import ApproximateGate
from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.installation import Installation

LOSSLESS = "lossless"
QUALITIES = (LOSSLESS, "extra-high", "high")
QUALITY_ALIASES = {"exact": LOSSLESS}
_epochs = itertools.count(1)


class MountedPart(Protocol):
    """What a mount tells of one component: its family, what was installed, and the sites that decline there."""

    family: Any
    installation: Installation
    declined: dict[str, str]


def quality_level(quality: str) -> str:
    """The quality's own name; an unknown one is a :class:`UsageError`."""
    level = QUALITY_ALIASES.get(quality, quality) if isinstance(quality, str) else None
    if level not in QUALITIES:
        raise UsageError(
            f"quality {quality!r} is not one of exact, {', '.join(QUALITIES)}.", next_step="Use lossless, the default."
        )
    return level


def permits(quality: str, needed: str) -> bool:
    """Whether ``quality`` covers a site that needs ``needed``."""
    return QUALITIES.index(needed) <= QUALITIES.index(quality)


def approximate_sites(family: Any) -> tuple[str, ...]:
    """The sites of ``family`` that are not exact."""
    return tuple(name for name in family.SITES if family.QUALITY_OF_SITE[name] != LOSSLESS)


def gate_for(
    name: str, families: Iterable[Any], mode: GateMode, *, verifies_every_call: bool, certified: frozenset[str]
) -> Gate:
    """The gate of one site: by bits where it is exact, by measurement where it is not."""
    family = next(family for family in families if name in family.SITES)
    quality = family.QUALITY_OF_SITE[name]
    if quality == LOSSLESS:
        return Gate(name, mode, verifies_every_call=verifies_every_call, certified=certified)
    return ApproximateGate(
        name,
        mode,
        quality=quality,
        largest_error=family.LARGEST_ERROR_OF_SITE[name],
        verifies_every_call=verifies_every_call,
    )


def tier_reasons(family: Any, chosen: Iterable[str], declined: Mapping[str, str]) -> dict[str, str]:
    """Why sites that could run stay off: another one of their tier declines, and a tier is mounted whole or not."""
    approximate = [name for name in approximate_sites(family) if name in set(chosen)]
    reasons: dict[str, str] = {}
    for quality in QUALITIES[1:]:
        tier = [name for name in approximate if family.QUALITY_OF_SITE[name] == quality]
        missing = next((name for name in tier if name in declined), None)
        for name in tier:
            if missing is not None and name not in declined:
                reasons[name] = f"{missing}, of the same tier {quality}, declines: {declined[missing]}"
    return reasons


class QualityInForce:
    """The quality at which the parts of one mount run: the mount's own, or what this thread's request asked for.

    ``epoch`` tells what is in force here from whatever else ever is in this process.
    """

    def __init__(
        self, parts: Sequence[MountedPart], gates: Mapping[str, Gate], permitted: str, *, per_request: bool
    ) -> None:
        self.permitted = permitted
        self._parts = parts
        self._gates = gates
        self._everywhere = LOSSLESS if per_request else permitted
        self._asked = _Asked()
        self._epochs = {quality: next(_epochs) for quality in QUALITIES}

    @property
    def quality(self) -> str:
        """What this thread runs at."""
        return self._asked.quality or self._everywhere

    @property
    def epoch(self) -> int:
        """Differs between mounts, and between the qualities of one."""
        return self._epochs[self.quality]

    def start(self) -> None:
        """Put the mount's own quality in force, for every thread."""
        for part in self._parts:
            if part.installation.choose is not None:
                part.installation.choose(self.gates_of(part, self._everywhere), in_all_threads=True)

    @contextmanager
    def at(self, quality: str) -> Iterator[None]:
        """Run this thread at ``quality`` within the block; after it, and after an exception, as it ran before."""
        level = quality_level(quality)
        if not permits(self.permitted, level):
            raise UsageError(
                f"quality {level} is above {self.permitted}, which the fast paths were mounted for.",
                next_step=f"Mount them with quality {level!r}.",
            )
        before = self._asked.quality
        self._ask_for(level)
        try:
            yield
        finally:
            self._ask_for(before)

    def gates_of(self, part: MountedPart, quality: str) -> dict[str, Gate]:
        """The approximate sites of one part that ``quality`` puts in force; one that another takes over is not."""
        able = self._able(part, quality)
        taken_over = _taken_over(part.family, able)
        return {name: self._gates[name] for name in able if name not in taken_over}

    def taken_over(self, part: MountedPart) -> dict[str, str]:
        """Sites that are not called at the highest permitted quality, and the site that does their work there."""
        return _taken_over(part.family, self._able(part, self.permitted))

    def _able(self, part: MountedPart, quality: str) -> list[str]:
        family = part.family
        return [
            name
            for name in approximate_sites(family)
            if name in self._gates and name not in part.declined and permits(quality, family.QUALITY_OF_SITE[name])
        ]

    def _ask_for(self, quality: str | None) -> None:
        self._asked.quality = quality
        for part in self._parts:
            if part.installation.choose is not None:
                gates = None if quality is None else self.gates_of(part, quality)
                part.installation.choose(gates, in_all_threads=False)


def _taken_over(family: Any, able: Sequence[str]) -> dict[str, str]:
    """``TAKEN_OVER_BY`` of a family, as far as the sites that take over are able to run."""
    takers = {name: [by for by in several if by in able] for name, several in _takers_of(family).items()}
    return {name: several[0] for name, several in takers.items() if several}


def _takers_of(family: Any) -> Mapping[str, tuple[str, ...]]:
    takers: Mapping[str, tuple[str, ...]] = getattr(family, "TAKEN_OVER_BY", {})
    return takers


class _Asked(threading.local):
    quality: str | None = None
