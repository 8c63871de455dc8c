"""The tensors in a call's arguments or results, each with a name: ``hidden_states``, ``image_rotary_emb[0]``."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

DEEPEST = 4


def named_tensors(value: Any, name: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of nested tuples, lists, mappings and dataclasses; what is nested deeper than that is left alone."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth < DEEPEST:
        for part, inner in _parts(value):
            place = f"{name}[{part}]" if isinstance(part, int) else f"{name}.{part}" if name else str(part)
            yield from named_tensors(inner, place, depth + 1)


def argument_tensors(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a call by the names of ``function``'s parameters, ``self`` left out."""
    found = []
    for name, value in zip(parameter_names(function, len(args)), args, strict=False):
        found += list(named_tensors(value, name))
    for name, value in kwargs.items():
        found += list(named_tensors(value, name))
    return found


def result_tensors(result: Any) -> list[tuple[str, torch.Tensor]]:
    """The tensors of a result; a lone one is called ``output``."""
    if isinstance(result, torch.Tensor):
        return [("output", result)]
    return list(named_tensors(result, "output"))


def _parts(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, tuple | list):
        return list(enumerate(value))
    if isinstance(value, Mapping):
        return list(value.items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return []


def parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of ``function``'s first ``count`` parameters, ``self`` left out; numbers where it has no more."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [one.name for one in parameters if one.kind is not one.VAR_POSITIONAL and one.name not in ("self", "args")]
    return names + [f"argument {index}" for index in range(len(names), count)]
