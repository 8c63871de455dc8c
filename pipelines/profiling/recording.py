"""torch's profiler read into plain events: its tree for the host, its flat list for what reached the device.

The tree has Python calls (with the identity of modules), operations with the storages of their tensors, and memory. The
list has runtime calls and device work, joined by correlation. Threads go by two names; an event that stands in both
tells which are the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._profiler import RecordScope, _EventType, _TensorMetadata

from fuseproof.pipelines.profiling import events
from fuseproof.pipelines.profiling.events import Call, DeviceWork, MemoryEvent, Recording, SiteCall, TensorUse

LAUNCHING = ("cuda", "cu", "hip")
NO_WORK = "[memory]"
UNREADABLE = "unreadable name"
ACTIVITIES = {"kernel": events.KERNEL, "gpu_memcpy": events.MEMCPY, "gpu_memset": events.MEMSET}


def recorded(profiler: torch.profiler.profile, sites: tuple[SiteCall, ...], *, on_device: bool) -> Recording:
    """What ``profiler``, which has stopped, saw; ``sites`` are the calls that gates told of meanwhile."""
    results = profiler.profiler.kineto_results
    calls: list[Call] = []
    memory: list[MemoryEvent] = []
    annotations = {NO_WORK}
    for node in _nodes(results.experimental_event_tree()):
        _read_node(node, calls, memory, annotations)
    runtime, work = _device_events(results.events(), annotations) if on_device else ([], [])
    return Recording((*calls, *runtime), tuple(memory), tuple(work), sites, on_device)


def tensor_use(tensor: torch.Tensor) -> TensorUse:
    """The facts of a live tensor; nothing of it is held."""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    address = tensor.untyped_storage().data_ptr()
    return _use(address, shape, strides, tensor.dtype)


def _use(address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> TensorUse:
    distinct = math.prod(size for size, stride in zip(shape, strides, strict=True) if stride != 0)
    name = str(dtype).removeprefix("torch.")
    return TensorUse(address, shape, strides, name, (distinct if math.prod(shape) else 0) * dtype.itemsize)


def _nodes(roots: list[Any]) -> Iterator[Any]:
    waiting = list(roots)
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.children)


def _read_node(node: Any, calls: list[Call], memory: list[MemoryEvent], annotations: set[str]) -> None:
    kind, fields = node.tag, node.extra_fields
    start = node.start_time_ns
    if kind == _EventType.Allocation:
        memory.append(MemoryEvent(start, node.start_tid, fields.ptr, fields.alloc_size))
        return
    times = (start, node.end_time_ns, node.start_tid)
    if kind == _EventType.PyCall:
        own, module = fields.callsite, fields.module
        calls.append(
            Call(
                events.PYTHON, own.function_name, *times, own.file_name, own.line_number, fields.caller.line_number,
                None if module is None else module.self_ptr, None if module is None else module.cls_name,
            )
        )  # fmt: skip
    elif kind == _EventType.PyCCall:
        caller = getattr(fields, "caller", None)
        place = ("", 0) if caller is None else (caller.file_name, caller.line_number)
        calls.append(Call(events.C_FUNCTION, "", *times, *place))
    elif kind == _EventType.TorchOp:
        name = _name(node)
        if name.startswith(events.MARKS):
            calls.append(Call(events.MARK, name, *times))
        elif fields.scope == RecordScope.USER_SCOPE:
            annotations.add(name)
        else:
            calls.append(Call(events.OPERATION, name, *times, inputs=tuple(_inputs(fields.inputs))))


def _inputs(values: Any) -> Iterator[TensorUse]:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _inputs(value)
        elif isinstance(value, _TensorMetadata) and value.storage_data_ptr and value.dtype is not None:
            sizes, strides = tuple(value.sizes), tuple(value.strides)
            is_number = not sizes and str(value.device) == "cpu"  # a Python number, wrapped
            if len(sizes) == len(strides) and not is_number:
                yield _use(value.storage_data_ptr, sizes, strides, value.dtype)


def _device_events(found: list[Any], annotations: set[str]) -> tuple[list[Call], list[DeviceWork]]:
    host = [event for event in found if event.device_type() == torch.autograd.DeviceType.CPU]
    threads = {event.device_resource_id(): event.start_thread_id() for event in host if event.start_thread_id()}
    work = []
    for event in found:
        if event.device_type() != torch.autograd.DeviceType.CPU:
            name = _name(event)
            kind = _kind_of_work(event, name, annotations)
            if kind is not None:
                times = event.start_ns(), event.start_ns() + event.duration_ns()
                work.append(DeviceWork(kind, name, *times, event.device_resource_id(), event.correlation_id()))
    launching = {one.correlation for one in work}
    runtime = []
    for event in host:
        name = _name(event)
        if event.correlation_id() in launching and name.startswith(LAUNCHING):
            thread = threads.get(event.device_resource_id(), event.device_resource_id())
            times = event.start_ns(), event.start_ns() + event.duration_ns()
            runtime.append(Call(events.RUNTIME, name, *times, thread, correlation=event.correlation_id()))
    return runtime, work


def _kind_of_work(event: Any, name: str, annotations: set[str]) -> str | None:
    """What an event on the device is; None for what is no work: ranges that were drawn there, memory, waiting."""
    if hasattr(event, "activity_type"):
        return ACTIVITIES.get(str(event.activity_type()))
    if name in annotations or event.is_user_annotation():
        return None
    return events.MEMCPY if name.startswith("Memcpy") else events.MEMSET if name.startswith("Memset") else events.KERNEL


def _name(event: Any) -> str:
    """Its name; what cannot be read as text (torch 2.11 hands some out broken) is called unreadable."""
    try:
        return str(event.name() if callable(event.name) else event.name)
    except UnicodeDecodeError:
        return UNREADABLE
