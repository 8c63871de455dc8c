"""What a profiler saw, as plain values: calls on threads of the host, memory given out, work on the device.

Times are nanoseconds on one clock. :mod:`recording` makes them from torch's profiler; tests write them by hand or read
recorded ones, and everything behind this file is a pure function of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

PYTHON, C_FUNCTION, OPERATION, RUNTIME, MARK = "python", "c", "operation", "runtime", "mark"
KERNEL, MEMCPY, MEMSET = "kernel", "memcpy", "memset"

MARKS = "fuseproof."
SITE_MARK = "fuseproof.site "
GRAPHED_MARK = "fuseproof.graphed"
STEP_BEGINS, STEP_ENDS = "fuseproof.begins ", "fuseproof.ends "


@dataclass(frozen=True, slots=True)
class TensorUse:
    """A tensor that a call was given or gave: where its storage begins, its layout, the bytes of its elements.

    ``generation`` tells storages at one address apart, one after the other (:mod:`memory_uses`).
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    bytes: int
    generation: int = 0

    @property
    def storage(self) -> tuple[int, int]:
        """Which memory it is, for as long as that memory lived."""
        return self.address, self.generation

    def at_generation(self, generation: int) -> TensorUse:
        """The same tensor in that storage."""
        return replace(self, generation=generation)


@dataclass(frozen=True, slots=True)
class Call:
    """A call on a thread of the host. ``kind`` is one of the names above.

    ``file`` and ``line`` are a Python function's own file and first line; of a C function, those of who called it.
    ``caller_line`` is the line that a Python function was called from. ``module`` is the ``id`` of an ``nn.Module``
    whose call this is. ``inputs`` are an operation's tensors, in order.
    """

    kind: str
    name: str
    start: int
    end: int
    thread: int
    file: str = ""
    line: int = 0
    caller_line: int = 0
    module: int | None = None
    module_class: str | None = None
    inputs: tuple[TensorUse, ...] = ()
    correlation: int = 0


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """``bytes`` of storage at ``address`` were given out (positive) or back (negative)."""

    time: int
    thread: int
    address: int
    bytes: int


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """A kernel, a copy or a memset on a device's stream; ``correlation`` is that of the runtime call behind it."""

    kind: str
    name: str
    start: int
    end: int
    stream: int
    correlation: int


@dataclass(frozen=True)
class SiteCall:
    """What the observer of a gate noted of one call; ``number`` stands in the name of its mark."""

    number: int
    site: str
    state: str
    key: str
    layout: str
    inputs: tuple[TensorUse, ...] = ()
    outputs: tuple[TensorUse, ...] = ()
    counts: bool = True
    """False for a call that was declined before the site's own work began: it does not stand for a block."""


@dataclass(frozen=True)
class Recording:
    """One stretch of a request. ``calls`` and ``memory`` in any order."""

    calls: tuple[Call, ...]
    memory: tuple[MemoryEvent, ...] = ()
    work: tuple[DeviceWork, ...] = ()
    sites: tuple[SiteCall, ...] = ()
    on_device: bool = False
    """Whether launches are device work; else they are operations of the CPU."""


def from_json(data: dict[str, Any]) -> Recording:
    """A recording that :func:`to_json` wrote."""

    def use(values: list[Any]) -> TensorUse:
        address, shape, strides, dtype, size = values
        return TensorUse(address, tuple(shape), tuple(strides), dtype, size)

    calls = tuple(Call(*(*values[:10], tuple(map(use, values[10])), values[11])) for values in data["calls"])
    sites = tuple(
        SiteCall(*(*values[:5], tuple(map(use, values[5])), tuple(map(use, values[6])), values[7]))
        for values in data["sites"]
    )
    memory = tuple(MemoryEvent(*values) for values in data["memory"])
    work = tuple(DeviceWork(*values) for values in data["work"])
    return Recording(calls, memory, work, sites, data["on_device"])


def to_json(recording: Recording) -> dict[str, Any]:
    """Lists of plain values, without names: small enough to keep as a test's data."""

    def use(one: TensorUse) -> list[Any]:
        return [one.address, list(one.shape), list(one.strides), one.dtype, one.bytes]

    return {
        "calls": [
            [
                call.kind, call.name, call.start, call.end, call.thread, call.file, call.line, call.caller_line,
                call.module, call.module_class, [use(one) for one in call.inputs], call.correlation,
            ]
            for call in recording.calls
        ],
        "memory": [[one.time, one.thread, one.address, one.bytes] for one in recording.memory],
        "work": [[one.kind, one.name, one.start, one.end, one.stream, one.correlation] for one in recording.work],
        "sites": [
            [
                one.number, one.site, one.state, one.key, one.layout, [use(tensor) for tensor in one.inputs],
                [use(tensor) for tensor in one.outputs], one.counts,
            ]
            for one in recording.sites
        ],
        "on_device": recording.on_device,
    }  # fmt: skip
