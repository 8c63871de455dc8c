"""Whether a transformer is the plain one that the rewritten blocks reproduce: asked at mount.

Adapters replace linears, offloading and caching hook modules, quantisation changes weights: each would be bypassed by
code that reads ``module.weight`` itself, so each makes the rewrite decline, by name. That it stays so is what
:mod:`fuseproof.fastpaths.module_state` compares at every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from fuseproof.fastpaths.sites.plain_modules import (
    hook_reason,
    is_hooked,
    modules_of_children,
    plain_children,
    weights_reason,
)

AROUND_THE_BLOCKS = ("norm_out", "x_embedder", "proj_out")
"""Modules that the rewrite reads the weights of while they are plain, and calls where somebody has hooked them."""
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


def reject_reason(transformer: Any) -> str | None:
    """Why the blocks of this transformer cannot be rewritten, naming the module; None if they can."""
    for name, module in rewritten_modules(transformer):
        reason = _module_reason(name, module)
        if reason is not None:
            return reason
    return weights_reason(transformer)


def plain(transformer: Any) -> frozenset[str]:
    """Which of :data:`AROUND_THE_BLOCKS` do nothing besides their classes' own forwards."""
    return plain_children(transformer, AROUND_THE_BLOCKS)


def modules_around(transformer: Any) -> Iterator[nn.Module]:
    """Every module of :data:`AROUND_THE_BLOCKS`: hooks on these are heard, whenever they come."""
    return modules_of_children(transformer, AROUND_THE_BLOCKS)


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


def _is_around(name: str) -> bool:
    return name.split(".", maxsplit=1)[0] in AROUND_THE_BLOCKS


def _module_reason(name: str, module: Any) -> str | None:
    kind = type(module).__name__
    if is_hooked(module) and not _is_around(name):
        return hook_reason(name, module)
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
