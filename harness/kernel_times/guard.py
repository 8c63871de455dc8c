"""Whether a kernel has become slower than a stored result says: the rule, row by row.

Every form of a call is timed in several rounds, and a round's median is one number. Of a run, the *spread* is from its
lowest round to its highest. A row is **slower** only where all of this holds, and then again in a second look of as
many rounds, taken in a fresh process after every row was measured:

1. beyond both spreads: the lowest fused round now lies above the highest fused round of the baseline;
2. the fused median has grown by :data:`SMALLEST_CHANGE` or more;
3. against the eager chain, too: fused over eager, round by round, lies beyond both spreads in the same way. Where eager
   has slowed with it, the card was slower and not the kernel: ``card``, which is no regression.

Rounds of one process may all be off by what that process keeps, which no number of rounds shows; hence the fresh
process and the smallest change. docs/fast-path-work.md has how often that calls an unchanged row slower.
*Faster* is the mirror image of 1 to 3, and costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fuseproof.harness.kernel_times.record import Key, Record, Row, Time

SMALLEST_CHANGE = 0.02
"""Share of the median below which no row is called slower or faster."""


class Standing(StrEnum):
    """How a row stands against its baseline."""

    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    CARD = "card"
    """Slower or faster in absolute time, and eager moved with it."""
    DIFFERS = "differs"
    """Its bits are not eager's now: no time, and the guard fails."""
    LOST = "lost"
    """It had a time, and now declines, is undecided, or is not called any more."""
    NEW = "new"
    """The baseline has no time of it."""
    NOT_MEASURED = "not measured"
    """Only in the baseline, and this run was asked for less."""


@dataclass(frozen=True)
class Judged:
    """One row's standing. ``change`` is the growth of the fused median, 0.1 for a tenth more time."""

    key: Key
    standing: Standing
    now: Row | None
    then: Row | None
    change: float | None = None

    @property
    def has_new_source(self) -> bool:
        """Whether the kernel's source files are others than the baseline's."""
        return bool(self.now and self.then and self.now.source_sha256 != self.then.source_sha256)


def judge(baseline: Record, now: Record, second_look: Mapping[Key, Row] | None = None) -> list[Judged]:
    """Every row of this run in its order, then those that only the baseline has.

    ``second_look`` holds rows that were measured once more; a row is slower only where it is in there, too. Without it
    (None) the first look alone judges, and says which rows need a second.
    """
    stored, measured = baseline.by_key(), now.by_key()
    judged = [_judged(row, stored.get(row.key)) for row in now.calls]
    if second_look is not None:
        judged = [_looked_at_again(one, second_look.get(one.key)) for one in judged]
    covers = baseline.selection == now.selection
    return judged + [
        Judged(key, Standing.LOST if covers and row.fused else Standing.NOT_MEASURED, None, row)
        for key, row in stored.items()
        if key not in measured
    ]


def needing_second_look(judged: Iterable[Judged]) -> list[Key]:
    """The rows that one look calls slower."""
    return [one.key for one in judged if one.standing is Standing.SLOWER]


def _looked_at_again(first: Judged, again: Row | None) -> Judged:
    if first.standing is not Standing.SLOWER:
        return first
    second = _judged(again, first.then) if again is not None else None
    if second is None or second.standing is Standing.SLOWER:
        return first
    standing = second.standing if second.standing in (Standing.DIFFERS, Standing.CARD) else Standing.SAME
    return Judged(first.key, standing, again, first.then, second.change)


def _judged(now: Row, then: Row | None) -> Judged:
    if now.bits == "differs":
        return Judged(now.key, Standing.DIFFERS, now, then)
    if then is None or then.fused is None or then.eager is None:
        return Judged(now.key, Standing.NEW, now, then)
    if now.fused is None or now.eager is None:
        return Judged(now.key, Standing.LOST, now, then)
    change = now.fused.median_us / then.fused.median_us - 1
    moved = _moved(now.fused, then.fused, change)
    against_eager = _apart(_ratios(now.fused, now.eager), _ratios(then.fused, then.eager))
    if moved == 0:
        standing = Standing.SAME
    elif moved != against_eager:
        standing = Standing.CARD
    else:
        standing = Standing.SLOWER if moved > 0 else Standing.FASTER
    return Judged(now.key, standing, now, then, change)


def _moved(now: Time, then: Time, change: float) -> int:
    """1 for slower, -1 for faster, 0 where spreads overlap or the change is too small to speak of."""
    return _apart(now.rounds_us, then.rounds_us) if abs(change) >= SMALLEST_CHANGE else 0


def _apart(now: list[float], then: list[float]) -> int:
    if min(now) > max(then):
        return 1
    return -1 if max(now) < min(then) else 0


def _ratios(fused: Time, eager: Time) -> list[float]:
    return [one / other for one, other in zip(fused.rounds_us, eager.rounds_us, strict=True)]
