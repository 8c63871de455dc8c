"""Which file of one folder belongs to which of another: by name, by name without its time, or by order."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fuseproof.harness.media.files import printable

MOST_NAMED = 3
_TIME = re.compile(r"(?<!\d)\d{8}[-_T]\d{6}(?!\d)")
"""``20261130-074451``, as ``generate`` and sglang put it into the names of outputs."""


@dataclass(frozen=True)
class Matched:
    """``names``: A's name → B's. ``by_time`` are those whose names agree without their times, ``by_order`` the rest."""

    names: Mapping[str, str]
    by_time: Collection[str] = field(default_factory=tuple)
    by_order: Collection[str] = field(default_factory=tuple)

    def notes(self) -> tuple[str, ...]:
        """How pairs were formed, where it was not by equal names."""
        found = []
        if self.by_time:
            found.append(f"paired by file name without the time in it: {self._shown(self.by_time)}")
        if self.by_order:
            found.append(
                "no file names agree, even without the times in them: paired in the order of their times, which need "
                f"not be the same pictures: {self._shown(self.by_order)}"
            )
        return tuple(found)

    def _shown(self, names: Collection[str]) -> str:
        first = [f"{printable(name)} with {printable(self.names[name])}" for name in sorted(names)[:MOST_NAMED]]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"{', '.join(first)}{more}"


def match_names(a: Collection[str], b: Collection[str]) -> Matched:
    """Pair the names of two folders, each name once.

    Equal names first; then names that are equal without a time of day in them, where that is unambiguous. Where not one
    pair is found so, the folders hold equally many files, and every name has a time, they are paired in that order.
    """
    names = {name: name for name in {*a} & {*b}}
    rest_a, rest_b = [name for name in a if name not in names], [name for name in b if name not in names]
    undated = {_undated(name): name for name in rest_b}
    counts_a, counts_b = Counter(map(_undated, rest_a)), Counter(map(_undated, rest_b))
    by_time = {name: undated[key] for name in rest_a if counts_a[key := _undated(name)] == 1 == counts_b[key]}
    if names or by_time:
        return Matched(names | by_time, tuple(by_time))
    if len(a) != len(b) or not all(map(_TIME.search, [*a, *b])):
        return Matched({})
    by_order = dict(zip(sorted(a, key=_moment), sorted(b, key=_moment), strict=True))
    return Matched(by_order, by_order=tuple(by_order))


def _undated(name: str) -> str:
    return _TIME.sub("", name)


def _moment(name: str) -> tuple[str, str]:
    found = _TIME.search(name)
    return (found.group(0) if found else "", name)
