"""Whether a class is torch's or diffusers' own and runs their code: asked of every module when a mount is made.

A fused form reproduces what a library's module computes. A subclass of the same name, or a ``forward`` that somebody
put on the class (as TeaCache and its like do), computes something else under the same name.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

LIBRARIES = ("torch.nn", "diffusers")
CALLS = ("forward", "__call__", "_call_impl")
"""What a call of a module, or of an attention processor, runs."""
PROCESSOR = "processor"


def foreign_reason(named_modules: Iterable[tuple[str, nn.Module]]) -> str | None:
    """The first module or processor that is not a library's own, by name and with what was found; or None."""
    known: dict[type, str | None] = {}
    for name, found in _callables(named_modules):
        kind = type(found)
        if kind not in known:
            known[kind] = _class_reason(kind)
        reason = known[kind]
        if reason is not None:
            return f"{name} {reason}"
    return None


def foreign_method_reason(owner: Any, names: Iterable[str]) -> str | None:
    """The first of these methods of ``owner`` that is not its library's own, and what was found; or None."""
    kind = type(owner)
    reason = _origin_reason(kind)
    if reason is not None:
        return reason
    for name in names:
        if name in vars(owner):
            return f"is {kind.__qualname__}, of which one {name} was replaced"
        code = _foreign_code(getattr(kind, name, None))
        if code is not None:
            return f"is {kind.__qualname__}, whose {name} was replaced (by {code})"
    return None


def _callables(named_modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, Any]]:
    for name, module in named_modules:
        yield name, module
        if PROCESSOR in vars(module):
            yield f"{name}.{PROCESSOR}", vars(module)[PROCESSOR]


def _class_reason(kind: type) -> str | None:
    reason = _origin_reason(kind)
    if reason is not None:
        return reason
    for call in CALLS:
        code = _foreign_code(getattr(kind, call, None))
        if code is not None:
            return f"is {kind.__qualname__}, whose {call} was replaced (by {code})"
    return None


def _origin_reason(kind: type) -> str | None:
    library = next((known for known in LIBRARIES if f"{kind.__module__}.".startswith(f"{known}.")), None)
    if library is None or getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        return f"is {kind.__module__}.{kind.__qualname__}, no class of torch or diffusers"
    return None


def _foreign_code(function: Any) -> str | None:
    """Where a function, or any that it wraps, was written, if that is in none of the libraries; or None."""
    while function is not None:
        code = getattr(function, "__code__", None)
        if code is None or not code.co_filename.startswith(_folders()):
            return code.co_filename if code is not None else repr(function)
        function = getattr(function, "__wrapped__", None)
    return None


def _folders() -> tuple[str, ...]:
    return tuple(_folder(library) + os.sep for library in LIBRARIES)


def _folder(library: str) -> str:
    spec = importlib.util.find_spec(library)
    return str(Path(spec.origin).parent) if spec is not None and spec.origin is not None else os.devnull
