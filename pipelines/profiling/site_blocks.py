"""Which block of the denoiser a call of a site stands for, where the site rewrites whole blocks (decision 8).

Such a site calls none of the block's modules, but its gate once for every block, in their order. So within a forward
the n-th call of its gate, outside of any other site's, is block n.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping

from fuseproof.pipelines.profiling import events
from fuseproof.pipelines.profiling.events import Call, SiteCall
from fuseproof.pipelines.profiling.launches import Names


def blocks_of_sites(calls: Iterable[Call], sites: Mapping[int, SiteCall], names: Names) -> dict[int, tuple[str, str]]:
    """Path and class of the block, by the ``id`` of a site's mark; only of sites that stand for blocks."""
    calls = list(calls)
    if not names.blocks:
        return {}
    forwards = sorted(
        (call.start, call.end)
        for call in calls
        if call.kind == events.PYTHON and call.module is not None and call.module == names.denoiser
    )
    begins = sorted(
        call.start for call in calls if call.kind == events.MARK and call.name.startswith(events.STEP_BEGINS)
    )
    found: dict[tuple[int, int, str], list[Call]] = {}
    for mark, site in _outermost(calls, sites):
        if site.site in names.block_sites and site.counts:
            place = _forward_of(mark, forwards)
            group = (0, place) if place is not None else (1, bisect.bisect_right(begins, mark.start))
            found.setdefault((*group, site.site), []).append(mark)
    blocks: dict[int, tuple[str, str]] = {}
    for marks in found.values():
        if len(marks) % len(names.blocks) == 0:
            for index, mark in enumerate(sorted(marks, key=lambda one: one.start)):
                blocks[id(mark)] = names.blocks[index % len(names.blocks)]
    return blocks


def _outermost(calls: Iterable[Call], sites: Mapping[int, SiteCall]) -> Iterable[tuple[Call, SiteCall]]:
    marks = [call for call in calls if call.kind == events.MARK and call.name.startswith(events.SITE_MARK)]
    until: dict[int, int] = {}
    for mark in sorted(marks, key=lambda one: (one.start, -one.end)):
        site = sites.get(int(mark.name.rpartition("#")[2]))
        if site is None or not site.counts or mark.start < until.get(mark.thread, 0):
            continue
        until[mark.thread] = mark.end
        yield mark, site


def _forward_of(mark: Call, forwards: list[tuple[int, int]]) -> int | None:
    place = bisect.bisect_right(forwards, (mark.start, mark.end)) - 1
    return place if place >= 0 and mark.end <= forwards[place][1] else None
