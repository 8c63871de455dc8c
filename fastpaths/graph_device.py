"""The few things that capturing needs of a device, and CUDA's way of doing them."""

from __future__ import annotations

import contextlib
import gc
import warnings
from typing import Any, Protocol

import torch

from fuseproof.fastpaths.graph_values import LARGEST_ALIGNMENT

EMPTY_GRAPH_WARNING = ".*CUDA Graph is empty.*"
CAPTURE_ERROR_MODE = "thread_local"
"""Other threads may go on using the device; in torch's default mode one event query of theirs spoils a capture."""


class Segment(Protocol):
    """Device work that was recorded and can be run again, on the current stream."""

    def replay(self) -> None: ...


class CaptureDevice(Protocol):
    """Records device work. Between ``begin_segment`` and ``end_segment`` nothing runs: results hold no values yet.

    ``device`` is where every tensor must be, ``alignment`` the largest alignment in bytes that changes its arithmetic.
    All segments share one private pool of memory.
    """

    device: torch.device
    alignment: int

    def reject_reason(self) -> str | None: ...
    def prepare(self) -> None: ...
    def begin_segment(self) -> None: ...
    def end_segment(self) -> Segment: ...
    def abandon_segment(self) -> None: ...
    def order_after_last_replay(self) -> None: ...
    def synchronise(self) -> None: ...
    def pool_bytes(self) -> int: ...


class CudaCapture:
    """Capture by ``torch.cuda.CUDAGraph`` on a side stream of its own, replay on whichever stream is current."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        self.alignment = LARGEST_ALIGNMENT
        self._pool: tuple[int, int] | None = None
        self._side_stream: Any = None
        self._replay_stream: Any = None
        self._graph: Any = None
        self._on_side_stream = contextlib.ExitStack()

    def reject_reason(self) -> str | None:
        """Why nothing may be captured or replayed right now, or None."""
        return "the current stream is being captured by somebody else" if _is_capturing() else None

    def prepare(self) -> None:
        """Leave the device idle, and give back what cached memory a private pool could not use."""
        self.synchronise()
        gc.collect()
        torch.cuda.empty_cache()

    def begin_segment(self) -> None:
        """Record from here on, instead of running."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            self._side_stream = torch.cuda.Stream(self.device)
        self._graph = torch.cuda.CUDAGraph()
        self._on_side_stream.enter_context(torch.cuda.stream(self._side_stream))
        self._graph.capture_begin(pool=self._pool, capture_error_mode=CAPTURE_ERROR_MODE)

    def end_segment(self) -> Segment:
        """Stop recording and return what was recorded."""
        graph = self._graph
        with _no_word_of_empty_graphs():
            graph.capture_end()
        self._graph = None
        self._on_side_stream.close()
        return graph

    def abandon_segment(self) -> None:
        """Leave a capture that failed, so that stream, allocator and random generator serve the process as before."""
        graph, self._graph = self._graph, None
        try:
            if graph is not None:
                self._end_broken(graph)
        finally:
            self._on_side_stream.close()
        self.synchronise()

    def order_after_last_replay(self) -> None:
        """Let the current stream wait for the last replay where that ran on another one: all share buffers."""
        stream = torch.cuda.current_stream(self.device)
        if self._replay_stream is not None and self._replay_stream != stream:
            stream.wait_stream(self._replay_stream)
        self._replay_stream = stream

    def synchronise(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize(self.device)

    def pool_bytes(self) -> int:
        """Device memory that the private pool holds."""
        if self._pool is None:
            return 0
        segments = torch.cuda.memory_snapshot()
        return sum(
            segment["total_size"] for segment in segments if tuple(segment.get("segment_pool_id", ())) == self._pool
        )

    def _end_broken(self, graph: Any) -> None:
        try:
            with _no_word_of_empty_graphs():
                graph.capture_end()
        except RuntimeError:  # the capture is invalid, which is why we are here
            self._leave_pool()
            self._capture_nothing()

    def _leave_pool(self) -> None:
        """Up to torch 2.11, ``capture_end`` stops at its error and leaves the allocator believing in the capture."""
        with contextlib.suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self.device.index, self._pool)
            torch._C._cuda_releasePool(self.device.index, self._pool)

    def _capture_nothing(self) -> None:
        """The random generator believes in the failed capture too, until another one has ended well."""
        empty = torch.cuda.CUDAGraph()
        empty.capture_begin(capture_error_mode=CAPTURE_ERROR_MODE)
        with _no_word_of_empty_graphs():
            empty.capture_end()


def _is_capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def _no_word_of_empty_graphs() -> Any:
    """Two breaks in a row leave nothing between them to record; torch takes that for a mistake."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=EMPTY_GRAPH_WARNING)
        yield
