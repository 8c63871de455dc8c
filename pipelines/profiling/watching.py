"""Marks round the calls of gates while a profile runs, so that launches can be told which site they belong to.

Nothing is hung on a model: a hook makes fast paths decline. A gate gets its own ``run``, ``decline`` and ``run_eager``
wrapped for as long as the profile lasts, each call inside a mark of the profiler, and its key, tensors' facts and
outcome are noted; no tensor is held. What runs, and its order on the device, stays what it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.wording import key_text
from fuseproof.pipelines.divergence.nested_tensors import named_tensors
from fuseproof.pipelines.profiling import events
from fuseproof.pipelines.profiling.events import SiteCall, TensorUse
from fuseproof.pipelines.profiling.recording import tensor_use
from fuseproof.pipelines.profiling.tensors import is_contiguous

FUSED, EAGER = "fused", "eager"
METHODS = ("run", "decline", "run_eager")
mark: Callable[[str], Any] = torch._C._profiler._RecordFunctionFast
"""A context manager that the profiler sees as an operation of that name, and nothing else does."""


def mark_now(name: str) -> None:
    """A mark without duration."""
    with mark(name):
        pass


@contextmanager
def uncounted(gates: Mapping[str, Gate]) -> Iterator[None]:
    """Calls within this context are in no gate's counters: they are not the request's."""
    before = [
        (gate, gate.calls_fused, gate.calls_eager, gate.calls_verified, dict(gate.declined), dict(gate.eager_causes))
        for gate in gates.values()
    ]
    try:
        yield
    finally:
        for gate, fused, eager, verified, declined, causes in before:
            gate.calls_fused, gate.calls_eager, gate.calls_verified = fused, eager, verified
            gate.declined, gate.eager_causes = declined, causes


class _InThread(threading.local):
    def __init__(self) -> None:
        self.open: list[Gate] = []
        self.told: tuple[Gate, tuple[TensorUse, ...]] | None = None
        """What a gated operation was given, between telling its gate's observer and calling the gate."""


class SiteWatch:
    """Notes the calls of a mount's ``gates`` inside :meth:`watching`, while ``is_on``; :meth:`take` hands them out."""

    def __init__(self, gates: Mapping[str, Gate]) -> None:
        self.is_on = False
        self._gates = gates
        self._calls: list[SiteCall] = []
        self._number = 0
        self._in_thread = _InThread()
        self._lock = threading.Lock()
        self._keys: dict[Hashable, tuple[str, str]] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within this context the gates tell of their calls; afterwards they are as they were."""
        earlier = {name: gate.call_observer for name, gate in self._gates.items()}
        for gate in self._gates.values():
            gate.call_observer = self._observer(gate, gate.call_observer)
            for method in METHODS:
                setattr(gate, method, self._wrapped(gate, method, getattr(gate, method)))
        try:
            yield
        finally:
            for name, gate in self._gates.items():
                gate.call_observer = earlier[name]
                for method in METHODS:
                    delattr(gate, method)

    def take(self) -> tuple[SiteCall, ...]:
        """The calls noted since the last time."""
        with self._lock:
            taken, self._calls = tuple(self._calls), []
        return taken

    def _observer(self, gate: Gate, earlier: Callable[..., None] | None) -> Callable[..., None]:
        def observe(operation: Any, arguments: tuple[Any, ...], outputs: Mapping[str, Any]) -> None:
            if self.is_on:
                self._in_thread.told = gate, tuple(_uses((arguments, dict(outputs))))
            if earlier is not None:
                earlier(operation, arguments, outputs)

        return observe

    def _wrapped(self, gate: Gate, method: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            local = self._in_thread
            if not self.is_on or gate in local.open:
                return own(*args, **kwargs)
            told, local.told = local.told, None
            inputs = told[1] if told is not None and told[0] is gate else ()
            with self._lock:
                number = self._number = self._number + 1
            fused_before, result = gate.calls_fused, None
            local.open.append(gate)
            try:
                with mark(f"{events.SITE_MARK}{gate.site}#{number}"):
                    result = own(*args, **kwargs)
            finally:
                local.open.remove(gate)
                local.told = None
                state = FUSED if gate.calls_fused > fused_before else EAGER
                self._note(number, gate, method, args, kwargs, state, inputs, result)
            return result

        return call

    def _note(
        self,
        number: int,
        gate: Gate,
        method: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        state: str,
        inputs: tuple[TensorUse, ...],
        result: Any,
    ) -> None:
        if method == "run":
            key, layout = self._key_texts(args[0] if args else kwargs["key"])
        else:
            key, layout = str(args[0] if method == "decline" else args[1]), ""
        call = SiteCall(number, gate.site, state, key, layout, inputs, tuple(_uses(result)), method == "run")
        with self._lock:
            self._calls.append(call)

    def _key_texts(self, key: Hashable) -> tuple[str, str]:
        found = self._keys.get(key)
        if found is None:
            found = self._keys[key] = key_text(key), layout_text(key)
        return found


def layout_text(key: Any) -> str:
    """``contiguous``, or the strides of each tensor in a gate's key that is not."""
    strides = [_strides_text(part) for part in _tensors_in_key(key)]
    other = [text for text in strides if text is not None]
    return "strides " + ", ".join(other) if other else "contiguous" if strides else ""


def _tensors_in_key(part: Any) -> Iterator[tuple[Any, ...]]:
    if isinstance(part, tuple) and not isinstance(part, torch.Size):
        if len(part) > 1 and isinstance(part[0], torch.Size) and isinstance(part[1], tuple):
            yield part
        else:
            for inner in part:
                yield from _tensors_in_key(inner)


def _strides_text(signature: tuple[Any, ...]) -> str | None:
    shape, strides = tuple(signature[0]), tuple(signature[1])
    is_plain = len(shape) != len(strides) or is_contiguous(TensorUse(0, shape, strides, "", 0))
    return None if is_plain else "x".join(map(str, strides))


def _uses(value: Any) -> Iterator[TensorUse]:
    for _, tensor in named_tensors(value, ""):
        if tensor.device.type != "meta" and tensor.layout is torch.strided:
            yield tensor_use(tensor)
