"""Launches of a graph's replay, told where they come from by a step of the same branches that ran without replay.

A replay runs no code of the model. The same function run eagerly launches the same kernels in the same order, so the
n-th of a replay is the n-th of the eager call, where all names agree (memsets and copies go by their kind). Where some
do not, the longest common runs are matched, and what is left stays unattributed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from fuseproof.pipelines.profiling.events import TensorUse
from fuseproof.pipelines.profiling.launches import Launch

LARGEST_TO_DIFF = 20_000
NameT = TypeVar("NameT", int, str)
Step = tuple[int, int]
"""When a step began and ended."""


@dataclass(frozen=True)
class Alignment:
    """The launches, those of replays attributed where that is possible; how many were not, and what to say of it."""

    launches: list[Launch]
    unmatched: int
    warning: str | None


def align(launches: Sequence[Launch], steps: Sequence[Step], eager: Sequence[Launch]) -> Alignment:
    """Attribute the replays in ``launches``; the n-th of a step to the n-th graphed call of the ``eager`` step."""
    references = _by((one.mark, one) for one in eager if one.mark is not None and not one.from_graph)
    ordered = [references[mark] for mark in sorted(references, key=lambda mark: references[mark][0].launched)]
    replays = _by((one.graph, one) for one in launches if one.graph is not None)
    if not replays:
        return Alignment(list(launches), 0, None)
    found: dict[int, Launch] = {}
    for step in steps:
        inside = sorted(number for number in replays if step[0] <= number < step[1])
        for place, number in enumerate(inside):
            if ordered:
                found |= _aligned(replays[number], ordered[place % len(ordered)])
    joined = [_attributed(one, found.get(id(one))) if one.from_graph else one for one in launches]
    unmatched = [one for one in joined if one.from_graph and not one.is_attributed]
    return Alignment(joined, len(unmatched), _warning(unmatched, sum(map(len, replays.values()))))


def _warning(unmatched: Sequence[Launch], total: int) -> str | None:
    if not unmatched:
        return None
    milliseconds = sum(one.nanoseconds for one in unmatched) / 1e6
    return (
        f"{len(unmatched)} of {total} launches of CUDA graph replays ({milliseconds:.3f} ms) do not align with the "
        "step that ran without replay and are not attributed"
    )


def _by(pairs: Iterable[tuple[NameT, Launch]]) -> Mapping[NameT, list[Launch]]:
    found: dict[NameT, list[Launch]] = {}
    for name, launch in pairs:
        found.setdefault(name, []).append(launch)
    return {name: sorted(group, key=lambda one: (one.start, one.launched)) for name, group in found.items()}


def _aligned(replayed: Sequence[Launch], eager: Sequence[Launch]) -> dict[int, Launch]:
    names, expected = [_name(one) for one in replayed], [_name(one) for one in eager]
    if names == expected:
        return {id(one): reference for one, reference in zip(replayed, eager, strict=True)}
    same = _common_start(names, expected)
    end = _common_start(names[same:][::-1], expected[same:][::-1])
    pairs = [(place, place) for place in range(same)]
    pairs += [(len(names) - place, len(expected) - place) for place in range(1, end + 1)]
    middle, other = names[same : len(names) - end], expected[same : len(expected) - end]
    if len(middle) + len(other) <= LARGEST_TO_DIFF:
        for block in difflib.SequenceMatcher(None, middle, other, autojunk=False).get_matching_blocks():
            pairs += [(same + block.a + step, same + block.b + step) for step in range(block.size)]
    return {id(replayed[place]): eager[reference] for place, reference in pairs}


def _name(launch: Launch) -> str:
    """The kernel; a graph names its own nodes otherwise: ``Memset (Unknown)``, ``memcpy128`` for a ``Memcpy DtoD``."""
    return next((kind for kind in ("memset", "memcpy") if launch.kernel.lower().startswith(kind)), launch.kernel)


def _common_start(names: Sequence[str], expected: Sequence[str]) -> int:
    count = 0
    for one, other in zip(names, expected, strict=False):
        if one != other:
            break
        count += 1
    return count


def _attributed(replayed: Launch, reference: Launch | None) -> Launch:
    if reference is None:
        return replace(replayed, is_attributed=False, module=None, module_class=None, site=None, line=None)
    return replace(
        reference,
        launched=replayed.launched,
        start=replayed.start,
        nanoseconds=replayed.nanoseconds,
        stream=replayed.stream,
        graph=replayed.graph,
        call=None if reference.call is None else (replayed.graph, reference.call),
        inputs=_elsewhere(reference.inputs),
        outputs=_elsewhere(reference.outputs),
    )


def _elsewhere(tensors: tuple[TensorUse, ...]) -> tuple[TensorUse, ...]:
    """Tensors of the eager step, in storages that nothing of the profiled steps is taken to share."""
    return tuple(tensor.at_generation(-1 - tensor.generation) for tensor in tensors)
