"""Triton's interpreter, sooner: which names of the language are builtins is looked up once, not in every call.

Before each call of a kernel, and of each function inside it, the interpreter walks over every member of
``triton.language`` to find the builtins that it replaces: a quarter of the time of a test of kernels.
"""

from __future__ import annotations

import inspect
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def find_builtins_once() -> None:
    """From now on the interpreter replaces the names that are builtins now; call it before any kernel runs."""
    places = (tl, tl.core, tl.core.tensor, tl.math, tl.core.tensor_descriptor_base)
    names = {place: [name for name, member in inspect.getmembers(place) if _is_builtin(member)] for place in places}

    def patch_builtin(place: Any, builder: Any, scope: Any) -> None:
        for name in names[place]:
            member = getattr(place, name)
            if _is_builtin(member):  # a call within a call finds what the outer one has replaced
                interpreter._patch_attr(place, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin


def _is_builtin(member: Any) -> bool:
    return bool(tl.core.is_builtin(member))
