"""Handmade events, and those recorded on an H200 (torch 2.11): one forward of a LongCat transformer of three blocks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

from fuseproof.pipelines.profiling import events
from fuseproof.pipelines.profiling.events import (
    Call,
    DeviceWork,
    MemoryEvent,
    Recording,
    SiteCall,
    TensorUse,
    from_json,
)
from fuseproof.pipelines.profiling.launches import TRANSFORMER, Names

RECORDED = Path(__file__).parent / "recorded"
BLOCKS = (
    ("transformer_blocks.0", "LongCatImageTransformerBlock"),
    ("single_transformer_blocks.0", "LongCatImageSingleTransformerBlock"),
    ("single_transformer_blocks.1", "LongCatImageSingleTransformerBlock"),
)
MODEL = "diffusers/models/transformers/transformer_some.py"
STAGE = "DenoisingStage"


def recorded(name: str) -> tuple[Recording, Names]:
    """One of the recordings beside this file, and the names of its modules."""
    data = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))
    modules = {int(number): (TRANSFORMER, path) for number, path in data["modules"].items()}
    root = next((number for number, (_, path) in modules.items() if not path), None)
    names = Names(modules, {}, BLOCKS, root, frozenset({"packed_blocks"}))
    return from_json(data["recording"]), names


def python(name: str, start: int, end: int, file: str = MODEL, line: int = 1, caller_line: int = 0, **more) -> Call:
    return Call(events.PYTHON, name, start, end, 1, file, line, caller_line, **more)


def module(number: int, start: int, end: int, caller_line: int = 0, kind: str = "Linear") -> Call:
    file = "torch/nn/modules/module.py"
    return python("_wrapped_call_impl", start, end, file, 1, caller_line, module=number, module_class=kind)


def operation(name: str, start: int, end: int, *inputs: TensorUse) -> Call:
    return Call(events.OPERATION, name, start, end, 1, inputs=inputs)


def runtime(correlation: int, start: int, name: str = "cudaLaunchKernel", thread: int = 1) -> Call:
    return Call(events.RUNTIME, name, start, start + 1, thread, correlation=correlation)


def kernel(correlation: int, start: int, end: int, name: str = "vectorized_elementwise_kernel", stream: int = 7):
    kind = events.MEMSET if name.startswith("Memset") else events.MEMCPY if name.startswith("Memcpy") else events.KERNEL
    return DeviceWork(kind, name, start, end, stream, correlation)


def tensor(address: int, *shape: int, dtype: str = "float32") -> TensorUse:
    strides, size = [], 1
    for length in reversed(shape):
        strides.append(size)
        size *= length
    return TensorUse(address, shape, tuple(reversed(strides)), dtype, size * (4 if dtype == "float32" else 2))


def given(address: int, time: int, size: int) -> MemoryEvent:
    return MemoryEvent(time, 1, address, size)


def site(number: int, name: str, start: int, end: int, state: str = "fused", **more) -> tuple[Call, SiteCall]:
    mark = Call(events.MARK, f"{events.SITE_MARK}{name}#{number}", start, end, 1)
    return mark, SiteCall(number, name, state, "key", "contiguous", **more)


def step(index: int, begin: int, end: int) -> tuple[Call, Call]:
    return (
        Call(events.MARK, f"{events.STEP_BEGINS}{STAGE} {index}", begin, begin, 1),
        Call(events.MARK, f"{events.STEP_ENDS}{STAGE} {index}", end, end, 1),
    )


def on_device(calls, work, memory=(), sites=()) -> Recording:
    return Recording(tuple(calls), tuple(memory), tuple(work), tuple(sites), on_device=True)
