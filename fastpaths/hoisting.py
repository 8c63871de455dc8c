"""What does not change is computed once: results held for as long as the very objects they came from are in use.

An entry knows each input object for as long as it lives, and ``is`` decides a hit: an object that is alive cannot share
its identity with another. With the first of them gone, nothing can ever hit, and the entry lets go of all that it held,
in whichever thread. Until then it holds the memory behind each: what ``.data`` is set to cannot lie where the old one
lay. Nothing is keyed on ``id()``, ``data_ptr()`` or ``_version`` alone (all are reused or missing), and no value is
compared, which would synchronise with the device.

A hit can still be refused: PyTorch counts in-place writes per tensor, and an input, a weight or a result that was
written since, or moved to other memory, is no longer what it was. Tensors made under ``inference_mode`` carry no such
count, so their results are not held at all. What PyTorch does not count goes unseen: writing in place into
``tensor.data``, or into a NumPy array (or any other library's memory) that a tensor shares. Unmount, or start a new
request, before changing weights or inputs that way.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any

import torch

from fuseproof.fastpaths.bits import tensors_of

# Two guidance branches, and room for a script that alternates between two prompts.
ENTRIES_HELD = 4


class Held:
    """One result, the gate key it was computed under, the tensors it came from, and the state of all of them then.

    Empty (``is_of`` answers no) once one of those tensors is gone.
    """

    def __init__(self, key: Hashable, sources: tuple[torch.Tensor, ...], result: Any) -> None:
        self.key = key
        self.state = state_of(sources, result)
        self.result = result
        self._memory = memory_of(sources, result)
        mine = weakref.ref(self)

        def let_go(_source: weakref.ref[torch.Tensor]) -> None:
            held = mine()
            if held is not None:
                held.result, held._memory = None, ()

        self._sources = tuple(weakref.ref(source, let_go) for source in sources)

    def is_of(self, sources: tuple[torch.Tensor, ...]) -> bool:
        """Whether the result came from exactly these tensors."""
        return all(known() is source for known, source in zip(self._sources, sources, strict=True))


class HeldResults(threading.local):
    """The last few results of one site, found by the identity of their sources. Bounded, one set for each thread."""

    def __init__(self, entries: int = ENTRIES_HELD) -> None:
        self._entries: deque[Held] = deque(maxlen=entries)

    def find(self, key: Hashable, sources: tuple[torch.Tensor, ...]) -> Held | None:
        """The entry computed under ``key`` from exactly these tensors, none of them written to since; or None."""
        for entry in self._entries:
            if entry.key == key and entry.is_of(sources) and entry.state == state_of(sources, entry.result):
                return entry
        return None

    def knows(self, key: Hashable) -> bool:
        """Whether a result is held under ``key``, whatever tensors it came from."""
        return any(entry.key == key for entry in self._entries)

    def hold(self, key: Hashable, sources: tuple[torch.Tensor, ...], result: Any) -> None:
        """Keep a result until it is the oldest, a source is gone, or the request ends; not one whose writes, or whose
        source's, go uncounted.
        """
        if are_countable((*sources, *tensors_of(result))):
            self._entries.append(Held(key, sources, result))

    def clear(self) -> None:
        """Drop every result that this thread holds."""
        self._entries.clear()

    def __len__(self) -> int:
        return len(self._entries)


def are_countable(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether PyTorch counts in-place writes to all of these; it does not under ``inference_mode``."""
    return not any(tensor.is_inference() for tensor in tensors)


def state_of(sources: Iterable[torch.Tensor], result: Any) -> Hashable:
    """What tells that a tensor is still what it was: writes counted, memory, layout. Never waits for the device."""
    return tuple(
        (tensor._version, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        for tensor in (*sources, *tensors_of(result))
    )


def memory_of(sources: Iterable[torch.Tensor], result: Any) -> tuple[torch.UntypedStorage, ...]:
    """The memory that :func:`state_of` names: held, no other tensor can come to lie at its address."""
    return tuple(tensor.untyped_storage() for tensor in (*sources, *tensors_of(result)))
