"""Memory that code of somebody else must leave alone: was it written, and what of it is handed out as a result.

A tensor counts as written when a bit of it changed. Inputs are small enough to be copied and put back; weights are not,
and a sum over all their bits tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.bits import bits_equal, tensors_of
from fuseproof.fastpaths.captures import thin

CHUNK_BYTES = 1 << 25
ODD_NUMBER = 0x1E3779B97F4A7C15  # 2**64 over the golden ratio, as far as int64 has it
NamedTensor = tuple[int | str, torch.Tensor]


class WatchedTensors:
    """Copies of ``tensors`` as they are now. Each is known by its position or its keyword."""

    def __init__(self, tensors: Iterable[NamedTensor]) -> None:
        self._copies: list[tuple[int | str, torch.Tensor, torch.Tensor]] = []
        seen: set[int] = set()
        for name, tensor in tensors:
            if id(tensor) not in seen and tensor.layout is torch.strided and not tensor.is_meta:
                seen.add(id(tensor))
                self._copies.append((name, tensor, thin(tensor).clone()))

    def changed(self) -> list[int | str]:
        """Which of them hold other bits than they did. Synchronises with the device."""
        return [name for name, tensor, copy in self._copies if not bits_equal(thin(tensor), copy)]

    def put_back(self) -> list[int | str]:
        """As :meth:`changed`, and all of them hold their old bits again."""
        names = self.changed()
        if names:
            with torch.inference_mode():  # else tensors made under it could not be written
                for _, tensor, copy in self._copies:
                    thin(tensor).copy_(copy)
        return names

    def storages(self) -> set[int]:
        """Where they lie; see :func:`storage_of`."""
        return {storage_of(tensor) for _, tensor, _ in self._copies} - {0}


class WatchedWeights:
    """The bits of a module's parameters and buffers, as a sum for each."""

    def __init__(self, module: nn.Module | None) -> None:
        self._module = module
        self._sums = self._read()

    def changed(self) -> str | None:
        """The first one that is not what it was, by name."""
        now = self._read()
        return next((name for name, before in self._sums.items() if now.get(name) != before), None)

    def storages(self) -> set[int]:
        """Where they lie; see :func:`storage_of`."""
        return {storage_of(tensor) for tensor in weights_of(self._module).values()} - {0}

    def _read(self) -> dict[str, Any]:
        return {
            name: (tensor.shape, tensor.stride(), tensor.dtype, bit_sum(tensor))
            for name, tensor in weights_of(self._module).items()
        }


def weights_of(module: nn.Module | None) -> Mapping[str, torch.Tensor]:
    """Parameters and buffers that have memory, those of modules inside included."""
    named = () if module is None else (*module.named_parameters(), *module.named_buffers())
    return {name: tensor for name, tensor in named if tensor.layout is torch.strided and not tensor.is_meta}


def bit_sum(tensor: torch.Tensor) -> int:
    """All bits in one number, modulo 2**64: words of eight bytes, each times an odd number of its position.

    One word that changes always changes the sum, and several do except by a chance of one in 2**64 or so.
    """
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    total = 0
    for start in range(0, data.numel(), CHUNK_BYTES):
        words = _words(data[start : start + CHUNK_BYTES])
        positions = torch.arange(start // 8, start // 8 + words.numel(), dtype=torch.int64, device=words.device)
        total += int((words * (positions * ODD_NUMBER | 1)).sum())
    return total % 2**64


def storage_of(tensor: torch.Tensor) -> int:
    """The address of the memory that a tensor is a view of; 0 where it has none."""
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def storages_of(result: Any) -> set[int]:
    """The addresses of all memory in a result."""
    return {storage_of(tensor) for tensor in tensors_of(result)} - {0}


def shares_unlike(result: Any, expected: Any, storages: set[int]) -> bool:
    """Whether a result is a view of ``storages`` where ``expected``, of the same structure, is not the same view."""
    pairs = zip(tensors_of(result), tensors_of(expected), strict=True)
    return any(
        storage_of(mine) in storages
        and (storage_of(mine) != storage_of(theirs) or mine.data_ptr() != theirs.data_ptr())
        for mine, theirs in pairs
    )


def _words(data: torch.Tensor) -> torch.Tensor:
    missing = -data.numel() % 8
    if missing:
        data = torch.cat([data, data.new_zeros(missing)])
    elif data.storage_offset() % 8:
        data = data.clone()
    return data.view(torch.int64)
