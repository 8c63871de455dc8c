"""What ``CudaCapture`` asks of torch, in which order, with torch's graphs replaced: no device is needed."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuseproof.fastpaths.graph_device import CudaCapture

POOL = (0, 7)


class Torch:
    """Writes down the calls; ``broken`` capture_end calls raise, as for a capture that was invalidated."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[Any] = []
        self.broken = 0
        self.ended_by_itself = False
        self.stream = "main"
        replaced = {
            "current_device": lambda: 0,
            "graph_pool_handle": lambda: POOL,
            "Stream": lambda device: "side",
            "stream": self._on_stream,
            "current_stream": lambda device: Stream(self.stream, self.calls),
            "CUDAGraph": lambda: Graph(self),
            "synchronize": lambda device: self.calls.append("synchronize"),
            "empty_cache": lambda: self.calls.append("empty_cache"),
            "memory_snapshot": lambda: [
                {"total_size": 5, "segment_pool_id": POOL},
                {"total_size": 11, "segment_pool_id": (0, 0)},
                {"total_size": 6, "segment_pool_id": POOL},
            ],
        }
        for name, value in replaced.items():
            patch.setattr(torch.cuda, name, value)
        library = SimpleNamespace(
            _cuda_endAllocateToPool=self._end_allocating, _cuda_releasePool=lambda *pool: self.calls.append("release")
        )
        patch.setattr("fuseproof.fastpaths.graph_device.torch._C", library)

    @contextmanager
    def _on_stream(self, stream: str) -> Any:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def _end_allocating(self, device: int, pool: Any) -> None:
        self.calls.append(("end allocating", device, pool))
        if self.ended_by_itself:
            raise RuntimeError("not currently recording to mempool_id")


class Stream(SimpleNamespace):
    def __init__(self, name: str, calls: list[Any]) -> None:
        super().__init__(name=name)
        self._calls = calls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def wait_stream(self, other: Stream) -> None:
        self._calls.append(f"{self.name} waits for {other.name}")


class Graph:
    def __init__(self, library: Torch) -> None:
        self._library = library

    def capture_begin(self, **settings: Any) -> None:
        self._library.calls.append(("begin", self._library.stream, settings))

    def capture_end(self) -> None:
        self._library.calls.append(("end", self._library.stream))
        if self._library.broken:
            self._library.broken -= 1
            raise RuntimeError("operation failed due to a previous error during capture")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Torch:
    return Torch(monkeypatch)


BEGIN = ("begin", "side", {"pool": POOL, "capture_error_mode": "thread_local"})
BEGIN_EMPTY = ("begin", "side", {"capture_error_mode": "thread_local"})
END = ("end", "side")
END_ALLOCATING = ("end allocating", 0, POOL)


def test_segments_share_a_pool_and_leave_the_side_stream(library: Torch) -> None:
    device = CudaCapture(torch.device("cuda"))
    for _ in range(2):
        device.begin_segment()
        assert "side" == library.stream
        assert isinstance(device.end_segment(), Graph)
        assert "main" == library.stream
    assert [BEGIN, END, BEGIN, END] == library.calls
    assert 11 == device.pool_bytes()


def test_no_pool_before_the_first_capture(library: Torch) -> None:
    assert 0 == CudaCapture(torch.device("cuda", 1)).pool_bytes()


@pytest.mark.parametrize(
    ("broken", "ended_by_itself", "expected"),
    [
        pytest.param(0, False, [BEGIN, END, "synchronize"], id="the capture itself is sound"),
        pytest.param(
            1,
            False,
            [BEGIN, END, END_ALLOCATING, "release", BEGIN_EMPTY, END, "synchronize"],
            id="torch stops at the broken capture",
        ),
        pytest.param(
            1, True, [BEGIN, END, END_ALLOCATING, BEGIN_EMPTY, END, "synchronize"], id="torch has left the pool"
        ),
    ],
)
def test_an_abandoned_segment_leaves_nothing_behind(
    library: Torch, broken: int, ended_by_itself: bool, expected: list[Any]
) -> None:
    device = CudaCapture(torch.device("cuda"))
    device.begin_segment()
    library.broken, library.ended_by_itself = broken, ended_by_itself
    device.abandon_segment()
    assert expected == library.calls
    assert "main" == library.stream


def test_a_device_that_cannot_capture_any_more_is_an_error(library: Torch) -> None:
    device = CudaCapture(torch.device("cuda"))
    device.begin_segment()
    library.broken = 2
    with pytest.raises(RuntimeError, match="previous error"):
        device.abandon_segment()
    assert "main" == library.stream


def test_preparing_leaves_the_device_idle_and_its_cache_empty(library: Torch) -> None:
    CudaCapture(torch.device("cuda")).prepare()
    assert ["synchronize", "empty_cache"] == library.calls


def test_replays_on_another_stream_wait(library: Torch) -> None:
    device = CudaCapture(torch.device("cuda"))
    for stream in ("main", "main", "other", "main"):
        library.stream = stream
        device.order_after_last_replay()
    assert ["other waits for main", "main waits for other"] == library.calls
