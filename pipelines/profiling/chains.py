"""Fusable chains: launches without a product between them of which one reads what an earlier one wrote.

Between two launches that are no part of chains (a matrix product, attention, a convolution), on one stream of one step
(a memset neither is in a chain nor ends one: a sum clears what it adds up in),
launches that hand storage to each other form a chain; no launch is in two. Its floor is the copy bandwidth over what a
single kernel would still have to move: what comes from outside once, what is read later or never read in it once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseproof.pipelines.profiling.classing import IN_CHAINS, SET
from fuseproof.pipelines.profiling.events import TensorUse
from fuseproof.pipelines.profiling.known_chains import FastPath, fast_path_for
from fuseproof.pipelines.profiling.launches import Launch
from fuseproof.pipelines.profiling.tables import Step
from fuseproof.pipelines.profiling.tensors import tensor_text
from fuseproof.pipelines.profiling.typical import summed

Storage = tuple[int, int]
_INDEX = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True)
class Chain:
    """Launches of one step in order; ``floor_bytes`` is what one kernel in their place would move."""

    launches: tuple[Launch, ...]
    floor_bytes: int
    bytes: int


def chains_table(
    steps: Sequence[Step],
    bandwidth_gb_s: float | None,
    paths: Sequence[FastPath],
    typical: Mapping[int, int] | None = None,
) -> list[dict[str, Any]]:
    """All chains of the profiled steps, alike ones in repeated blocks together, what saves most first.

    Without a bandwidth nothing has a floor, and what takes most is first. ``typical`` as for rows.
    """
    found: dict[tuple[Any, ...], list[Chain]] = {}
    for step in steps:
        for chain in chains_of(step.launches):
            found.setdefault((step.stage, *_identity(chain)), []).append(chain)
    per_stage: dict[str, int] = {}
    for step in steps:
        per_stage[step.stage] = per_stage.get(step.stage, 0) + 1
    table = [_entry(key, group, per_stage[key[0]], bandwidth_gb_s, paths, typical) for key, group in found.items()]
    return sorted(table, key=lambda row: (-(row["saving_us_per_step"] or 0.0), -_ranked_by(row)))


def chains_of(launches: Sequence[Launch]) -> list[Chain]:
    """The chains of one step, of two launches or more each."""
    by_stream: dict[int, list[Launch]] = {}
    for one in sorted(launches, key=lambda one: (one.start, one.launched)):
        by_stream.setdefault(one.stream, []).append(one)
    readers = _last_readers(by_stream.values())
    chains = []
    for own in by_stream.values():
        between = [one for one in own if one.class_ != SET]
        for is_part, run in itertools.groupby(between, lambda one: one.class_ in IN_CHAINS):
            if is_part:
                chains += [_chain(group, readers) for group in _connected(list(run))]
    return chains


def _last_readers(streams: Iterable[Sequence[Launch]]) -> Mapping[Storage, list[int]]:
    found: dict[Storage, list[int]] = {}
    for own in streams:
        for one in own:
            for tensor in one.inputs:
                found.setdefault(tensor.storage, []).append(id(one))
    return found


def _connected(run: Sequence[Launch]) -> list[list[Launch]]:
    """The launches of ``run`` by who hands what to whom; lone ones are left out."""
    parent = list(range(len(run)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    writers: dict[Storage, int] = {}
    operations: dict[Hashable, int] = {}
    for place, one in enumerate(run):
        for tensor in one.inputs:
            if tensor.storage in writers:
                parent[root(place)] = root(writers[tensor.storage])
        if one.call is not None:
            parent[root(place)] = root(operations.setdefault(one.call, place))
        for tensor in one.outputs:
            writers[tensor.storage] = place
    groups: dict[int, list[Launch]] = {}
    for place, one in enumerate(run):
        groups.setdefault(root(place), []).append(one)
    return [group for group in groups.values() if len({one.call for one in group if one.call is not None}) > 1]


def _chain(group: Sequence[Launch], readers: Mapping[Storage, Sequence[int]]) -> Chain:
    own, written = {id(one) for one in group}, set[Storage]()
    outside: dict[Storage, int] = {}
    made: dict[Storage, int] = {}
    for one in group:
        for tensor in one.inputs:
            if tensor.storage not in written:
                _keep_largest(outside, tensor)
        for tensor in one.outputs:
            written.add(tensor.storage)
            _keep_largest(made, tensor)
    read_inside = {tensor.storage for one in group for tensor in one.inputs}
    kept = [
        size
        for storage, size in made.items()
        if storage not in read_inside or any(reader not in own for reader in readers.get(storage, ()))
    ]
    return Chain(tuple(group), sum(outside.values()) + sum(kept), sum(one.bytes or 0 for one in group))


def _keep_largest(sizes: dict[Storage, int], tensor: TensorUse) -> None:
    sizes[tensor.storage] = max(sizes.get(tensor.storage, 0), tensor.bytes)


def _identity(chain: Chain) -> tuple[Any, ...]:
    group = chain.launches
    return (
        owner_text(group),
        tuple(one.operation for one in group),
        tuple(one.class_ for one in group),
        next((one.line for one in group if one.line is not None), None),
        _shape(group),
    )


def _shape(group: Sequence[Launch]) -> str | None:
    tensors = [tensor for one in group for tensor in one.inputs]
    return tensor_text(max(tensors, key=lambda tensor: tensor.bytes)) if tensors else None


def common_owner(modules: Sequence[str]) -> str:
    """The innermost module that holds all of ``modules``, with the indices of repeated blocks as ``*``."""
    return _INDEX.sub(".*", ".".join(_shared_parts(modules)))


def _shared_parts(modules: Sequence[str]) -> list[str]:
    parts = [module.split(".") if module else [] for module in modules]
    shared: list[str] = []
    for names in zip(*parts, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return shared


def owner_text(group: Sequence[Launch]) -> str:
    """The common owner; where a chain goes on into other modules or the next block, those (``a.* + b.*``).

    What a component itself launches is then named after it (``transformer``); empty where nothing else is in it.
    """
    modules = [one.module or "" for one in group]
    shared = common_owner(modules)
    depth = len(_shared_parts(modules))
    if shared and all("".join(module.split(".")[depth : depth + 1]).isdigit() for module in modules):
        return f"{shared}.* + {shared}.*"
    if shared or (not any(modules) and len({one.component for one in group}) == 1):
        return shared
    return " + ".join(dict.fromkeys(_outer(one) for one in group))


def _outer(one: Launch) -> str:
    return _INDEX.sub(".*", ".".join(one.module.split(".")[:2])) if one.module else one.component


def _shared(values: Sequence[str | None]) -> str | None:
    return values[0] if len(set(values)) == 1 else None


def _ranked_by(row: Mapping[str, Any]) -> float:
    typical, measured = row["typical_us_per_step"], row["device_us_per_step"]
    return float(measured if typical is None else typical)


def _entry(
    key: tuple[Any, ...],
    group: Sequence[Chain],
    steps: int,
    bandwidth_gb_s: float | None,
    paths: Sequence[FastPath],
    typical: Mapping[int, int] | None,
) -> dict[str, Any]:
    stage, module, operations, classes, line, shape = key
    launches = [one for chain in group for one in chain.launches]
    device_us = sum(one.nanoseconds for one in launches) / 1000 / steps
    floor = None
    if bandwidth_gb_s:
        floor = sum(chain.floor_bytes for chain in group) / steps / (bandwidth_gb_s * 1e3)
    path = fast_path_for(group[0].launches, paths)
    return {
        "stage": stage,
        "module": module,
        "component": _shared([one.component for one in launches]),
        "site": _shared([one.site for one in launches]),
        "operations": list(operations),
        "classes": list(classes),
        "line": line,
        "shape": shape,
        "calls_per_step": len(group) / steps,
        "device_us_per_step": device_us,
        "typical_us_per_step": None if typical is None else summed(launches, typical) / 1000 / steps,
        "bytes_per_step": round(sum(chain.bytes for chain in group) / steps),
        "fused_floor_us_per_step": floor,
        "saving_us_per_step": None if floor is None else max(device_us - floor, 0.0),
        "fast_path": None if path is None else path[0],
        "fast_path_reason": None if path is None else path[1],
    }
