"""What tells a reader one call from another: shapes, and where those are the same, the arguments that differ."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from fuseproof.fastpaths.call_layouts import CallLayout, Place
from fuseproof.fastpaths.families import kernel_module
from fuseproof.fastpaths.tracing import SiteCall


def shapes_text(layout: CallLayout) -> str:
    """The shapes of the first two tensors, which tell a reader which call it is."""
    shapes = ["x".join(map(str, place.shape)) or "scalar" for _, place in layout.places()]
    return ", ".join(shapes[:2]) + (f" and {len(shapes) - 2} more" if len(shapes) > 2 else "")


def distinct_texts(calls: Sequence[SiteCall]) -> list[str]:
    """As :func:`shapes_text`, one a call; where calls of one operation share it, what differs among them is added."""
    alike: dict[tuple[str, str, str], list[SiteCall]] = {}
    for call in calls:
        alike.setdefault(_looks(call), []).append(call)
    return [_text(call, alike[_looks(call)]) for call in calls]


def _looks(call: SiteCall) -> tuple[str, str, str]:
    return call.site, call.layout.operation, shapes_text(call.layout)


def _text(call: SiteCall, alike: Sequence[SiteCall]) -> str:
    described = [_described(other) for other in alike]
    own = _described(call)
    differing = [name for name in own if any(other.get(name) != own[name] for other in described)]
    said = ", ".join(f"{name} {own[name]}" for name in differing)
    return shapes_text(call.layout) + (f" ({said})" if said else "")


def _described(call: SiteCall) -> dict[str, str]:
    """Each argument in words, by its parameter's name."""
    values = call.layout.arguments
    names = [f"argument {index}" for index in range(len(values))]
    if call.module is None:
        parameters = list(inspect.signature(kernel_module(call.layout.operation).reference).parameters)
        names = [*parameters, *names[len(parameters) :]][: len(values)]
    described = {name: _value_text(value) for name, value in zip(names, values, strict=True)}
    described |= {
        f"{name} in": str(value.dtype).removeprefix("torch.")
        for name, value in zip(names, values, strict=True)
        if isinstance(value, Place)
    }
    return described | {f"{name}=": _value_text(value) for name, value in call.layout.keywords}


def _value_text(value: Any) -> str:
    if isinstance(value, Place):
        is_last = len(value.shape) in (4, 5) and value.strides[1] == 1 < value.shape[1]
        order = "channels-last" if is_last else value.strides
        return f"{'x'.join(map(str, value.shape))} {order}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_value_text, value))})"
    return "none" if value is None else str(value)
