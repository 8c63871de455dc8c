"""The process-wide switches that change what the same modules compute from the same tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

import torch

FLOAT32_BACKENDS = (("cuda", "matmul"), ("mkldnn", "matmul"), ("cudnn", "conv"))


class Numerics(tuple[Hashable, ...]):
    """The settings of a process as a key holds them: equal to, and written as, the plain tuple of them."""


def numerics_of(device: torch.device) -> Hashable:
    """What a decision about modules on ``device`` depends on besides their arguments; None where nothing computes."""
    if device.type == "meta":
        return None
    from diffusers.models.attention_dispatch import _AttentionBackendRegistry

    cuda = torch.backends.cuda
    settings = (
        torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None,
        torch.get_default_dtype(),
        float32_precision(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads() if device.type == "cpu" else None,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        str(cuda.preferred_blas_library()),
        str(_AttentionBackendRegistry.get_active_backend()[0].value),
    )
    return Numerics(settings)


def float32_precision() -> Hashable:
    """How float32 products may be rounded, by torch's older switch and by its newer ones.

    torch refuses to answer the older question once a newer switch was used, and is not asked further then.
    """
    newer = tuple(_read(functools.partial(_precision_of, *names)) for names in FLOAT32_BACKENDS)
    return _read(torch.get_float32_matmul_precision), _read(lambda: torch.backends.cudnn.allow_tf32), *newer


def _precision_of(backend: str, operation: str) -> str | None:
    precision: str | None = getattr(getattr(getattr(torch.backends, backend), operation), "fp32_precision", None)
    return precision


def _read(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except RuntimeError:
        return None
