"""CUDA graphs of one function: captured at warm-up, replayed afterwards, never stale (design contract 5).

``GraphRunner`` stands in for the function. Inside ``capturing()`` a new key is run eagerly, so that gates decide and
lazy initialisation is over, then captured, then replayed once and compared with the eager result bit by bit; only a
graph that agrees is kept. Elsewhere a key without a graph runs eagerly and counts as missed.

A graph bakes in addresses and branches. The key holds everything of a call that either depends on: structure, shapes,
strides, dtypes, devices and alignments of all tensors, every constant, quality, epoch, and the process-wide switches of
torch that pick kernels. What else is read lies in ``state``: its value at capture must still be its value at replay, or
the graph is dropped. In-place writes into the same memory are seen by a graph; memory that moved is not.

What no key can tell is the function's own promise: it reads nothing else that changes or is freed, and leaves its
inputs as they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fuseproof.fastpaths.bits import bit_difference, bits_equal
from fuseproof.fastpaths.graph_arguments import CallForm
from fuseproof.fastpaths.graph_counters import GraphCounters
from fuseproof.fastpaths.graph_device import CaptureDevice
from fuseproof.fastpaths.graph_segments import CallTally, CapturedGraph, Function, Recording
from fuseproof.fastpaths.graph_values import (
    Field,
    TensorLayout,
    UnsupportedValueError,
    describe,
    difference,
    differing_fields,
    numerics,
    tensors_in,
)
from fuseproof.fastpaths.replacements import Replacement

Key = tuple[Field, ...]
LARGEST_NUMBER_OF_GRAPHS = 16
EPOCH_FIELD = "epoch (mount and quality)"


def _unchanging() -> Hashable:
    return ()


class GraphRunner:
    """Answers calls of ``function`` by replaying graphs of it.

    ``epoch`` has one value for one set of branches that the function may take (a mount's epoch). ``state`` tells of
    everything it reads besides its arguments (:class:`fuseproof.fastpaths.graph_state.ModuleState`), ``explain_state``
    puts two different states into words. ``tally`` is what Python code inside the function counts. Calls from several
    threads wait for each other.
    """

    def __init__(
        self,
        function: Function,
        *,
        name: str,
        device: CaptureDevice,
        quality: str = "lossless",
        epoch: Callable[[], Hashable] = _unchanging,
        state: Callable[[], Hashable] = _unchanging,
        explain_state: Callable[[Any, Any], str] | None = None,
        tally: CallTally | None = None,
    ) -> None:
        self.name = name
        self.quality = quality
        self.counters = GraphCounters()
        self.broken_around: list[str] = []
        self._function = function
        self._form = CallForm(function)
        self._device = device
        self._epoch = epoch
        self._state = state
        self._explain_state = explain_state
        self._tally = tally or CallTally()
        self._graphs: dict[Key, CapturedGraph] = {}
        self._states: dict[Key, Hashable] = {}
        self._dropped: dict[Key, str] = {}
        self._refused: dict[Key, str] = {}
        self._capturing = 0
        self._instead: Callable[..., Any] | None = None
        self._recording: Recording | None = None
        self._recording_thread: int | None = None
        self._is_running = False
        self._lock = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            self.counters.add("unsupported", "torch.compile is tracing this call")
            return self._function(*args, **kwargs)
        if self._instead is not None:
            return self._instead(self._function, *args, **kwargs)
        with self._lock:
            if self._is_running:  # the function calls itself: its own capture or replay is under way
                return self._function(*args, **kwargs)
            self._is_running = True
            try:
                return self._answer(args, kwargs)
            finally:
                self._is_running = False

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Within this context, keys that have no graph are captured."""
        self._capturing += 1
        try:
            yield
        finally:
            self._capturing -= 1

    @contextmanager
    def bypassed(self, call: Callable[..., Any]) -> Iterator[None]:
        """Within this context no graph answers: ``call`` gets the function and its arguments. Nothing is counted."""
        self._instead = call
        try:
            yield
        finally:
            self._instead = None

    def break_around(self, function: Function, name: str) -> Function:
        """``function``, to be run eagerly between two segments wherever the captured function calls it."""
        self.broken_around.append(name)

        def run_between_segments(*args: Any, **kwargs: Any) -> Any:
            recording, own_thread = self._recording, threading.get_ident()
            if recording is None or self._recording_thread != own_thread:
                return function(*args, **kwargs)
            return recording.run_eagerly(name, function, args, kwargs)

        return run_between_segments

    def break_modules(self, model: Any, names: Iterable[str]) -> list[Replacement]:
        """Make the forwards of these modules (paths inside ``model``) eager calls; take the replacements off again."""

        def broken(name: str) -> Replacement:
            return Replacement(model.get_submodule(name), lambda eager: self.break_around(eager, name))

        return [broken(name) for name in names]

    def restart_counting(self) -> None:
        """Count calls from here on; what was captured and rejected stays."""
        self.counters.restart()

    def report(self) -> dict[str, Any]:
        """What a perf dump says of graphs, with the memory of their private pool in bytes."""
        return {
            **self.counters.report(),
            "function": self.name,
            "graphs": len(self._graphs),
            "segments": sum(graph.segments for graph in self._graphs.values()),
            "breaks": list(self.broken_around),
            "pool_bytes": self._device.pool_bytes(),
        }

    def drop_graphs(self) -> None:
        """Forget every graph, once the device no longer runs one."""
        with self._lock:
            for key in tuple(self._graphs):
                self._drop(key, "it was freed")

    def _answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self._form.of(args, kwargs)  # one order for the key, and for the tensors that fill the inputs
        try:
            key = self._key(args, kwargs)
        except UnsupportedValueError as reason:
            self.counters.add("unsupported", str(reason))
            return self._function(*args, **kwargs)
        graph = self._current_graph(key)
        if graph is not None:
            self.counters.add("replayed")
            self._device.order_after_last_replay()
            return graph.replay(tuple(tensors_in((args, kwargs))))
        if self._capturing and key not in self._refused:
            return self._run_and_capture(key, args, kwargs)
        self.counters.add("missed", self._why_missed(key))
        return self._function(*args, **kwargs)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        reason = self._device.reject_reason()
        if torch.is_grad_enabled():
            reason = "gradients are recorded; call it under torch.no_grad()"
        if reason is not None:
            raise UnsupportedValueError(reason)
        fields: list[Field] = [("arguments", len(args))]
        for index, value in enumerate(args):
            fields += describe(value, f"argument {index}", self._device.alignment)
        for name, value in kwargs.items():
            fields += describe(value, name, self._device.alignment)
        self._refuse_other_devices(fields)
        own = (("quality", self.quality), (EPOCH_FIELD, self._epoch()))
        return (*fields, *own, *numerics(self._device.device.type))

    def _refuse_other_devices(self, fields: list[Field]) -> None:
        own = self._device.device
        for name, value in fields:
            if isinstance(value, TensorLayout) and value.device != own:
                raise UnsupportedValueError(f"{name} is on {value.device}; graphs are captured on {own}")

    def _current_graph(self, key: Key) -> CapturedGraph | None:
        """The key's graph, unless what it reads has moved: then it is dropped."""
        graph = self._graphs.get(key)
        if graph is None:
            return None
        captured, now = self._states[key], self._state()
        if captured == now:
            return graph
        explained = self._explain_state(captured, now) if self._explain_state else "what it reads has moved"
        self._drop(key, explained)
        self.counters.add("rejected", f"a graph was dropped: {explained}")
        return None

    def _drop(self, key: Key, reason: str) -> None:
        self._device.synchronise()
        self._dropped[key] = reason
        del self._graphs[key], self._states[key]

    def _run_and_capture(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(self._graphs) >= LARGEST_NUMBER_OF_GRAPHS:
            several = f"{LARGEST_NUMBER_OF_GRAPHS} graphs are captured already, no more are kept"
            self.counters.add("rejected", f"{several}; the nearest: {self._difference_from_nearest(key)}")
            return self._function(*args, **kwargs)
        tensors = tuple(tensors_in((args, kwargs)))
        before = _writes_counted(tensors)
        expected = self._function(*args, **kwargs)
        if _writes_counted(tensors) != before:
            reason: str | None = "the function writes into its inputs"
        else:
            reason = self._capture(key, args, kwargs, expected)
        if reason is not None:
            self._refused[key] = reason
            self.counters.add("rejected", reason)
        return expected

    def _capture(self, key: Key, args: tuple[Any, ...], kwargs: dict[str, Any], expected: Any) -> str | None:
        """Record and prove a graph; the reason why there is none, or None."""
        state, epoch = self._state(), self._epoch()
        try:
            graph = self._record(args, kwargs)
            self._device.order_after_last_replay()
            replayed = graph.replay(tuple(tensors_in((args, kwargs))))
            reason = _disagreement(replayed, expected, self._device.alignment)
        except Exception as error:  # noqa: BLE001 - whatever stops a capture: the eager result is there, and says why
            return f"{type(error).__name__} during capture: {str(error).strip().partition(chr(10))[0]}"
        if reason is None and (state, epoch) != (self._state(), self._epoch()):
            reason = "what the function reads moved while it was captured"
        if reason is None:
            self._graphs[key], self._states[key] = graph, state
            self._dropped.pop(key, None)
            self.counters.add("captured")
        return reason

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CapturedGraph:
        self._recording, self._recording_thread = Recording(self._device, self._tally), threading.get_ident()
        try:
            # Under inference mode the static tensors could not be written to by a replay outside of it.
            with torch.inference_mode(False), torch.no_grad():
                return self._recording.capture(self._function, args, kwargs)
        finally:
            self._recording = None

    def _why_missed(self, key: Key) -> str:
        if key in self._dropped:
            return f"its graph was dropped: {self._dropped[key]}"
        if key in self._refused:
            return f"its capture was rejected: {self._refused[key]}"
        return self._difference_from_nearest(key)

    def _difference_from_nearest(self, key: Key) -> str:
        known = tuple(self._graphs) or tuple(self._dropped)
        if not known:
            return "no graph has been captured"
        return difference(min(known, key=lambda captured: differing_fields(captured, key)), key)


def _writes_counted(tensors: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """Writes that torch has counted; it counts none for tensors of inference mode."""
    return tuple(tensor._version for tensor in tensors if not tensor.is_inference())


def _disagreement(replayed: Any, expected: Any, alignment: int) -> str | None:
    """How a replay differs from the eager result on the same inputs, in layout or bits; None if it does not."""
    # Alignment counts too: what follows computes on the replayed tensors.
    eager, graph = (tuple(describe(value, "the result", alignment)) for value in (expected, replayed))
    if eager != graph:
        return f"a replay does not return what eager returns: {difference(eager, graph)}"
    before, after = list(tensors_in(expected)), list(tensors_in(replayed))
    if bits_equal(before, after):
        return None
    found = bit_difference(before, after)
    return (
        f"a replay differs from eager in {found.differing_share:.4%} of the values, by at most {found.largest_ulp} ulp"
    )
