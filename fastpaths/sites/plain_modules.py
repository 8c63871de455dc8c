"""What every rewrite of blocks asks of modules and weights when it is mounted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from fuseproof.fastpaths.replacements import Replacement, runs_its_own

OWN_FAST_PATH = "a fast path of your own"
BLOCK_DTYPES = (torch.bfloat16, torch.float32)


def is_hooked(module: nn.Module) -> bool:
    """Whether calling the module does anything besides its class's own forward."""
    return bool(not runs_its_own(module) or module._forward_hooks or module._forward_pre_hooks)


def plain_children(parent: nn.Module, names: Iterable[str]) -> frozenset[str]:
    """Those children of ``parent`` that do nothing, at any depth, besides their classes' own forwards."""
    return frozenset(name for name in names if not any(map(is_hooked, getattr(parent, name).modules())))


def modules_of_children(parent: nn.Module, names: Iterable[str]) -> Iterator[nn.Module]:
    """Every module of those children of ``parent``, at any depth."""
    for name in names:
        yield from getattr(parent, name).modules()


def hook_reason(name: str, module: nn.Module) -> str:
    """What is on a hooked module, for a rewrite that would pass it by."""
    is_own = isinstance(vars(module).get("forward"), Replacement)
    what = OWN_FAST_PATH if is_own else "a hook or another forward"
    return f"{name} has {what}, which the rewritten blocks would pass by"


def weights_reason(transformer: nn.Module, kept_in_float32: frozenset[str] = frozenset()) -> str | None:
    """Why weights of this device and dtype cannot be used by rewritten blocks; None if they can.

    ``kept_in_float32`` are parts of names whose parameters may be float32 beside the others.
    """
    devices = {parameter.device for parameter in transformer.parameters()}
    if len(devices) != 1 or "meta" in {device.type for device in devices}:
        return f"weights are on {', '.join(sorted(map(str, devices)))}; the rewritten blocks need one device"
    dtypes = {
        parameter.dtype
        for name, parameter in transformer.named_parameters()
        if parameter.dtype != torch.float32 or kept_in_float32.isdisjoint(name.split("."))
    }
    if len(dtypes) != 1 or not dtypes <= set(BLOCK_DTYPES):
        seen = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return f"weights are {seen}; the rewritten blocks need bfloat16 or float32 throughout"
    return _products_reason(dtypes.pop(), devices.pop())


def kernels_reason(weight: torch.Tensor) -> str | None:
    """Why no Triton kernel can run on activations like ``weight``, whatever the blocks are; None if they may."""
    if weight.device.type != "cuda":
        return f"the model is on {weight.device}; Triton kernels need a CUDA device"
    if weight.dtype != torch.bfloat16:
        return f"weights are {str(weight.dtype).removeprefix('torch.')}; the kernels need bfloat16"
    return None


def _products_reason(dtype: torch.dtype, device: torch.device) -> str | None:
    """Seen on an H200 (torch 2.11): which tile the library takes for a wider fp32 matrix changes the order of a sum."""
    if device.type == "cuda" and dtype != torch.bfloat16:
        return (
            f"weights are {str(dtype).removeprefix('torch.')}; on CUDA, float32 products of packed weights have other "
            "bits, so the rewritten blocks need bfloat16 there"
        )
    return None
