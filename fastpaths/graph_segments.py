"""One captured call: static inputs, segments of device work with eager calls between them, static outputs.

Replaying fills the inputs, runs the parts in order and copies the outputs out, so that a result outlives the next
replay. An eager call reads the very tensors that it read while capturing; its results are copied into tensors of their
own, whose addresses the following segment has baked in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.graph_device import CaptureDevice, Segment
from fuseproof.fastpaths.graph_values import (
    copy_tensor_bits,
    describe,
    difference,
    flat,
    tensors_in,
    twin,
    with_tensors,
)

Function = Callable[..., Any]


@dataclass(frozen=True)
class CallTally:
    """Counters that Python code inside the graph keeps (a gate's calls): a replay runs none of it, so it adds them."""

    read: Callable[[], Mapping[str, int]] = dict
    add: Callable[[Mapping[str, int]], None] = lambda _calls: None


class EagerCall:
    """A call between two segments; ``result`` is what the next segment reads."""

    def __init__(self, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._name = name
        self._call = function, args, kwargs
        first = function(*args, **kwargs)
        self._described = tuple(describe(first, "result", alignment=1))
        self.result = with_tensors(first, twin)

    def replay(self) -> None:
        """Run the call again on what its tensors hold now."""
        function, args, kwargs = self._call
        fresh = function(*args, **kwargs)
        described = tuple(describe(fresh, "result", alignment=1))
        if described != self._described:
            raise FuseproofError(
                f"the eager call {self._name} inside a CUDA graph returned something else than while it was captured: "
                f"{difference(self._described, described)}.",
                next_step="Run without --enable-breakable-cuda-graph.",
            )
        copy_tensor_bits(fresh, self.result)


class CapturedGraph:
    """What one key replays. ``inputs`` and ``outputs`` are nested values of static tensors."""

    def __init__(
        self,
        inputs: Sequence[torch.Tensor],
        parts: Sequence[Segment | EagerCall],
        outputs: Any,
        tally: CallTally,
        calls: Mapping[str, int],
    ) -> None:
        self.inputs = tuple(inputs)
        self.parts = tuple(parts)
        self.outputs = outputs
        self._stretches = tuple(flat(tensor) for tensor in inputs)
        self._tally = tally
        self._calls = dict(calls)

    @property
    def segments(self) -> int:
        """How many pieces of device work there are."""
        return sum(1 for part in self.parts if not isinstance(part, EagerCall))

    def replay(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The function's result for ``tensors``, laid out as those of the capture, in memory of its own."""
        for static, tensor in zip(self._stretches, tensors, strict=True):
            static.copy_(flat(tensor))
        for part in self.parts:
            part.replay()
        if self._calls:
            self._tally.add(self._calls)
        return with_tensors(self.outputs, twin)


class Recording:
    """A capture under way: segments end where an eager call begins, and begin again behind it."""

    def __init__(self, device: CaptureDevice, tally: CallTally) -> None:
        self._device = device
        self._tally = tally
        self._parts: list[Segment | EagerCall] = []
        self._calls: Counter[str] = Counter()
        self._calls_before: Mapping[str, int] = {}
        self._is_recording = False

    def capture(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CapturedGraph:
        """Record one call of ``function``. Afterwards its outputs hold no values yet: replay the graph once.

        Whatever goes wrong is raised once the device serves other work again.
        """
        args, kwargs = with_tensors((args, kwargs), twin)
        self._device.prepare()
        try:
            with _without_autocast_cache():
                self._begin()
                outputs = function(*args, **kwargs)
                self._end()
        except BaseException:
            if self._is_recording:
                self._device.abandon_segment()
            raise
        tuple(describe(outputs, "the result"))
        return CapturedGraph(tuple(tensors_in((args, kwargs))), self._parts, outputs, self._tally, self._calls)

    def run_eagerly(self, name: str, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """End the segment, call ``function`` on real values, and go on recording; inside such a call, just call it."""
        if not self._is_recording:
            return function(*args, **kwargs)
        self._end()
        self._parts[-1].replay()  # until now nothing ran: the call's arguments hold no values
        call = EagerCall(name, function, args, kwargs)
        self._parts.append(call)
        self._begin()
        return call.result

    def _begin(self) -> None:
        self._is_recording = True
        self._calls_before = dict(self._tally.read())
        self._device.begin_segment()

    def _end(self) -> None:
        self._parts.append(self._device.end_segment())
        self._is_recording = False
        after = Counter(self._tally.read())
        after.subtract(self._calls_before)
        self._calls.update({name: calls for name, calls in after.items() if calls})


@contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """A weight that autocast has cast before would be read from a cache that ends with its ``with`` block."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)
