"""Where the tensors of one call lie: shapes, strides, dtypes, and which of them share memory.

A layout is read from a call with real tensors or with ones on the meta device, and made again anywhere, with other
values in the same places. Strides, offsets and overlaps are those of the call, so a gate that sees a call made from a
layout builds the key that it would build in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.errors import FuseproofError

Fill = Callable[[torch.Tensor], None]
"""Writes values into a flat tensor: one whole block of memory."""


@dataclass(frozen=True)
class Place:
    """One tensor in block ``memory``: ``offset`` and ``strides`` in elements."""

    memory: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class CallLayout:
    """One call: positional ``arguments`` and ``keywords`` (a kernel's outputs), tensors as :class:`Place`.

    ``memory_bytes`` are the sizes of the blocks that the places lie in.
    """

    operation: str
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    memory_bytes: tuple[int, ...]

    def places(self) -> Iterator[tuple[str, Place]]:
        """Every tensor with its name: its position, or its keyword; nested ones as ``1.0``."""
        for index, argument in enumerate(self.arguments):
            yield from _places(str(index), argument)
        for name, argument in self.keywords:
            yield from _places(name, argument)

    def total_bytes(self) -> int:
        """Memory that one made call takes."""
        return sum(self.memory_bytes)

    def make(self, device: torch.device, fill: Fill) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments as real tensors on ``device``, each block of memory filled once, in order."""
        dtypes: dict[int, torch.dtype] = {}
        for _, place in self.places():
            dtypes.setdefault(place.memory, place.dtype)
        blocks = []
        for index, size in enumerate(self.memory_bytes):
            dtype = dtypes.get(index, torch.uint8)
            block = torch.empty(size // dtype.itemsize, dtype=dtype, device=device)
            fill(block)
            blocks.append(block)
        arguments = tuple(_made(argument, blocks) for argument in self.arguments)
        return arguments, {name: _made(argument, blocks) for name, argument in self.keywords}


def layout_of(operation: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> CallLayout:
    """Read the layout of a call. A :class:`FuseproofError` names an argument that is neither tensor nor number."""
    memories: dict[int, int] = {}
    sizes: list[int] = []

    def read(name: str, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return _place(value, memories, sizes)
        if isinstance(value, tuple | list):
            return tuple(read(f"{name}.{index}", part) for index, part in enumerate(value))
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise FuseproofError(
            f"argument {name} of {operation} is a {type(value).__name__}; only tensors and numbers can be kept."
        )

    kept = tuple(read(str(index), argument) for index, argument in enumerate(arguments))
    named = tuple((name, read(name, argument)) for name, argument in keywords.items())
    return CallLayout(operation, kept, named, tuple(sizes))


def _place(tensor: torch.Tensor, memories: dict[int, int], sizes: list[int]) -> Place:
    storage = tensor.untyped_storage()
    memory = memories.setdefault(storage._cdata, len(sizes))
    if memory == len(sizes):
        sizes.append(storage.nbytes())
    return Place(memory, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _places(name: str, value: Any) -> Iterator[tuple[str, Place]]:
    if isinstance(value, Place):
        yield name, value
    elif isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from _places(f"{name}.{index}", part)


def _made(value: Any, blocks: list[torch.Tensor]) -> Any:
    if isinstance(value, tuple):
        return tuple(_made(part, blocks) for part in value)
    if not isinstance(value, Place):
        return value
    block = blocks[value.memory]
    typed = block if block.dtype == value.dtype else block.view(torch.uint8).view(value.dtype)
    return typed.as_strided(value.shape, value.strides, value.offset)
