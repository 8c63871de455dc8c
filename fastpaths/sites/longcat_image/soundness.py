"""Whether a transformer is still the plain one that the rewritten blocks reproduce: asked at mount and at every call.

Adapters replace linears, offloading and caching hook modules, quantisation changes weights: each would be bypassed by
code that reads ``module.weight`` itself, so each makes the rewrite decline, by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

BLOCK_DTYPES = (torch.bfloat16, torch.float32)
PROCESSOR = "LongCatImageAttnProcessor"
PLAIN_CLASSES = {
    "Linear",
    "LayerNorm",
    "RMSNorm",
    "SiLU",
    "GELU",
    "Dropout",
    "ModuleList",
    "FeedForward",
    "AdaLayerNormZero",
    "AdaLayerNormZeroSingle",
    "AdaLayerNormContinuous",
    "LongCatImageAttention",
    "LongCatImageTransformerBlock",
    "LongCatImageSingleTransformerBlock",
}


@dataclass(frozen=True)
class _Seat:
    """One module where its parent holds it."""

    name: str
    siblings: dict[str, nn.Module | None]
    key: str
    module: nn.Module


@dataclass(frozen=True)
class _Weight:
    """One parameter where its module holds it, and the memory it had."""

    name: str
    parameters: dict[str, nn.Parameter | None]
    key: str
    address: int


class Soundness:
    """What the rewritten blocks rely on, written down once and compared cheaply at every call."""

    def __init__(self, transformer: Any) -> None:
        self._seats = tuple(
            _Seat(f"{parent_name}.{key}", parent._modules, key, module)
            for parent_name, parent in rewritten_modules(transformer)
            for key, module in parent._modules.items()
            if module is not None
        )
        self._roots = tuple((name, module) for name, module in _blocks(transformer))
        self._weights = tuple(
            _Weight(f"{name}.{key}", module._parameters, key, parameter.data_ptr())
            for name, module in rewritten_modules(transformer)
            for key, parameter in module._parameters.items()
            if parameter is not None
        )

    def addresses(self) -> tuple[int, ...]:
        """Where the weights lie: what a captured graph has baked in."""
        return tuple(weight.address for weight in self._weights)

    def change(self) -> str | None:
        """What is no longer as it was at mount, or None."""
        for name, module in self._roots:
            if is_hooked(module):
                return f"{name} has a hook or another forward"
        for seat in self._seats:
            if seat.siblings.get(seat.key) is not seat.module:
                return f"{seat.name} was replaced by {type(seat.siblings.get(seat.key)).__name__}"
            if is_hooked(seat.module):
                return f"{seat.name} has a hook or another forward"
        for weight in self._weights:
            parameter = weight.parameters.get(weight.key)
            if parameter is None or parameter.data_ptr() != weight.address:
                return f"{weight.name} has moved since mounting; mount again"
        return None


def reject_reason(transformer: Any) -> str | None:
    """Why the blocks of this transformer cannot be rewritten, naming the module; None if they can."""
    for name, module in rewritten_modules(transformer):
        reason = _module_reason(name, module)
        if reason is not None:
            return reason
    dtypes = {parameter.dtype for parameter in transformer.parameters()}
    if len(dtypes) != 1 or not dtypes <= set(BLOCK_DTYPES):
        seen = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return f"weights are {seen}; the rewritten blocks need bfloat16 or float32 throughout"
    devices = {parameter.device for parameter in transformer.parameters()}
    if len(devices) != 1 or "meta" in {device.type for device in devices}:
        return f"weights are on {', '.join(sorted(map(str, devices)))}; the rewritten blocks need one device"
    return None


def is_replaced(module: nn.Module) -> bool:
    """Whether something stands in for the module's own forward."""
    return "forward" in module.__dict__


def is_hooked(module: nn.Module) -> bool:
    """Whether calling the module does anything besides its class's own forward."""
    return bool("forward" in module.__dict__ or module._forward_hooks or module._forward_pre_hooks)


def rewritten_modules(transformer: Any) -> Iterator[tuple[str, nn.Module]]:
    """Every module whose arithmetic the rewrite takes over, by its name in the transformer."""
    for block_name, block in _blocks(transformer):
        for name, module in block.named_modules():
            yield f"{block_name}.{name}".rstrip("."), module


def _blocks(transformer: Any) -> Iterator[tuple[str, Any]]:
    for index, block in enumerate(transformer.transformer_blocks):
        yield f"transformer_blocks.{index}", block
    for index, block in enumerate(transformer.single_transformer_blocks):
        yield f"single_transformer_blocks.{index}", block
    yield "norm_out", transformer.norm_out
    yield "x_embedder", transformer.x_embedder
    yield "proj_out", transformer.proj_out


def _module_reason(name: str, module: Any) -> str | None:
    kind = type(module).__name__
    if is_hooked(module):
        return f"{name} has a hook or another forward, which the rewritten blocks would pass by"
    if module.training and kind == "Dropout":
        return f"{name} is in training mode"
    if kind == "LongCatImageAttention":
        return _attention_reason(name, module)
    if kind == "Linear" and (type(module) is not nn.Linear or module.bias is None):
        return f"{name} is not a plain Linear with bias"
    if kind == "GELU" and getattr(module, "approximate", "") != "tanh":
        return f"{name} is GELU({getattr(module, 'approximate', '')!r}), the rewritten blocks need tanh"
    if kind not in PLAIN_CLASSES:
        return f"{name} is {kind}, which the rewritten blocks do not know (an adapter or a quantised layer?)"
    return None


def _attention_reason(name: str, attention: Any) -> str | None:
    if attention.fused_projections:
        return f"{name} has fused projections; call unfuse_qkv_projections() first"
    if type(attention.processor).__name__ != PROCESSOR:
        return f"{name}.processor is {type(attention.processor).__name__}, the rewritten blocks need {PROCESSOR}"
    if attention.processor._parallel_config is not None:
        return f"{name}.processor runs in parallel over several devices"
    return None
