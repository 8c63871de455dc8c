"""A value that is computed once and reused for as long as what it came from stays, behind a gate."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from fuseproof.fastpaths.gates import Gate, undecidable_because
from fuseproof.fastpaths.hoisting import HeldResults, are_countable

FIRST = "computed for the first time: nothing was held that could be reused"
NEW_INPUTS = "its inputs were new tensors each time, so nothing held could be reused"
UNTRACKED = "writes to what it is computed from cannot be tracked, as under inference_mode"


def held_value(
    gate: Gate, held: HeldResults, key: Hashable, sources: tuple[torch.Tensor, ...], eager: Callable[[], Any]
) -> Any:
    """``eager()``, or what it gave under ``key`` for exactly these ``sources``, none of them written to since.

    ``sources`` are all tensors, weights included, that the value is a function of. The gate compares a first
    computation with a second one at once, and counts.
    """
    cause = undecidable_because() or (None if are_countable(sources) else UNTRACKED)
    if cause is not None:
        return gate.run_eager(eager, cause)
    entry = held.find(key, sources)
    if entry is not None:
        return gate.run(key, lambda: entry.result, eager)
    result = gate.run_eager(eager, NEW_INPUTS if held.knows(key) else FIRST)
    gate.decide(key, result, eager)
    held.hold(key, sources, result)
    return result
