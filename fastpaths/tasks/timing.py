"""How long the candidate takes against the reference, and against a copy of as many bytes as a call must move.

Inputs rotate over more memory than a card's second-level cache holds. Candidate, reference and copy are timed by turns
in several rounds; a row gives the median of all samples and the range of the rounds' medians. On a card, replays of a
CUDA graph; calls that cannot be captured are timed between events, which counts their launches too, and the row says
so. On a CPU, wall time and no ratio: another run gives another one, and none of them says anything about a card.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fuseproof.fastpaths.tasks.checking import fault
from fuseproof.fastpaths.tasks.inputs import CAPTURED, Call, make

ROUNDS, REPLAYS, CALLS_AT_LEAST = 5, 5, 8
ROTATION_BYTES, LARGEST_ROTATION = 256 * 1024 * 1024, 64
HEAD = (
    "| call | candidate us | reference us | candidate / reference | copy us | candidate / copy |",
    "|---|--:|--:|--:|--:|--:|",
)


@dataclass(frozen=True)
class Timing:
    """Microseconds a call; ``low_us`` and ``high_us`` are the fastest and the slowest round's median."""

    median_us: float
    low_us: float
    high_us: float

    def __str__(self) -> str:
        return f"{self.median_us:.1f} [{self.low_us:.1f}, {self.high_us:.1f}]"


@dataclass(frozen=True)
class Row:
    """One call: its times, or what is ``wrong`` with the candidate, and then there are none; a CPU's have no ratio."""

    name: str
    wrong: str | None
    candidate: Timing | None = None
    reference: Timing | None = None
    copy: Timing | None = None
    ratio: Timing | None = None
    remark: str = ""

    def __str__(self) -> str:
        if self.wrong is not None or self.candidate is None:
            return f"| {self.name} | no time: {self.wrong} | | | | |"
        name, ratio, floor = f"{self.name}{self.remark}", "-", "-"
        if self.ratio is not None:
            ratio = f"{self.ratio.median_us:.3f} [{self.ratio.low_us:.3f}, {self.ratio.high_us:.3f}]"
            floor = "-" if self.copy is None else f"{self.candidate.median_us / self.copy.median_us:.2f}"
        return f"| {name} | {self.candidate} | {self.reference} | {ratio} | {self.copy or '-'} | {floor} |"


@torch.no_grad()
def rows(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    calls: Sequence[Call],
    device: torch.device,
    folder: Path,
) -> Iterator[Row]:
    """A row for each call; bits first, of every set of values that is timed and of one more afterwards; no time for
    other bits.
    """
    for call in calls:
        kind, rotation = call.values[0], _rotation(call, device)
        judge = partial(fault, candidate, reference, call, kind, device, folder)
        others = range(0) if kind == CAPTURED else range(1, rotation)  # a capture has one set of values
        wrong = judge() or next(filter(None, (judge(seed, runs=1) for seed in others)), None)
        if wrong is None:
            row = _timed(candidate, reference, call, kind, device, folder, rotation)
            wrong = judge(rotation, runs=1)
        yield row if wrong is None else Row(call.name, wrong)


def _rotation(call: Call, device: torch.device) -> int:
    """How many sets of inputs a call is timed with."""
    if device.type != "cuda":
        return 2
    moved = call.traffic_bytes or sum(call.memory_bytes)
    return min(LARGEST_ROTATION, max(2, -(-ROTATION_BYTES // max(moved, 1))))


def _timed(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    call: Call,
    kind: str,
    device: torch.device,
    folder: Path,
    rotation: int,
) -> Row:
    sets = [make(call, kind, device, folder, seed) for seed in range(rotation)]
    half = max((call.traffic_bytes or 0) // 2, 1)
    copies = [torch.empty(2, half, dtype=torch.uint8, device=device) for _ in range(rotation)]
    forms: list[Callable[[int], Any]] = [
        lambda index: candidate(*sets[index].arguments, **sets[index].keywords),
        lambda index: reference(*sets[index].arguments),
    ]
    if call.traffic_bytes is not None:
        forms.append(lambda index: copies[index][0].copy_(copies[index][1]))
    measure, remark = _stopwatch(forms, rotation, device)
    rounds = [[measure(form, rotation) for form in forms] for _ in range(ROUNDS)]
    timings = [_timing([one[place] for one in rounds]) for place in range(len(forms))]
    copy = timings[2] if len(timings) > 2 else None
    ratio = _ratio(rounds) if device.type == "cuda" else None
    return Row(call.name, None, timings[0], timings[1], copy, ratio, remark)


def _ratio(rounds: Sequence[Sequence[Sequence[float]]]) -> Timing:
    """Candidate over reference, round by round: here a ``Timing`` has no unit."""
    ratios = [statistics.median(one[0]) / statistics.median(one[1]) for one in rounds]
    return Timing(statistics.median(ratios), min(ratios), max(ratios))


def _timing(rounds: Sequence[Sequence[float]]) -> Timing:
    medians = [statistics.median(one) for one in rounds]
    return Timing(statistics.median(sample for one in rounds for sample in one), min(medians), max(medians))


def _stopwatch(
    forms: Sequence[Callable[[int], Any]], rotation: int, device: torch.device
) -> tuple[Callable[[Callable[[int], Any], int], list[float]], str]:
    """How all forms are timed: the same way, so that the ratio is one of like with like."""
    if device.type != "cuda":
        return _wall_us, " (wall time)"
    try:
        for form in forms:
            _replays_us(form, rotation)
    except RuntimeError:
        torch.cuda.synchronize()
        return _events_us, " (no CUDA graph: launches count)"
    return _replays_us, ""


def _wall_us(form: Callable[[int], Any], rotation: int) -> list[float]:
    samples = []
    for _ in range(REPLAYS):
        began = time.perf_counter()
        for index in range(rotation):
            form(index)
        samples.append((time.perf_counter() - began) / rotation * 1e6)
    return samples


def _replays_us(form: Callable[[int], Any], rotation: int) -> list[float]:
    for index in range(rotation):
        form(index)
    torch.cuda.synchronize()
    calls = rotation * max(1, -(-CALLS_AT_LEAST // rotation))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(calls):
            form(index % rotation)
    graph.replay()
    return _between_events(graph.replay, calls)


def _events_us(form: Callable[[int], Any], rotation: int) -> list[float]:
    calls = rotation * max(1, -(-CALLS_AT_LEAST // rotation))

    def all_of_them() -> None:
        for index in range(calls):
            form(index % rotation)

    all_of_them()
    return _between_events(all_of_them, calls)


def _between_events(run: Callable[[], Any], calls: int) -> list[float]:
    samples = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end) / calls * 1e3)
    return samples
