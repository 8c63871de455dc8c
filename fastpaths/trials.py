"""A trial: both forms of one call, so that a gate can compare them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.fastpaths.bits import snapshot

Computation = Callable[[], Any]
FIRST_SIGHT = "at first sight"


@dataclass(frozen=True)
class Trial:
    """What came of it. ``objection`` says why ``candidate`` cannot be used, whatever its bits.

    ``fused_ms`` is the time in which the fused form was called first: compilation and launch. ``before`` is what the
    tensors held that the fused form writes.
    """

    candidate: Any
    expected: Any
    objection: str | None
    fused_ms: float
    before: Sequence[torch.Tensor] = ()


Try = Callable[[Computation, Computation, Sequence[torch.Tensor], str], Trial]
"""Runs (fused, reference, tensors that fused writes, when this is) once each, whatever the order."""


def side_by_side(
    fused: Computation, reference: Computation, writes: Sequence[torch.Tensor], when: str = FIRST_SIGHT
) -> Trial:
    """The trial of a built-in site: it writes into nothing but ``writes``, which are put back for the reference."""
    started = time.perf_counter()
    saved = [tensor.clone() for tensor in writes]
    objection, candidate = None, None
    try:
        candidate = fused()
    except Exception as error:
        if is_device_error(error):
            raise
        objection = f"{type(error).__name__} {when}: {error}"
    fused_ms = (time.perf_counter() - started) * 1e3
    if saved:
        candidate = None if objection else snapshot(candidate)
        for tensor, before in zip(writes, saved, strict=True):
            tensor.copy_(before)
    return Trial(candidate, reference(), objection, fused_ms, saved)


def is_device_error(error: BaseException) -> bool:
    """Whether the device itself failed, after which no result can be trusted, the reference's included."""
    text = str(error)
    if "CUBLAS_STATUS_NOT_SUPPORTED" in text:  # the library has no kernel for this; nothing was launched
        return False
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in text or "Triton Error [CUDA]" in text
