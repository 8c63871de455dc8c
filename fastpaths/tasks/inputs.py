"""The calls of this task as real tensors: true shapes, strides, offsets and shared memory, with values of each kind.

A call's memory is a few flat blocks. Each is filled once, and the arguments are views into them, as in the model.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuseproof.fastpaths.check_values import filler

CAPTURED = "captured"
"""The kind of values that were saved from a request."""
RANDOM = "random"
"""The kind of values that is timed: what a model computes from other arguments is computed here, too."""


@dataclass(frozen=True)
class Call:
    """One call of ``calls.json``. ``is_real``: a size of real requests, which the bench times."""

    name: str
    is_real: bool
    values: tuple[str, ...]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    memory_bytes: tuple[int, ...]
    traffic_bytes: int | None
    captured: str | None
    settle: Callable[[tuple[Any, ...]], None]

    @property
    def written_memory(self) -> frozenset[int]:
        """The blocks that the candidate may write into: those of its outputs."""
        return frozenset(part["memory"] for entry in self.keywords.values() for part in _places(entry))


@dataclass(frozen=True)
class Made:
    """A call made real: what to pass, and the flat blocks that the tensors lie in."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    blocks: tuple[torch.Tensor, ...]


def read_calls(folder: Path, settle: Callable[[tuple[Any, ...]], None]) -> list[Call]:
    """All calls of the task in ``folder``; ``settle`` is the reference's, and changes random arguments in place."""
    document = json.loads((folder / "calls.json").read_text(encoding="utf-8"))
    return [
        Call(
            name=entry["name"],
            is_real=entry["is_real"],
            values=tuple(entry["values"]),
            arguments=tuple(entry["arguments"]),
            keywords=entry["keywords"],
            memory_bytes=tuple(entry["memory_bytes"]),
            traffic_bytes=entry["traffic_bytes"],
            captured=entry["captured"],
            settle=settle,
        )
        for entry in document["calls"]
    ]


def make(call: Call, kind: str, device: torch.device, folder: Path, seed: int = 0) -> Made:
    """The call with values of ``kind`` on ``device``; the same seed gives the same values on one device."""
    fill = _saved(folder / str(call.captured)) if kind == CAPTURED else filler(kind, seed, device)
    dtypes: dict[int, torch.dtype] = {}
    for entry in (*call.arguments, *call.keywords.values()):
        for part in _places(entry):
            dtypes.setdefault(part["memory"], getattr(torch, part["dtype"]))
    blocks = []
    for index, size in enumerate(call.memory_bytes):
        dtype = dtypes.get(index, torch.uint8)
        block = torch.empty(size // dtype.itemsize, dtype=dtype, device=device)
        fill(block)
        blocks.append(block)
    arguments = tuple(_made(entry, blocks) for entry in call.arguments)
    if kind == RANDOM:
        call.settle(arguments)
    return Made(arguments, {name: _made(entry, blocks) for name, entry in call.keywords.items()}, tuple(blocks))


def _saved(file: Path) -> Callable[[torch.Tensor], None]:
    blocks = iter(torch.load(file, map_location="cpu", weights_only=True))

    def fill(block: torch.Tensor) -> None:
        block.copy_(next(blocks))

    return fill


def _places(entry: Any) -> list[dict[str, Any]]:
    if "tuple" in entry:
        return [place for part in entry["tuple"] for place in _places(part)]
    return [entry["tensor"]] if "tensor" in entry else []


def _made(entry: Any, blocks: list[torch.Tensor]) -> Any:
    if "tuple" in entry:
        return tuple(_made(part, blocks) for part in entry["tuple"])
    if "value" in entry:
        return entry["value"]
    place = entry["tensor"]
    dtype, block = getattr(torch, place["dtype"]), blocks[place["memory"]]
    typed = block if block.dtype == dtype else block.view(torch.uint8).view(dtype)
    return typed.as_strided(place["shape"], place["strides"], place["offset"])
