"""torch's Muon with its step as one CUDA graph: it launches 45 small kernels a matrix, one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from training.gradients import must_be_on_a_gpu


class ReplayedMuon(torch.optim.Muon):
    """torch's Muon, of one group of matrices on a GPU; without the graph its launches take 25 to 30 ms a step here.

    A step is linear in the learning rate, so the graph holds the step at a rate of one, and scales the way that the
    weights went. The first step runs as torch has it and makes the momenta, and so does a step that lacks a gradient.
    Weight decay and momentum are those of the first step.
    """

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, **options)
        if len(self.param_groups) != 1:
            raise ValueError(
                f"{len(self.param_groups)} groups of weights: the graph has one rate, so one is all there can be"
            )
        self._replay: Callable[[], None] | None = None
        self._is_replayed = True

    def load_state_dict(self, state_dict: Any) -> None:
        """As torch has it; the graph knows the momenta from before, and is forgotten."""
        super().load_state_dict(state_dict)
        self._replay = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step."""
        weights = self.param_groups[0]["params"]
        is_ready = all(weight.grad is not None and "momentum_buffer" in self.state[weight] for weight in weights)
        if is_ready and self._is_replayed and self._replay is None:
            self._prepare(weights)
        if not is_ready or self._replay is None:
            super().step()
            return
        torch._foreach_copy_(self._gradients, [weight.grad for weight in weights])
        self._rate.fill_(self.param_groups[0]["lr"])
        self._replay()

    def _prepare(self, weights: list[torch.Tensor]) -> None:
        """Capture; what cannot be captured is said, and never tried again."""
        given = [weight.grad for weight in weights]
        try:
            self._gradients = [torch.empty_like(weight) for weight in weights]
            self._before = [torch.empty_like(weight) for weight in weights]
            self._rate = torch.zeros((), device=weights[0].device)
            for weight, gradient in zip(weights, self._gradients, strict=True):
                weight.grad = gradient
            self._replay = self._captured(weights)
        except RuntimeError as error:
            self._is_replayed = False
            self._gradients, self._before = [], []
            sys.stderr.write(f"MUON NOT REPLAYED, SLOWER: {' '.join(str(error).split())[:300]}\n")
        finally:
            for weight, own in zip(weights, given, strict=True):
                weight.grad = own

    def _captured(self, weights: list[torch.Tensor]) -> Callable[[], None]:
        must_be_on_a_gpu(weights[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._unit_step(weights)
        return graph.replay

    def _unit_step(self, weights: list[torch.Tensor]) -> None:
        """A step at the rate that ``_rate`` holds, by way of one at a rate of one."""
        torch._foreach_copy_(self._before, weights)
        (group,) = self.param_groups
        rate = group["lr"]
        group["lr"] = 1.0
        try:
            super().step()
        finally:
            group["lr"] = rate
        torch._foreach_sub_(weights, self._before)
        torch._foreach_mul_(weights, self._rate)
        torch._foreach_add_(weights, self._before)
