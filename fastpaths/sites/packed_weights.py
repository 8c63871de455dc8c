"""Whether weights can be packed (:mod:`packing`): asked once, when a mount is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

Span = tuple[int, int, str]


def packing_reason(transformer: nn.Module, linears: Iterable[nn.Linear]) -> str | None:
    """Why the weights of ``linears`` cannot be laid side by side without anybody noticing; None if they can.

    A parameter must be plain rows in memory of its own: packing makes it a view of another buffer.
    """
    named = dict(transformer.named_parameters(remove_duplicate=False))
    packed = {id(weight) for linear in linears for weight in (linear.weight, linear.bias) if weight is not None}
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
