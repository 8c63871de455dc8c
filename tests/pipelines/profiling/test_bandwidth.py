"""The copy that floors are told by."""

from __future__ import annotations

import pytest
import torch

from fuseproof.pipelines.profiling import bandwidth

GIB = 1 << 30


@pytest.mark.parametrize(
    "kind, free, size",
    [
        ("cpu", 64 * GIB, 3 << 27),
        ("cpu", 4 * GIB, GIB // 4),
        ("cpu", 0, 1 << 20),
        ("cuda", 140 * GIB, GIB),
        ("cuda", 8 * GIB, GIB // 2),
    ],
)
def test_a_buffer_is_larger_than_caches_and_smaller_than_memory(kind, free, size):
    assert size == bandwidth.buffer_bytes(kind, free)


def test_the_best_of_several_copies_counts(monkeypatch):
    seconds = iter([0.5, 0.1, 0.004, *[0.2] * 7])
    monkeypatch.setattr(bandwidth, "_seconds_of_copy", lambda _source, _target: next(seconds))
    monkeypatch.setattr(bandwidth, "free_bytes", lambda _device: 16 << 20)
    assert bandwidth.CopyBandwidth(2 * (1 << 20) / 0.004 / 1e9, 1 << 20) == bandwidth.copy_bandwidth(
        torch.device("cpu")
    )
    assert next(seconds, None) is None


def test_on_a_cpu_each_piece_has_its_own_best(monkeypatch):
    times = [[0.9, 0.1], [0.2, 0.8], *[[0.5, 0.5]] * 8]  # no whole copy was left alone
    seconds = iter([one for pair in times for one in pair])
    monkeypatch.setattr(bandwidth, "_seconds_of_copy", lambda _source, _target: next(seconds))
    monkeypatch.setattr(bandwidth, "free_bytes", lambda _device: 16 << 20)
    monkeypatch.setattr(bandwidth, "CPU_PIECE_BYTES", 1 << 19)
    monkeypatch.setattr(bandwidth, "LONGEST_S", 100.0)
    assert pytest.approx(2 * (1 << 20) / (0.2 + 0.1) / 1e9) == bandwidth.copy_bandwidth(torch.device("cpu")).gb_s


def test_slow_copies_are_few(monkeypatch):
    asked = []
    monkeypatch.setattr(bandwidth, "_seconds_of_copy", lambda _source, _target: asked.append(1) or 1.5)
    monkeypatch.setattr(bandwidth, "free_bytes", lambda _device: 16 << 20)
    bandwidth.copy_bandwidth(torch.device("cpu"))
    assert bandwidth.FEWEST_COPIES == len(asked)


def test_where_memory_is_not_there_nothing_is_known(monkeypatch):
    monkeypatch.setattr(bandwidth, "buffer_bytes", lambda _kind, _free: 1 << 60)
    assert bandwidth.UNKNOWN == bandwidth.copy_bandwidth(torch.device("cpu"))
