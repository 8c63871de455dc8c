"""What an operation reads and writes: from the tensors that it was given and the memory that it was given out."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fuseproof.pipelines.profiling.events import Call, MemoryEvent, TensorUse

WRITTEN_ONLY = ("aten::copy_", "aten::fill_", "aten::zero_")
WITHOUT_RESULT = ("aten::_local_scalar_dense", "aten::item")


class MemoryUses:
    """When which address was given out, so that a storage is told from the one that lay there before it.

    ``calls`` tell how much of a storage tensors fill: an allocator gives out up to 2 MiB more.
    """

    def __init__(self, memory: Iterable[MemoryEvent], calls: Iterable[Call] = ()) -> None:
        ordered = sorted(memory, key=lambda one: one.time)
        self._given: dict[int, list[int]] = {}
        self._by_thread: dict[int, list[MemoryEvent]] = {}
        for one in ordered:
            self._by_thread.setdefault(one.thread, []).append(one)
            if one.bytes > 0:
                self._given.setdefault(one.address, []).append(one.time)
        self._filled: dict[tuple[int, int], int] = {}
        for call in calls:
            for tensor in call.inputs:
                storage = self.dated(tensor, call.start).storage
                self._filled[storage] = max(self._filled.get(storage, 0), tensor.bytes)
        self._times = {thread: [one.time for one in found] for thread, found in self._by_thread.items()}

    def dated(self, tensor: TensorUse, time: int) -> TensorUse:
        """``tensor`` with the generation that its storage had at ``time``."""
        given = self._given.get(tensor.address)
        return tensor.at_generation(bisect.bisect_right(given, time)) if given else tensor

    def made_during(self, call: Call) -> list[TensorUse]:
        """Storages given out inside ``call`` and still there at its end, as flat tensors of bytes."""
        times = self._times.get(call.thread, [])
        first, last = bisect.bisect_left(times, call.start), bisect.bisect_right(times, call.end)
        alive: dict[int, int] = {}
        for one in self._by_thread.get(call.thread, [])[first:last]:
            if one.bytes > 0:
                alive[one.address] = one.bytes
            else:
                alive.pop(one.address, None)
        return [self._filling(address, size, call.end) for address, size in alive.items()]

    def _filling(self, address: int, size: int, time: int) -> TensorUse:
        """What was given out, as bytes: as many as the largest tensor ever seen in it has, else all."""
        whole = self.dated(TensorUse(address, (size,), (1,), "uint8", size), time)
        filled = min(self._filled.get(whole.storage, size), size)
        return replace(whole, shape=(filled,), bytes=filled)


def reads_and_writes(call: Call, memory: MemoryUses) -> tuple[tuple[TensorUse, ...], tuple[TensorUse, ...]]:
    """The tensors that an operation read and those that it wrote.

    What it was given out is its result; where it ends in ``_`` it writes its first tensor; where it neither makes
    anything nor ends so, it was given the tensor to write (``out=``) as its last one.
    """
    inputs = [memory.dated(tensor, call.start) for tensor in call.inputs]
    if call.name in WITHOUT_RESULT:
        return tuple(inputs), ()
    if call.name.endswith("_") and inputs:
        return tuple(inputs[1:] if call.name in WRITTEN_ONLY else inputs), (inputs[0],)
    made = memory.made_during(call)
    if made or not inputs:
        return tuple(inputs), tuple(made)
    return tuple(inputs[:-1]), (inputs[-1],)


def bytes_moved(inputs: Sequence[TensorUse], outputs: Sequence[TensorUse]) -> int | None:
    """Each distinct input read once, each output written once; None where no tensor is known."""
    if not inputs and not outputs:
        return None
    return distinct_bytes(inputs) + distinct_bytes(outputs)


def distinct_bytes(tensors: Iterable[TensorUse]) -> int:
    """The bytes of tensors, where the same one may stand several times."""
    return sum({(one.storage, one.shape, one.strides, one.dtype): one.bytes for one in tensors}.values())


def key_text(tensors: Sequence[TensorUse]) -> str | None:
    """Shapes, dtypes and, where a tensor is not contiguous, strides: ``1x4096x3072 bfloat16, 3072 bfloat16``."""
    return ", ".join(map(tensor_text, tensors)) or None


def tensor_text(tensor: TensorUse) -> str:
    """One tensor's layout in words."""
    text = f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {tensor.dtype}"
    return text if is_contiguous(tensor) else f"{text} strides {'x'.join(map(str, tensor.strides))}"


def is_contiguous(tensor: TensorUse) -> bool:
    """Whether its elements lie in order, without gaps; a dimension of one element has any stride."""
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size != 1 and stride != expected:
            return size == 0
        expected *= size
    return True
