"""What every launch needs to know about the place it runs in."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from triton import knobs


def is_interpreted() -> bool:
    """Whether kernels run in Triton's CPU interpreter (``TRITON_INTERPRET=1`` before triton was imported)."""
    return bool(knobs.runtime.interpret)


def on_device_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager[object]:
    """Make the tensor's device current for a launch; nothing to do for CPU tensors in the interpreter."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def device_reason(name: str, tensor: torch.Tensor) -> str | None:
    """Why no kernel can be launched on this tensor's device, or None."""
    if tensor.is_cuda or is_interpreted():
        return None
    return f"{name} is on {tensor.device}; the kernel needs a CUDA device"


@dataclass(frozen=True)
class CompileCase:
    """One launch variant that continuous integration compiles ahead of time, without a GPU.

    ``signature`` maps argument names to Triton type strings (``*bf16``, ``i64``, ``fp32``); ``constexprs`` holds the
    compile-time arguments; ``options`` the launch options (``num_warps``, ``enable_fp_fusion``). Cards below
    ``lowest_capability`` (80: sm_80) are not compiled for.
    """

    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    options: Mapping[str, Any]
    lowest_capability: int = 80
