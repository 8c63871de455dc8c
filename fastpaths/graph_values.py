"""What goes into a captured graph and what comes out: nested tensors, what a key says of them, and exact copies.

A key names everything that can change which kernels run: of a tensor its shape, strides, dtype, device and the
alignment of its address (libraries pick kernels by it), of a constant its type and value. A copy keeps all of these, so
that code which reads the copy computes what it would have computed with the original.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

import torch

from fuseproof.fastpaths.numerics import float32_precision

Field = tuple[str, Hashable]
CONSTANTS = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.layout, torch.memory_format)
LARGEST_ALIGNMENT = 256
"""Bytes. cuBLASLt's heuristics ask for no more; memory of its own that torch hands out has at least this on CUDA."""


class UnsupportedValueError(Exception):
    """A value that no graph can take in or give back; the text names it and says why."""


class TensorLayout(NamedTuple):
    """All of a tensor but its values. ``alignment`` is the largest power of two that divides its address, capped."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    alignment: int


class Container(NamedTuple):
    """A tuple, list or dict, told apart by its class and its size or keys."""

    kind: type
    content: Hashable


class Constant(NamedTuple):
    """A value that a graph bakes in. ``1``, ``1.0`` and ``True`` are three different ones."""

    kind: type
    value: Hashable


def describe(value: Any, name: str, alignment: int = LARGEST_ALIGNMENT) -> Iterator[Field]:
    """Name and description of ``value`` and of everything inside it, in a fixed order.

    Raises :class:`UnsupportedValueError` for whatever cannot be told apart by value.
    """
    if isinstance(value, torch.Tensor):
        yield name, _layout(value, name, alignment)
    elif isinstance(value, tuple | list):
        yield name, Container(type(value), len(value))
        for index, part in enumerate(value):
            yield from describe(part, f"{name}[{index}]", alignment)
    elif isinstance(value, dict):
        _refuse_strange_dict(value, name)
        yield name, Container(type(value), tuple(value))
        for key, part in value.items():
            yield from describe(part, f"{name}[{key!r}]", alignment)
    elif type(value) in CONSTANTS or isinstance(value, enum.Enum):
        yield name, Constant(type(value), value)
    elif isinstance(value, float | complex):
        yield name, Constant(type(value), repr(value))  # by text: -0.0 is not 0.0, and NaN is itself
    else:
        raise UnsupportedValueError(
            f"{name} is a {type(value).__name__}; a graph takes tensors and plain constants, in tuples, lists and dicts"
        )


def numerics(device_type: str) -> tuple[Field, ...]:
    """torch's process-wide switches that change which kernels the same call runs."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    is_autocast = torch.is_autocast_enabled(device_type)
    return (
        ("autocast", torch.get_autocast_dtype(device_type) if is_autocast else None),
        ("float32 matmul precision", float32_precision()),
        ("deterministic algorithms", torch.are_deterministic_algorithms_enabled()),
        ("bf16 reduced precision reduction", cuda.matmul.allow_bf16_reduced_precision_reduction),
        ("fp16 reduced precision reduction", cuda.matmul.allow_fp16_reduced_precision_reduction),
        ("cudnn", (cudnn.enabled, cudnn.benchmark, cudnn.deterministic)),
        ("matmul library", str(cuda.preferred_blas_library())),
        ("attention kernels", (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled())),
    )


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of a described value, in the order of :func:`describe`."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


def with_tensors(value: Any, replace: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nesting and constants with every tensor replaced; model outputs and named tuples keep their class."""
    if isinstance(value, torch.Tensor):
        return replace(value)
    if isinstance(value, tuple | list):
        parts = [with_tensors(part, replace) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        entries = {key: with_tensors(part, replace) for key, part in value.items()}
        return type(value)(**entries) if dataclasses.is_dataclass(value) else type(value)(entries)
    return value


def twin(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in memory of its own with the shape, strides, dtype, device and alignment of ``tensor``."""
    length = extent(tensor)
    spare = LARGEST_ALIGNMENT // tensor.element_size()
    buffer = torch.empty(length + spare, dtype=tensor.dtype, device=tensor.device)
    shift = (tensor.data_ptr() - buffer.data_ptr()) % LARGEST_ALIGNMENT // tensor.element_size()
    buffer[shift : shift + length].copy_(flat(tensor))
    return buffer.as_strided(tensor.shape, tensor.stride(), shift)


def copy_tensor_bits(source: Any, target: Any) -> None:
    """Copy every tensor in ``source`` over its counterpart of the same layout in ``target``."""
    for fresh, static in zip(tensors_in(source), tensors_in(target), strict=True):
        flat(static).copy_(flat(fresh))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The stretch of memory from the tensor's first to its last element, gaps included: [extent].

    Two tensors of one layout are copied through it whatever their strides, expanded dimensions too.
    """
    return tensor.as_strided((extent(tensor),), (1,))


def extent(tensor: torch.Tensor) -> int:
    """How many elements lie between the tensor's first and last one, both counted; 0 for an empty tensor."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def difference(captured: tuple[Field, ...], asked: tuple[Field, ...]) -> str:
    """The fields in which two keys differ, with both values."""
    before, after = dict(captured), dict(asked)
    told = []
    for name in dict.fromkeys((*before, *after)):
        if before.get(name, _ABSENT) != after.get(name, _ABSENT):
            told.append(_field_difference(name, before.get(name, _ABSENT), after.get(name, _ABSENT)))
    return "; ".join(told)


def differing_fields(captured: tuple[Field, ...], asked: tuple[Field, ...]) -> int:
    """In how many fields two keys differ."""
    return len(set(captured) ^ set(asked))


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def _layout(tensor: torch.Tensor, name: str, alignment: int) -> TensorLayout:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsupportedValueError(f"{name} is a {type(tensor).__name__}; a graph takes plain tensors")
    if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
        kind = tensor.layout if tensor.layout != torch.strided else "a lazily conjugated or negated view"
        raise UnsupportedValueError(f"{name} is {kind}; a graph takes plain strided tensors")
    return TensorLayout(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, _aligned(tensor, alignment))


def _aligned(tensor: torch.Tensor, largest: int) -> int:
    """One value, or none, has no order of summation that alignment could change: views of a schedule agree."""
    address = tensor.data_ptr() if extent(tensor) > 1 else 0
    return min(address & -address, largest) if address else largest


def _refuse_strange_dict(value: dict[Any, Any], name: str) -> None:
    if type(value) in (dict, OrderedDict) or dataclasses.is_dataclass(value):
        return
    raise UnsupportedValueError(f"{name} is a {type(value).__name__}; a graph takes plain dicts and model outputs")


def _field_difference(name: str, captured: Hashable, asked: Hashable) -> str:
    if isinstance(captured, TensorLayout) and isinstance(asked, TensorLayout):
        parts = [
            f"{what} captured {_text(before)}, asked {_text(after)}"
            for what, before, after in zip(TensorLayout._fields, captured, asked, strict=True)
            if before != after
        ]
        return f"{name} {', '.join(parts)}"
    return f"{name} captured {_text(captured)}, asked {_text(asked)}"


def _text(value: Hashable) -> str:
    if isinstance(value, TensorLayout):
        return f"a tensor {_text(value.shape)} of {_text(value.dtype)}"
    if isinstance(value, Container):
        return f"a {value.kind.__name__} of {_text(value.content)}"
    if isinstance(value, Constant):
        return str(value.value) if value.kind in (float, complex) else _text(value.value)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    return str(value) if isinstance(value, torch.device | tuple) else repr(value)
