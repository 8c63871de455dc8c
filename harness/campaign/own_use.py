"""CPU time of a campaign that runs several slots at once: the other slots are its own and disturb nobody foreign.

One slot at a time is told apart by what was waited for. Beside it, slots of other lanes have not ended yet, so the
whole process trees of the campaign are summed up, children that were waited for included.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import psutil

MOST_READS = 5


@dataclass
class OwnUse:
    """The process trees of one campaign on one machine, from the moment this object is made.

    ``roots`` names the trees that are there now. What a tree that is found only later had used before is known where
    ``candidates`` named it at the beginning.
    """

    roots: Callable[[], Iterable[int]] = lambda: (os.getpid(),)
    candidates: Callable[[], Iterable[int]] | None = None
    _known_s: dict[int, float] = field(default_factory=dict)
    _ours: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._ours = set(self.roots())
        self._known_s = trees_cpu_s({*self._ours, *(self.candidates() if self.candidates else ())})

    def seconds(self) -> float:
        """CPU seconds of the campaign's trees since this object was made; a tree that is gone counts no more."""
        self._ours |= set(self.roots())
        now = trees_cpu_s(self._ours)
        return sum(max(0.0, now_s - self._known_s.get(root, 0.0)) for root, now_s in now.items())

    def pids(self) -> set[int]:
        """Every process of the campaign's trees, to leave them out where others are named."""
        self._ours |= set(self.roots())
        return {pid for tree in process_trees(self._ours).values() for pid in tree}


def trees_cpu_s(roots: Iterable[int]) -> dict[int, float]:
    """CPU time so far of each root's process tree, with the children that its processes have waited for.

    It is 0 for a tree that is gone. A child that ends while its tree is read would count twice or not at all: then
    all are read again.
    """
    wanted = set(roots)
    found: dict[int, float] = {}
    for _ in range(MOST_READS):
        before = {root: _waited_for_s(root) for root in wanted}
        found = {root: sum(map(_cpu_s, tree)) for root, tree in process_trees(wanted).items()}
        if before == {root: _waited_for_s(root) for root in wanted}:
            break
    return found


def process_trees(roots: Iterable[int]) -> dict[int, list[int]]:
    """Each root with its descendants, from one look at all processes."""
    children: dict[int, list[int]] = defaultdict(list)
    for process in psutil.process_iter(["ppid"]):
        children[process.info["ppid"]].append(process.pid)
    return {root: _tree(root, children) for root in roots}


def _tree(root: int, children: dict[int, list[int]]) -> list[int]:
    tree = [root]
    for pid in tree:  # it grows while it is walked
        tree.extend(child for child in children.get(pid, ()) if child != pid)
    return tree


def _cpu_s(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system) + _waited(times)


def _waited_for_s(pid: int) -> float:
    try:
        return _waited(psutil.Process(pid).cpu_times())
    except psutil.Error:
        return 0.0


def _waited(times: object) -> float:
    """Where the system tells it: psutil has these two on Linux and macOS alone."""
    return float(getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0))
