"""What launches usually take, and which rows were disturbed: by a call that took many times as long as its like.

One call that the operating system set aside for 26 ms is a sum of 26 ms, and says nothing of the code that made it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuseproof.harness.number_format import percent

if TYPE_CHECKING:
    from fuseproof.harness.profiles.profile import Chain, Profile, Row, Stage

FACTOR = 20.0
"""A row whose calls take more than this many times what its like usually take was disturbed; where a profile tells
``typical_us`` it has judged every call by itself, more strictly.
"""
FEWEST_ALIKE = 3
"""Steps, or rows, from which a middle one can be told."""
RELATIVE = 1e-6
TOLD_SHARE = 0.05
"""Of a sum: what disturbed calls took beyond the usual is told from this share on."""


@dataclass(frozen=True)
class Usual:
    """Device time of a row over all profiled steps, had every call taken what it usually takes."""

    device_us: float
    is_disturbed: bool


def usual_times(rows: Iterable[Row]) -> Mapping[Row, Usual]:
    """Of each row: as the profile tells it; else by the middle one of its steps; else by rows of the same operation,
    kernel and key in the same stage. A row with nothing to be held against stands as it is.
    """
    alike: dict[tuple[str, str, str, str | None], list[Row]] = {}
    for row in rows:
        alike.setdefault((row.stage, row.operation, row.kernel, row.key), []).append(row)
    found: dict[Row, Usual] = {}
    for (*_, key), group in alike.items():
        has_like = key is not None and len(group) >= FEWEST_ALIKE
        typical = statistics.median(map(_own_call_us, group)) if has_like else None
        found |= {row: _usual(row, typical) for row in group}
    return found


def _own_call_us(row: Row) -> float:
    """Of one call, by the row itself."""
    if row.typical_us is not None:
        return row.typical_us / row.calls
    means = [us / calls for calls, us in zip(row.calls_by_step, row.device_us_by_step, strict=True) if calls]
    return statistics.median(means) if len(means) >= FEWEST_ALIKE else row.device_us / row.calls


def _usual(row: Row, of_its_like_us: float | None) -> Usual:
    if row.typical_us is not None:
        return Usual(row.typical_us, is_disturbed=row.device_us > row.typical_us * (1 + RELATIVE))
    own = _own_call_us(row)
    if of_its_like_us is not None and own > FACTOR * of_its_like_us > 0:
        return Usual(of_its_like_us * row.calls, is_disturbed=True)
    means = (us / calls for calls, us in zip(row.calls_by_step, row.device_us_by_step, strict=True) if calls)
    if max(means, default=0.0) > FACTOR * own > 0:
        return Usual(min(own * row.calls, row.device_us), is_disturbed=True)
    return Usual(row.device_us, is_disturbed=False)


def is_disturbed(rows: Sequence[Row], usual: Mapping[Row, Usual]) -> bool:
    """Whether disturbed calls make up a part of these rows' time that is worth telling."""
    return excess_us(rows, usual) > TOLD_SHARE * math.fsum(row.device_us for row in rows)


def excess_us(rows: Sequence[Row], usual: Mapping[Row, Usual]) -> float:
    """What disturbed rows took beyond the usual."""
    return math.fsum(row.device_us - usual[row].device_us for row in rows if usual[row].is_disturbed)


def chain_is_disturbed(profile: Profile, chain: Chain) -> bool:
    """Whether a row of the chain's module and operations was."""
    from fuseproof.harness.profiles.costs import folded

    return any(
        profile.usual[row].is_disturbed
        for row in profile.rows
        if row.stage == chain.stage and row.operation in chain.operations and folded(row.module) == folded(chain.module)
    )


def disturbance_warnings(profile: Profile) -> Iterator[str]:
    """One sentence for each stage in which disturbed calls took a share that is worth telling."""
    if profile.raw.get("disturbance") is not None:
        return  # its own warnings say so
    for stage in profile.stages:
        share = _excess_share(profile, stage)
        if share > TOLD_SHARE:
            yield (
                f"{stage.name}: {percent(share, 1)} of its device time was taken by single calls beyond what their "
                "like usually take: something else ran beside them. Their rows are marked as disturbed and ranked by "
                "typical time; profile again while nothing else runs"
            )


def _excess_share(profile: Profile, stage: Stage) -> float:
    return excess_us(profile.rows_of(stage), profile.usual) / stage.device_us if stage.device_us else 0.0
