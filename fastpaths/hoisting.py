"""What does not change is computed once: results held for as long as the very objects they came from are in use.

An entry holds a reference to each input object, so ``is`` decides a hit: an object that is alive cannot share its
identity with another. Nothing is keyed on ``id()``, ``data_ptr()`` or ``_version`` (all are reused or missing), and no
value is compared, which would synchronise with the device.

A hit can still be refused: PyTorch counts in-place writes per tensor, and an input, a weight or a result that was
written since, or moved to other memory, is no longer what it was. Tensors made under ``inference_mode`` carry no such
count, so their results are not held at all. One thing goes unseen: writing into ``tensor.data`` in place, which PyTorch
does not count; unmount, or start a new request, before changing weights that way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.fastpaths.bits import tensors_of

# Two guidance branches, and room for a script that alternates between two prompts.
ENTRIES_HELD = 4


@dataclass(frozen=True)
class Held:
    """One result, the gate key it was computed under, the tensors it came from, and the state of all of them then."""

    key: Hashable
    sources: tuple[torch.Tensor, ...]
    state: Hashable
    result: Any


class HeldResults(threading.local):
    """The last few results of one site, found by the identity of their sources. Bounded, one set for each thread."""

    def __init__(self, entries: int = ENTRIES_HELD) -> None:
        self._entries: deque[Held] = deque(maxlen=entries)

    def find(self, key: Hashable, sources: tuple[torch.Tensor, ...]) -> Held | None:
        """The entry computed under ``key`` from exactly these tensors, none of them written to since; or None."""
        for entry in self._entries:
            same = entry.key == key and all(a is b for a, b in zip(entry.sources, sources, strict=True))
            if same and entry.state == state_of(sources, entry.result):
                return entry
        return None

    def hold(self, key: Hashable, sources: tuple[torch.Tensor, ...], result: Any) -> None:
        """Keep a result until it is the oldest, or the request ends."""
        self._entries.append(Held(key, sources, state_of(sources, result), result))

    def clear(self) -> None:
        """Drop every result and source that this thread holds."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


def are_countable(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether PyTorch counts in-place writes to all of these; it does not under ``inference_mode``."""
    return not any(tensor.is_inference() for tensor in tensors)


def state_of(sources: Iterable[torch.Tensor], result: Any) -> Hashable:
    """What tells that a tensor is still what it was: writes counted, memory, dtype. Never waits for the device."""
    return tuple((tensor._version, tensor.data_ptr(), tensor.dtype) for tensor in (*sources, *tensors_of(result)))
