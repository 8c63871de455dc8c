"""Why a tensor argument does not fit a kernel: the checks that every ``reject_reason`` is made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch

ALIGNMENT_BYTES = 16
"""One vector load. aten's vectorized kernels ask for no more, so an aligned tensor takes the same path there."""
LARGEST_OFFSET = 2**31 - 1
"""Offsets within one row are 32-bit; row and batch offsets are 64-bit."""


def tensor_reason(
    name: str,
    tensor: torch.Tensor,
    shape: Sequence[int],
    dtype: torch.dtype = torch.bfloat16,
    device: torch.device | None = None,
    alignment: int = ALIGNMENT_BYTES,
) -> str | None:
    """The first thing about ``tensor`` that a kernel cannot take, as one sentence, or None.

    Checks dtype, shape, device (where one is given), a contiguous last dimension and an address aligned to
    ``alignment`` bytes, 16 unless said.
    """
    if tensor.dtype != dtype:
        return f"{name} is {_plain(tensor.dtype)}; the kernel needs {_plain(dtype)}"
    if tuple(tensor.shape) != tuple(shape):
        return f"{name} has shape {list(tensor.shape)}; the kernel needs {list(shape)}"
    if device is not None and tensor.device != device:
        return f"{name} is on {tensor.device}; the other tensors are on {device}"
    if tensor.ndim and tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        return f"{name} has strides {list(tensor.stride())}; the kernel needs a contiguous last dimension"
    if tensor.data_ptr() % alignment:
        past = tensor.data_ptr() % alignment
        return f"{name} starts {past} bytes past a {alignment}-byte address; the kernel needs 0"
    return None


def output_reason(name: str, tensor: torch.Tensor | None, like: torch.Tensor, shape: Sequence[int]) -> str | None:
    """As :func:`tensor_reason`, for an optional output next to ``like``; two indices may not share an element."""
    if tensor is None:
        return None
    reason = tensor_reason(name, tensor, shape, like.dtype, like.device)
    if reason is None and any(size > 1 and step == 0 for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
        return f"{name} has strides {list(tensor.stride())}; an output needs its own memory for every element"
    return reason


def dimensions_reason(name: str, tensor: torch.Tensor, names: str) -> str | None:
    """Whether ``tensor`` has the dimensions ``names`` ("B S N"), none of them empty."""
    wanted = names.split()
    if tensor.ndim != len(wanted):
        return f"{name} has {tensor.ndim} dimensions; the kernel needs {len(wanted)}: [{', '.join(wanted)}]"
    if tensor.numel() == 0:
        return f"{name} has shape {list(tensor.shape)}; the kernel needs at least one element"
    return None


def first_of(*reasons: str | None) -> str | None:
    """The first reason that is one."""
    return next((reason for reason in reasons if reason is not None), None)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
