"""How long one call takes: the eager chain, the fused form, and the copy that moves as many bytes as it must.

Inputs rotate over more memory than the card's second-level cache holds, so every call finds them in memory, as it does
in a model. Each form is captured in a CUDA graph of several calls, and replays are timed by device events.

That is done in several rounds, all forms by turns, each with graphs and results of its own in memory: how far the
medians of the rounds lie apart is the spread that a later run is held against
(:mod:`fuseproof.harness.kernel_times.guard`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fuseproof.fastpaths.families import kernel_module
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.prepared_calls import operation_of, real_module
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.fastpaths.verification import Outcome, State

SMALLEST_ROTATION_BYTES = 256 * 1024 * 1024
"""Five times the second-level cache of an H200."""
LARGEST_ROTATION = 64
CALLS_PER_GRAPH = 8
"""At least; small calls rotate over up to :data:`LARGEST_ROTATION` sets and have as many."""
REPLAYS = 5
ROUNDS = 5
Fill = Callable[[torch.Tensor], None]


class Stopwatch(Protocol):
    """Times repeated calls on one device."""

    def milliseconds(self, call: Callable[[int], Any], rotation: int) -> list[float]:
        """One sample a replay: milliseconds a call, over all ``rotation`` sets of inputs."""


@dataclass(frozen=True)
class Timing:
    """Microseconds a call over all replays; ``rounds_us`` is the median of each round, in order."""

    median_us: float
    minimum_us: float
    maximum_us: float
    samples: int
    rounds_us: tuple[float, ...] = ()


@dataclass(frozen=True)
class Measured:
    """One call. Times are None where its bits are not eager's: a wrong kernel has no speed."""

    outcome: Outcome
    rotation: int
    traffic_bytes: int | None
    eager: Timing | None = None
    fused: Timing | None = None
    floor: Timing | None = None

    @property
    def speedup(self) -> float | None:
        """Eager over fused, medians."""
        return self.eager.median_us / self.fused.median_us if self.eager and self.fused else None

    @property
    def times_floor(self) -> float | None:
        """Fused over the floor, medians."""
        return self.fused.median_us / self.floor.median_us if self.floor and self.fused else None


class CudaStopwatch:
    """Device events around replays of a CUDA graph."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def milliseconds(self, call: Callable[[int], Any], rotation: int) -> list[float]:
        """Every set is called before the capture, so that nothing is compiled or allocated for the first time in it."""
        with torch.cuda.device(self._device):
            for index in range(rotation):
                call(index)
            torch.cuda.synchronize()
            calls = rotation * max(1, -(-CALLS_PER_GRAPH // rotation))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for index in range(calls):
                    call(index % rotation)
            graph.replay()
            samples = []
            for _ in range(REPLAYS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                graph.replay()
                end.record()
                torch.cuda.synchronize()
                samples.append(begin.elapsed_time(end) / calls)
            return samples


@torch.no_grad()
def measure(
    call: SiteCall,
    outcome: Outcome,
    device: torch.device,
    make_fill: Callable[[int], Fill],
    stopwatch: Stopwatch,
    module: torch.nn.Module | None = None,
    rounds: int = ROUNDS,
) -> Measured:
    """Time ``call``, whose bits ``outcome`` has judged; ``make_fill(index)`` writes the values of one set of inputs."""
    traffic = traffic_bytes(call, device, make_fill)
    if outcome.state is not State.EQUAL:
        return Measured(outcome, 0, traffic)
    rotation = rotation_for(traffic or call.layout.total_bytes())
    sets = [made(call, device, make_fill(index)) for index in range(rotation)]
    eager, fused = forms(call, sets, device, module)
    half = max((traffic or 0) // 2, 1)
    copies = [torch.empty(2, half, dtype=torch.uint8, device=device) for _ in range(rotation)] if traffic else []
    measured = [eager, fused, *([lambda index: copies[index][0].copy_(copies[index][1])] if traffic else [])]
    samples = [[stopwatch.milliseconds(form, rotation) for form in measured] for _ in range(rounds)]
    timings = [_timing([one[place] for one in samples]) for place in range(len(measured))]
    return Measured(outcome, rotation, traffic, *timings)


def made(call: SiteCall, device: torch.device, fill: Fill) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """``call`` with values of ``fill``, and with what a model computes from them where the kernel says what that is.

    Its speed may rest on it: a negative norm divides by another way than any norm of a model.
    """
    arguments, outputs = call.layout.make(device, fill)
    settle = None if call.module is not None else getattr(kernel_module(call.layout.operation), "settle", None)
    if settle is not None:
        settle(arguments)
    return arguments, outputs


def rotation_for(bytes_moved: int) -> int:
    """How many sets of inputs it takes to leave the second-level cache behind."""
    return min(LARGEST_ROTATION, max(2, -(-SMALLEST_ROTATION_BYTES // max(bytes_moved, 1))))


def traffic_bytes(call: SiteCall, device: torch.device, make_fill: Callable[[int], Fill]) -> int | None:
    """The fewest bytes that the call moves, as its kernel says; None for a site on modules, which says nothing."""
    if call.module is not None:
        return None
    arguments, outputs = call.layout.make(device, make_fill(0))
    return int(kernel_module(call.layout.operation).traffic_bytes(*arguments, **outputs))


def forms(
    call: SiteCall, sets: Sequence[Any], device: torch.device, module: torch.nn.Module | None
) -> tuple[Callable[[int], Any], Callable[[int], Any]]:
    """The eager chain and the fused form of ``call``, each run on the set of inputs of a given index."""
    if call.module is not None and call.user_site is not None:
        real, fused = module or real_module(call.module, device), call.user_site.fused
        return (
            lambda index: real.forward(*sets[index][0], **sets[index][1]),
            lambda index: fused(real, *sets[index][0], **sets[index][1]),
        )
    kernel = kernel_module(call.layout.operation)
    form = operation_of(call, Gate(call.site)).fused_form
    return (
        lambda index: kernel.reference(*sets[index][0]),
        lambda index: form(*sets[index][0], **sets[index][1]),
    )


def _timing(rounds: Sequence[Sequence[float]]) -> Timing:
    """Milliseconds of several rounds as one timing."""
    samples = [sample * 1e3 for one in rounds for sample in one]
    medians = tuple(statistics.median(one) * 1e3 for one in rounds)
    return Timing(statistics.median(samples), min(samples), max(samples), len(samples), medians)
