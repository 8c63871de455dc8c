"""What a reader calls the calls of a task: their tensors by name, and what tells two that look alike from each other.

``1024x1024: residual, update 1x4608x3072; gate 1x3072; text_rows 512; out=``
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

from fuseproof.fastpaths.call_layouts import CallLayout, Place
from fuseproof.fastpaths.families import kernel_module

INERT = " '.+-"


def distinct_names(layouts: Sequence[CallLayout], workloads: Sequence[str]) -> list[str]:
    """One name a call of one kernel, no two alike: the workload, each tensor's shape, numbers, and whatever differs."""
    plain = [f"{workload}: {_text(layout)}" for layout, workload in zip(layouts, workloads, strict=True)]
    described = [dict(_arguments(layout)) for layout in layouts]
    names = []
    for place, name in enumerate(plain):
        alike = [other for other, text in zip(described, plain, strict=True) if text == name]
        own = described[place]
        differing = [one for one in own if any(other.get(one) != own[one] for other in alike)]
        said = "; ".join(f"{one} {value_text(own[one])}" for one in differing)
        names.append(f"{name} ({said})" if said else name)
    return names


def value_text(value: Any) -> str:
    """A tensor as shape, dtype, strides and place; anything else as Python writes it, texts without any markup."""
    if isinstance(value, tuple):
        return ", ".join(map(value_text, value))
    if not isinstance(value, Place):
        return _plain(value)
    where = f", from element {value.offset}" if value.offset else ""
    return f"{_shape(value)} {dtype_text(value)}, strides {list(value.strides)}, block {value.memory}{where}"


def dtype_text(place: Place) -> str:
    """``bfloat16``."""
    return str(place.dtype).removeprefix("torch.")


def _text(layout: CallLayout) -> str:
    """Neighbours of one shape share it; ``None`` is not told."""
    groups: list[tuple[str, list[str]]] = []
    for name, value in _arguments(layout):
        said = _short(value)
        if value is None:
            continue
        if groups and groups[-1][0] == said:
            groups[-1][1].append(name)
        else:
            groups.append((said, [name]))
    return "; ".join(f"{', '.join(names)} {said}" for said, names in groups)


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"
    return _shape(value) if isinstance(value, Place) else _plain(value)


def _plain(value: Any) -> str:
    """A capture's texts are anybody's: in Markdown and HTML they stay texts."""
    return "".join(one if one.isalnum() or one in INERT else f"&#{ord(one)};" for one in repr(value))


def _shape(place: Place) -> str:
    return "x".join(map(str, place.shape)) or "scalar"


def _arguments(layout: CallLayout) -> Iterator[tuple[str, Any]]:
    parameters = [*inspect.signature(kernel_module(layout.operation).reference).parameters]
    for place, value in enumerate(layout.arguments):
        yield (parameters[place] if place < len(parameters) else f"argument {place}"), value
    yield from ((f"{name}=", value) for name, value in layout.keywords)
