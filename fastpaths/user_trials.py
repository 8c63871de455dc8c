"""The trial of a site of one's own, which is not believed to leave alone what it has no business with.

The reference runs first, on inputs of which copies are kept; then the fused form runs twice:

- an input that it changed is put back, and the key is rejected; a changed weight cannot be put back, and ends the
  request;
- a result that is a view of an input or a weight is rejected, unless eager's is the same view; so is memory that it
  hands out twice or keeps hold of, since a later call would overwrite what an earlier one returned;
- both runs must have the same bits, and torch's settings and random generators must be left as they were.

What it does only after that goes unseen, except under ``--verify-every-step``, which makes every call a trial.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.bits import bits_equal, snapshot, structure_mismatch, tensors_of, value_mismatch
from fuseproof.fastpaths.torch_settings import TorchSettings
from fuseproof.fastpaths.trials import FIRST_SIGHT, Computation, Trial
from fuseproof.fastpaths.user_code import UserCall, UserCodeError
from fuseproof.fastpaths.watched_memory import (
    WatchedTensors,
    WatchedWeights,
    shares_unlike,
    storage_of,
    storages_of,
)


class Watched:
    """What one function of a site must leave as it is. :meth:`settle` says what it changed instead."""

    def __init__(self, call: UserCall, writes: Sequence[torch.Tensor]) -> None:
        self.inputs = WatchedTensors(call.inputs())
        self.weights = WatchedWeights(call.module)
        self.before = [tensor.clone() for tensor in writes]
        self._writes = writes
        self._call = call
        self._settings: TorchSettings | None = None

    def begin(self) -> None:
        """Note torch's settings; what the reference did to them is its own affair."""
        self._settings = TorchSettings(tensor.device for _, tensor in self._call.inputs())

    def written(self) -> set[int]:
        """Where the outputs lie."""
        return {storage_of(tensor) for tensor in self._writes}

    def storages(self) -> set[int]:
        """Where inputs, weights and outputs lie."""
        return self.inputs.storages() | self.weights.storages() | self.written()

    def settle(self, what: str, function: Callable[..., Any]) -> str | None:
        """Put outputs, inputs and settings back; what was changed, as a sentence, or None.

        A changed weight is a :class:`FuseproofError`: there is no copy of it.
        """
        for tensor, before in zip(self._writes, self.before, strict=True):
            tensor.copy_(before)
        setting = self._settings.put_back() if self._settings is not None else None
        inputs = self.inputs.put_back()
        weight = self.weights.changed()
        if weight is not None:
            raise FuseproofError(
                f"site {self._call.site!r}: {what} wrote into its module's weight {weight!r}, which is now spoilt.",
                next_step="Compute on a copy of the weight (`weight.clone()`); this process must load the model again.",
            )
        if inputs:
            return f"{what} wrote into its input {self._call.name_of(inputs[0], function)}"
        return f"{what} changed {setting}" if setting is not None else None


@dataclass(frozen=True)
class _Run:
    """One run of the fused form: ``result`` is what it returned, ``bits`` what that held before outputs were reset."""

    result: Any
    bits: Any
    objection: str | None
    milliseconds: float


def wary_trial(
    call: UserCall, fused: Callable[..., Any], reference: Computation, writes: Sequence[torch.Tensor], when: str
) -> Trial:
    """Both forms of ``call``; see the module. A device error, or a request to exit, is a :class:`UserCodeError`."""
    watched = Watched(call, writes)
    expected = reference()
    changed = watched.inputs.changed()
    if changed:
        name = call.name_of(changed[0], fused)
        return Trial(None, expected, f"eager itself writes into its input {name}, so nothing can be compared", 0.0)
    first = _run(call, fused, watched, expected, when)
    milliseconds, candidate, objection = first.milliseconds, None, first.objection
    if objection is None:
        second = _run(call, fused, watched, expected, when)
        candidate, objection = second.bits, second.objection or _repetition_objection(first, second, expected, watched)
    if objection is None:
        kept = _weak_references(first.result, watched.storages() | storages_of(expected))
        del first
        objection = _retention_objection(kept)
    if objection is not None and when != FIRST_SIGHT and when not in objection:
        objection = f"{objection} ({when})"
    return Trial(candidate, expected, objection, milliseconds, watched.before)


def _run(call: UserCall, fused: Callable[..., Any], watched: Watched, expected: Any, when: str) -> _Run:
    watched.begin()
    result = bits = None
    started = time.perf_counter()
    try:
        result = call.of("fused", fused)
        fault = None
    except UserCodeError as error:
        if error.is_fatal:
            raise
        fault = f"{error.kind} {when}: {error.detail}"
    milliseconds = (time.perf_counter() - started) * 1e3
    fault = fault or _result_objection(result, expected, watched)
    if fault is None:
        bits = snapshot(result) if watched.before else result
    objections = [text for text in (watched.settle("fused", fused), fault) if text]
    return _Run(result, bits, "; ".join(objections) or None, milliseconds)


def _result_objection(result: Any, expected: Any, watched: Watched) -> str | None:
    mismatch = structure_mismatch(result, expected)
    if mismatch is not None:
        return f"returns something else than eager: {mismatch}"
    if shares_unlike(result, expected, watched.inputs.storages() - watched.written()):
        return "its result is a view of an input, and eager's is not"
    if shares_unlike(result, expected, watched.weights.storages() - watched.written()):
        return "its result is a view of a weight, and eager's is not"
    recording = [[tensor.requires_grad for tensor in tensors_of(one)] for one in (result, expected)]
    if recording[0] != recording[1]:
        return "its result records gradients, and eager's does not"
    return None


def _repetition_objection(first: _Run, second: _Run, expected: Any, watched: Watched) -> str | None:
    own = storages_of(first.result) & storages_of(second.result)
    if own - watched.storages() - storages_of(expected):
        return "returns the same memory at every call, so a later call would overwrite an earlier result"
    if value_mismatch(first.bits, second.bits) is not None or not bits_equal(first.bits, second.bits):
        return "not deterministic: two runs on the same inputs gave other bits"
    return None


def _weak_references(result: Any, others: set[int]) -> list[StorageWeakRef]:
    return [StorageWeakRef(t.untyped_storage()) for t in tensors_of(result) if storage_of(t) not in others | {0}]


def _retention_objection(kept: Sequence[StorageWeakRef]) -> str | None:
    """Whether a result outlives us, who just dropped it: such memory is lent, and will be written again."""
    if all(reference.expired() for reference in kept):
        return None
    gc.collect()
    if all(reference.expired() for reference in kept):
        return None
    return "keeps hold of a result that it returned, so a later call could overwrite it"
