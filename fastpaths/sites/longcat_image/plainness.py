"""What the rewritten blocks take for granted beyond their modules' kinds, asked once at mount.

Each block is compared whole with diffusers' own before it may run, but only for one set of inputs; what is known to
compute something else, or to lose something by being packed, is declined here by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.foreign_code import foreign_reason
from fuseproof.fastpaths.sites.longcat_image.linears import block_linears
from fuseproof.fastpaths.sites.longcat_image.soundness import rewritten_modules

Span = tuple[int, int, str]


def reject_reason(transformer: Any) -> str | None:
    """Why the blocks of this transformer cannot be rewritten, naming the module; None if they can."""
    return foreign_reason(rewritten_modules(transformer)) or _norm_reason(transformer) or packing_reason(transformer)


def packing_reason(transformer: Any) -> str | None:
    """Why the weights of the blocks cannot be laid side by side without anybody noticing; None if they can.

    A parameter must be plain rows in memory of its own: packing makes it a view of another buffer.
    """
    named = dict(transformer.named_parameters(remove_duplicate=False))
    packed = {id(weight) for linear in block_linears(transformer) for weight in (linear.weight, linear.bias)}
    first: dict[int, str] = {}
    for name, weight in named.items():
        other = first.setdefault(id(weight), name)
        if id(weight) not in packed:
            continue
        if other != name:
            return f"{name} is tied to {other}; packed weights cannot be"
        reason = _weight_reason(weight)
        if reason is not None:
            return f"{name} {reason}"
    return _overlap_reason(named, packed)


def _weight_reason(weight: torch.Tensor) -> str | None:
    if type(weight) is not nn.Parameter or type(weight.data) is not torch.Tensor:
        return f"is a {type(weight.data).__name__}; packed weights are plain tensors"
    if not weight.is_contiguous() and not _is_of_a_skeleton(weight):
        return f"has strides {weight.stride()}; packed weights are contiguous"
    if weight.is_inference():
        return "was made under inference_mode, where nobody counts writes"
    if weight.device.type == "cpu" and weight.is_shared():
        return "lies in memory that processes share; packing would part them"
    return None


def _is_of_a_skeleton(weight: torch.Tensor) -> bool:
    """One element of memory stands for the whole weight where mounting is only predicted."""
    return not any(weight.stride()) and weight.untyped_storage().nbytes() == weight.element_size()


def _overlap_reason(named: dict[str, nn.Parameter], packed: set[int]) -> str | None:
    spans: dict[int, list[Span]] = {}
    is_packed = {name for name, weight in named.items() if id(weight) in packed}
    for name, weight in named.items():
        if not weight.is_meta and weight.numel():
            extent = 1 + sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
            start = weight.data_ptr()
            storage = spans.setdefault(weight.untyped_storage().data_ptr(), [])
            storage.append((start, start + extent * weight.element_size(), name))
    for (_, end, name), (start, _, other) in _neighbours(spans.values()):
        if start < end and {name, other} & is_packed:
            return f"{other} shares memory with {name}; packed weights cannot"
    return None


def _neighbours(storages: Iterable[list[Span]]) -> Iterator[tuple[Span, Span]]:
    """Pairs of (the span that reaches furthest so far, the next one), by address."""
    for spans in storages:
        ordered = sorted(spans)
        furthest = ordered[0]
        for span in ordered[1:]:
            yield furthest, span
            furthest = max(furthest, span, key=lambda known: known[1])


def _norm_reason(transformer: Any) -> str | None:
    for name, module in rewritten_modules(transformer):
        if isinstance(module, nn.LayerNorm) and module.weight is not None:
            return f"{name} has a weight; the rewritten blocks' LayerNorms have none"
    for name, norms in _same_eps(transformer):
        values = [norm.eps for norm in norms]
        if None in values or len(set(values)) != 1:
            return f"eps of {name} are {', '.join(map(str, values))}; the rewritten blocks need one value"
    return None


def _same_eps(transformer: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Norms that one pass takes with one ``eps``."""
    for index, block in enumerate(transformer.transformer_blocks):
        path, attention = f"transformer_blocks.{index}", block.attn
        yield f"{path}.norm1 and norm1_context", (block.norm1.norm, block.norm1_context.norm)
        yield f"{path}.norm2 and norm2_context", (block.norm2, block.norm2_context)
        norms = (attention.norm_q, attention.norm_k, attention.norm_added_q, attention.norm_added_k)
        yield f"{path}.attn.norm_q, norm_k, norm_added_q and norm_added_k", norms
    for index, block in enumerate(transformer.single_transformer_blocks):
        path = f"single_transformer_blocks.{index}"
        yield f"{path}.attn.norm_q and norm_k", (block.attn.norm_q, block.attn.norm_k)
