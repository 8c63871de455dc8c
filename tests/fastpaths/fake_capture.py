"""A capture device on the CPU: records aten operations and runs them again on the same memory, as a CUDA graph does.

While it records, nothing runs: fresh results are poisoned, in-place operations are put off, and reading a value on the
host fails. Whatever a test sees after a replay was computed by the replay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fuseproof.fastpaths.graph_values import copy_tensor_bits, tensors_in

HOST_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
BYTES_A_SEGMENT = 1024


class Tape(TorchDispatchMode):
    """One segment."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in HOST_READS:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines of advice")
        if func._schema.is_mutable:
            self._operations.append((func, args, kwargs, None))
            return kwargs.get("out", args[0] if args else None)
        result = func(*args, **kwargs)
        if not _is_view(result, (args, kwargs)):
            self._operations.append((func, args, kwargs, result))
            for tensor in tensors_in(result):
                tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
        return result

    def replay(self) -> None:
        for func, args, kwargs, result in self._operations:
            fresh = func(*args, **kwargs)
            if result is not None:
                copy_tensor_bits(fresh, result)


class FakeCapture:
    """Counts what the runner asks of it."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.alignment = 16  # what torch's CPU allocator always keeps; more would be luck
        self.segments = self.abandoned = self.prepared = self.synchronised = self.ordered = 0
        self.reason: str | None = None
        self._tape: Tape | None = None

    @property
    def is_recording(self) -> bool:
        return self._tape is not None

    def reject_reason(self) -> str | None:
        return self.reason

    def prepare(self) -> None:
        self.prepared += 1

    def begin_segment(self) -> None:
        self._tape = Tape()
        self._tape.__enter__()

    def end_segment(self) -> Tape:
        tape = self._close()
        self.segments += 1
        return tape

    def abandon_segment(self) -> None:
        self._close()
        self.abandoned += 1

    def order_after_last_replay(self) -> None:
        self.ordered += 1

    def synchronise(self) -> None:
        self.synchronised += 1

    def pool_bytes(self) -> int:
        return self.segments * BYTES_A_SEGMENT

    def _close(self) -> Tape:
        assert self._tape is not None, "no segment was begun"
        tape, self._tape = self._tape, None
        tape.__exit__(None, None, None)
        return tape


def _is_view(result: Any, inputs: Any) -> bool:
    memory = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(inputs)}
    return any(tensor.untyped_storage().data_ptr() in memory for tensor in tensors_in(result))
