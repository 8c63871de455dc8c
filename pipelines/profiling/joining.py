"""From what a profiler saw to launches that know their module, line, site and operation. A pure function.

On a device a launch is the kernel, copy or memset behind a runtime call; what stands round that call on its thread says
where it comes from. That holds for kernels without an operation round them (Triton's) too. A graph's replay launches
many at once, and of those only the replay is known (:mod:`graph_alignment` does the rest). On a CPU a launch is an
operation, and its time is its own, without that of operations inside it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fuseproof.pipelines.profiling import events, launches
from fuseproof.pipelines.profiling.classing import CONVOLUTION, GEMM, WITHOUT_WORK, class_of
from fuseproof.pipelines.profiling.events import Call, DeviceWork, Recording, SiteCall
from fuseproof.pipelines.profiling.launches import Launch, Names
from fuseproof.pipelines.profiling.lines import Frame, LineLater, line_of
from fuseproof.pipelines.profiling.site_blocks import blocks_of_sites
from fuseproof.pipelines.profiling.tensors import MemoryUses, bytes_moved, key_text, reads_and_writes

GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")
WEIGHTED = (GEMM, CONVOLUTION)
GRAPH_RUNNER = ("fastpaths/graphs.py", "__call__")


def join(recording: Recording, names: Names) -> list[Launch]:
    """Every launch of ``recording``, in the order in which the host issued them."""
    joiner = _Joiner(recording, names)
    found = list(joiner.launches())
    return sorted(with_bytes_once(found), key=lambda one: (one.launched, one.start))


@dataclass
class _Context:
    """What stood round a launch."""

    component: str = launches.PIPELINE
    module: str | None = None
    module_class: str | None = None
    site: SiteCall | None = None
    site_mark: Call | None = None
    graphed: str | None = None
    runner: int | None = None
    line: LineLater | None = None
    operations: tuple[Call, ...] = ()
    """Innermost first."""


class _Joiner:
    def __init__(self, recording: Recording, names: Names) -> None:
        self._recording = recording
        self._names = names
        self._memory = MemoryUses(recording.memory, recording.calls)
        self._sites = {site.number: site for site in recording.sites}
        self._work: dict[int, list[DeviceWork]] = {}
        for one in recording.work:
            self._work.setdefault(one.correlation, []).append(one)
        self._calls: dict[int, int] = {}

    def launches(self) -> Iterator[Launch]:
        threads: dict[int, list[Call]] = {}
        for call in self._recording.calls:
            threads.setdefault(call.thread, []).append(call)
        blocks = blocks_of_sites(self._recording.calls, self._sites, self._names)
        joined: set[int] = set()
        for calls in threads.values():
            thread = _Thread(calls, self._names, self._sites, blocks)
            for call, context, own_time in thread.contexts(on_device=self._recording.on_device):
                if call.kind == events.OPERATION:
                    yield self._operation(call, context, own_time)
                else:
                    joined.add(call.correlation)
                    yield from (self._device(work, call, context) for work in self._work.get(call.correlation, ()))
        for correlation, works in self._work.items():
            if correlation not in joined:
                yield from (_unattributed(work) for work in works)

    def _operation(self, call: Call, context: _Context, own_time: int) -> Launch:
        names = (call.name, *(one.name for one in context.operations if one is not call))
        inputs, outputs = reads_and_writes(call, self._memory)
        place = self._owned(_place(context), call)
        return Launch(
            kernel=call.name,
            class_=class_of("", call.name, names, None),
            launched=call.start,
            start=call.start,
            nanoseconds=max(own_time, 0),
            stream=call.thread,
            operation=call.name,
            key=key_text(call.inputs),
            inputs=inputs,
            outputs=outputs,
            call=self._number(call),
            **place,
        )

    def _device(self, work: DeviceWork, call: Call, context: _Context) -> Launch:
        is_replay = call.name.startswith(GRAPH_LAUNCHES)
        operations = () if is_replay else context.operations
        site = context.site
        place = self._owned(_place(context), operations[0]) if operations else _place(context)
        launch = Launch(
            kernel=work.name,
            class_=class_of(
                work.kind, work.name, [one.name for one in operations], site.site if site is not None else None
            ),
            launched=call.start,
            start=work.start,
            nanoseconds=work.end - work.start,
            stream=work.stream,
            operation=_operation_name(work, call, operations),
            graph=(context.runner or call.start) if is_replay else None,
            **place,
        )
        if operations:
            inner = operations[0]
            inputs, outputs = reads_and_writes(inner, self._memory)
            key, number = key_text(inner.inputs), self._number(inner)
        elif site is not None and site.inputs and work.kind == events.KERNEL and not is_replay:
            mark = context.site_mark
            assert mark is not None
            inputs = tuple(self._memory.dated(tensor, mark.start) for tensor in site.inputs)
            outputs = tuple(self._memory.dated(tensor, mark.end) for tensor in site.outputs)
            key, number = key_text(site.inputs), self._number(mark)
        else:
            return launch
        return replace(launch, inputs=inputs, outputs=outputs, key=key, call=number)

    def _owned(self, place: dict[str, Any], call: Call) -> dict[str, Any]:
        """``place``; of a product outside of modules and sites, that of the module whose weight it multiplies."""
        if place["module"] or place["site"] is not None or class_of("", call.name, (call.name,), None) not in WEIGHTED:
            return place
        owners = {self._names.weights[one.address] for one in call.inputs if one.address in self._names.weights}
        if len(owners) != 1:
            return place
        component, module, module_class = owners.pop()
        return place | {"component": component, "module": module, "module_class": module_class}

    def _number(self, call: Call) -> int:
        return self._calls.setdefault(id(call), len(self._calls))


def _place(context: _Context) -> dict[str, Any]:
    site = context.site
    return {
        "component": context.component,
        "module": context.module,
        "module_class": context.module_class,
        "site": None if site is None else site.site,
        "site_state": None if site is None else site.state,
        "site_call": None if site is None else site.number,
        "line": None if context.line is None else context.line.text(),
        "mark": context.graphed,
    }


def _operation_name(work: DeviceWork, call: Call, operations: tuple[Call, ...]) -> str:
    if operations:
        return operations[0].name
    return f"triton:{work.name}" if work.kind == events.KERNEL and call.name.startswith("cuLaunch") else call.name


def _is_product(name: str) -> bool:
    return name not in WITHOUT_WORK and class_of("", name, (name,), None) == GEMM


def _unattributed(work: DeviceWork) -> Launch:
    return Launch(
        kernel=work.name,
        class_=class_of(work.kind, work.name, (), None),
        launched=work.start,
        start=work.start,
        nanoseconds=work.end - work.start,
        stream=work.stream,
        is_attributed=False,
    )


class _Thread:
    """The calls of one thread, swept in the order of time."""

    def __init__(
        self,
        calls: Iterable[Call],
        names: Names,
        sites: Mapping[int, SiteCall],
        blocks: Mapping[int, tuple[str, str]],
    ) -> None:
        self._calls = sorted(calls, key=lambda call: (call.start, -call.end))
        self._names = names
        self._sites = sites
        self._blocks = blocks
        self._open: list[Call] = []
        self._frames: list[Frame] = []
        self._marks: list[Call] = []
        self._inside: dict[int, int] = {}

    def contexts(self, *, on_device: bool) -> list[tuple[Call, _Context, int]]:
        """The calls that launch something, what stands round each, and its time without that of operations inside."""
        found: list[tuple[Call, _Context]] = []
        for call in self._calls:
            self._close(call.start)
            if call.kind == events.MARK:
                self._marks.append(call)
                continue
            self._note_line(call)
            if call.kind == events.RUNTIME:
                found.append((call, self._context(call)))
                continue
            if call.kind == events.OPERATION and not on_device:
                outers = [one for one in self._open if one.kind == events.OPERATION]
                if any(_is_product(one.name) for one in outers):
                    continue  # its own preparation
                outer = outers[-1] if outers else None
                if outer is not None:
                    self._inside[id(outer)] = self._inside.get(id(outer), 0) + call.end - call.start
                if call.name not in WITHOUT_WORK:
                    found.append((call, self._context(call)))
            self._open.append(call)
            if call.kind == events.PYTHON:
                self._frames.append(Frame(call))
        return [(call, context, call.end - call.start - self._inside.get(id(call), 0)) for call, context in found]

    def _close(self, time: int) -> None:
        while self._open and self._open[-1].end <= time:
            closed = self._open.pop()
            if closed.kind == events.PYTHON:
                self._frames.pop()
        if any(mark.end <= time for mark in self._marks):
            self._marks = [mark for mark in self._marks if mark.end > time]

    def _note_line(self, call: Call) -> None:
        if self._frames and call.kind in (events.PYTHON, events.C_FUNCTION):
            self._frames[-1].called(call.caller_line if call.kind == events.PYTHON else call.line, call.start)

    def _context(self, call: Call) -> _Context:
        context = _Context()
        operations = [one for one in self._open if one.kind == events.OPERATION]
        if call.kind == events.OPERATION:
            operations.append(call)
        context.operations = tuple(reversed(operations))
        self._fill_site(context)
        self._fill_module(context)
        innermost = [one for one in self._open if one.kind == events.C_FUNCTION]
        context.line = line_of(self._frames, innermost, call.start)
        return context

    def _fill_site(self, context: _Context) -> None:
        for mark in self._marks:
            if mark.name.startswith(events.SITE_MARK):
                site = self._sites.get(int(mark.name.rpartition("#")[2]))
                if site is not None:
                    context.site, context.site_mark = site, mark
            elif mark.name.startswith(events.GRAPHED_MARK):
                context.graphed = f"{mark.name} {mark.start}"

    def _fill_module(self, context: _Context) -> None:
        """The innermost module's call or block's site; else whose own source file a frame lies in."""
        began = -1
        for frame in self._frames:
            call = frame.call
            if call.module is not None and call.module in self._names.modules:
                context.component, context.module = self._names.modules[call.module]
                context.module_class, began = call.module_class, call.start
            elif call.name == GRAPH_RUNNER[1] and call.file.replace("\\", "/").endswith(GRAPH_RUNNER[0]):
                context.runner = call.start
        for mark in self._marks:
            block = self._blocks.get(id(mark))
            if block is not None and mark.start > began:
                context.component = launches.TRANSFORMER
                (context.module, context.module_class), began = block, mark.start
        if context.module is not None:
            return
        for frame in self._frames:
            component = self._names.files.get(frame.call.file.replace("\\", "/").rpartition("/")[2])
            if component is not None:
                context.component, context.module = component, ""
        if context.module is None and context.site is not None:
            context.component = self._names.site_components.get(context.site.site, context.component)


def with_bytes_once(found: list[Launch]) -> list[Launch]:
    """Where a call has several launches, the longest of them carries the bytes that the call moves."""
    longest: dict[Hashable, Launch] = {}
    for one in found:
        if one.call is not None and (one.call not in longest or one.nanoseconds > longest[one.call].nanoseconds):
            longest[one.call] = one
    return [
        replace(one, bytes=bytes_moved(one.inputs, one.outputs))
        if one.call is not None and longest[one.call] is one
        else one
        for one in found
    ]
