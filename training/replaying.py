"""Forward and backward of a step as one CUDA graph.

The model is small: on an H200 the device was busy for half of a step, and waited for Python's launches in the other.
A graph is one launch. Where capturing fails, or a gradient comes out another, that is said loudly and steps run as
they would without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from training.gradients import LossesOf, Step, Tensors, drop_gradients, must_be_on_a_gpu, relative_error, step_of

LARGEST_ERROR = 0.05
"""Of a gradient, as a share of its norm: the same kernels run, and some of them add in any order."""
WARM_UP_RUNS = 2


class Replayed:
    """A step of ``losses_of``, captured anew for each shape of batch, with gradients for ``weights``.

    Losses and gradients are the same memory in every step: they are good until the next.
    """

    def __init__(self, losses_of: LossesOf, weights: Iterable[torch.nn.Parameter]) -> None:
        self._step = step_of(losses_of)
        self._weights = list(weights)
        self._shapes: list[torch.Size] | None = None
        self._captured: Captured | None = None

    def __call__(self, batch: Any) -> Tensors:
        """The losses of ``batch``; gradients, of which there must be none, are on the weights afterwards."""
        shapes = [tensor.shape for tensor in batch]
        if shapes != self._shapes:
            self._shapes = shapes
            self._captured = None  # its memory is free before the next one takes some
            self._captured = self._capture(batch)
        return self._step(batch) if self._captured is None else self._captured(batch)

    def _capture(self, batch: Any) -> Captured | None:
        try:
            captured = Captured(self._step, self._weights, batch)
            worst = self._error(captured, batch)
            if worst > LARGEST_ERROR:
                raise RuntimeError(f"a gradient of the graph is {100 * worst:.2g} % off that of the step itself")
        except Exception as error:  # noqa: BLE001 - whatever stops a capture, the step itself can still run
            sys.stderr.write(f"NOT REPLAYED, SLOWER: {type(error).__name__}: {' '.join(str(error).split())[:300]}\n")
            return None
        finally:
            drop_gradients(self._weights)
        sys.stderr.write(f"replayed as one CUDA graph; its worst gradient is {100 * worst:.2g} % off the step's own\n")
        return captured

    def _error(self, captured: Captured, batch: Any) -> float:
        """Of the worst gradient. The graph was captured with zeros: this tells whether it reads what it is given."""
        captured(batch)
        found = [weight.grad.clone() for weight in self._weights if weight.grad is not None]
        drop_gradients(self._weights)
        self._step(batch)
        true = [weight.grad for weight in self._weights if weight.grad is not None]
        return max(relative_error(mine, other) for mine, other in zip(found, true, strict=True))


class Captured:
    """A step as a CUDA graph: replayed with whatever batch of the same shapes."""

    def __init__(self, step: Step, weights: list[torch.nn.Parameter], batch: Any) -> None:
        must_be_on_a_gpu(batch[0])
        other = (torch.zeros_like(tensor) for tensor in batch)
        self._inputs = tuple(other) if type(batch) is tuple else type(batch)(*other)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_RUNS):
                drop_gradients(weights)
                step(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        drop_gradients(weights)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=stream):
            self._losses = step(self._inputs)
        self._gradients = [(weight, weight.grad) for weight in weights if weight.grad is not None]

    def __call__(self, batch: Any) -> Tensors:
        for mine, given in zip(self._inputs, batch, strict=True):
            mine.copy_(given)
        self._graph.replay()
        for weight, gradient in self._gradients:
            weight.grad = gradient
        return self._losses
