"""What a step is, whatever runs it: losses of a batch, and gradients that lie on the weights afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...]
LossesOf = Callable[[Any], Tensors]
"""From a batch, a tuple of tensors on one device, to the losses [B] of each task."""
Step = Callable[[Any], Tensors]
"""The same, detached; it leaves gradients on the weights."""


def total_of(losses: Tensors) -> torch.Tensor:
    """What is minimised: the sum of the tasks' means."""
    return torch.stack([loss.mean() for loss in losses]).sum()


def step_of(losses_of: LossesOf) -> Step:
    """What gives the losses of a batch, and leaves the gradients of the sum of their means on the weights."""

    def step(batch: Any) -> Tensors:
        losses = losses_of(batch)
        total_of(losses).backward()
        return tuple(loss.detach() for loss in losses)

    return step


def drop_gradients(weights: Iterable[torch.nn.Parameter]) -> None:
    """Forget the gradients of ``weights``."""
    for weight in weights:
        weight.grad = None


def must_be_on_a_gpu(tensor: torch.Tensor) -> None:
    """RuntimeError where a CUDA graph would not see ``tensor``: it would hold nothing, without a word."""
    if tensor.device.type != "cuda":
        raise RuntimeError(f"a CUDA graph needs tensors on a GPU, these are on {tensor.device}")


def relative_error(found: torch.Tensor, true: torch.Tensor) -> float:
    """The 2-norm of the difference over that of ``true``: 0 where both are zero, infinite where it is no number."""
    difference, size = (found - true).float().norm().item(), true.float().norm().item()
    if difference == 0:
        return 0.0
    error = difference / size if size else math.inf
    return math.inf if math.isnan(error) else error
