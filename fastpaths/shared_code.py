"""Code that all of a process shares: whether a file of sites has changed any of it, for everybody else as well.

Where two arms run in one process, a file that puts its own ``forward`` on ``torch.nn.Linear``, at its import or at its
fifth call, changes the other arm too, and their outputs agree for that reason alone. What is compared: functions and
classes of the libraries' loaded modules, by identity and code; torch's global hooks, function modes, dispatcher entries
and settings; what lies on the modules of the model. Not seen: compiled code that is patched in memory, weights,
environment variables, and whatever a library keeps in a table of its own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_modules

from fuseproof.fastpaths.torch_settings import SETTINGS

LIBRARIES = frozenset(
    {"builtins", "time", "math", "random", "hashlib", "torch", "diffusers", "transformers", "numpy", "PIL", "fuseproof"}
)
"""Whose code an arm runs, or is timed and hashed by."""
HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_parameter_registration_hooks",
)
OWN_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
Place = tuple[int, str]
"""The identity of a module or class, and the name of an attribute."""
Entry = tuple[Any, Any, Any]
"""The module or class itself, so that its identity stays its own; the value; what the value runs."""


class SharedCode:
    """What the process shares at this moment; make it once all that the arms will use is loaded."""

    def __init__(self) -> None:
        self._entries = dict(_entries())
        self._owners = {owner for owner, _ in self._entries}
        self._state = _state()
        self._model: dict[str, Any] = {}
        self._pipe: Any = None

    def watch(self, pipe: Any) -> None:
        """Compare the modules of this loaded pipeline as well, from now on; None lets go of them."""
        self._pipe, self._model = pipe, dict(_model(pipe))

    def changed(self, file: Path) -> str | None:
        """The first shared thing that is not as it was, by name, or that ``file``'s code has taken; None where all is.

        Code that was loaded since is remembered, and held to that from then on.
        """
        added: dict[Place, Entry] = {}
        known = 0
        for place, entry in _entries():
            before = self._entries.get(place)
            if before is None:
                added[place] = entry
            elif entry[1] is not before[1] or entry[2] != before[2]:
                if not _is_the_compilers(entry[1]):
                    return _name(before[0], place[1])
                added[place] = entry
            known += before is not None
        if known < len(self._entries):
            left = dict(_entries())
            return next(_name(owner, place[1]) for place, (owner, *_) in self._entries.items() if place not in left)
        for place, (owner, value, _) in added.items():
            if place not in self._entries and self._takes_a_place(place, owner, value, file):
                return _name(owner, place[1])
        state = _state()
        found = next((name for name, value in self._state.items() if state.get(name) != value), None)
        if found is None and self._pipe is not None:
            found = _difference(self._model, dict(_model(self._pipe)))
        self._entries |= added
        self._owners |= {owner for owner, _ in added}
        return found

    def _takes_a_place(self, place: Place, owner: Any, value: Any, file: Path) -> bool:
        """Whether a new attribute hides what a class inherits, or is code of the file in a library's place."""
        hides = (
            place[0] in self._owners
            and issubclass(type(owner), type)
            and any(place[1] in vars(base) for base in owner.__mro__[1:])
        )
        code = getattr(value, "__code__", None) if isinstance(value, FunctionType) else None
        return hides or (code is not None and Path(code.co_filename) == file.absolute())


def _entries() -> Iterator[tuple[Place, Entry]]:
    """Every function and class in the namespace of a library's module, and every method of such a class."""
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in LIBRARIES or not issubclass(type(module), ModuleType):
            continue
        for attribute, value in list(vars(module).items()):
            is_class = issubclass(type(value), type)  # isinstance would ask objects that warn of being asked
            if callable(value):
                yield (id(module), attribute), (module, value, _runs(value))
            if is_class and id(value) not in seen and _library(value) in LIBRARIES:
                seen.add(id(value))
                for own, method in list(vars(value).items()):
                    if callable(method) or isinstance(method, staticmethod | classmethod | property):
                        yield (id(value), own), (value, method, _runs(method))


def _is_the_compilers(value: Any) -> bool:
    """Whether a function is what torch's compiler, at its first use, puts around torch's own: it computes the same."""
    inner = inspect.unwrap(value) if isinstance(value, FunctionType) else None
    if not isinstance(inner, FunctionType):
        return False
    folder = Path(torch.__file__).parent
    return value.__code__.co_filename.startswith(str(folder / "_dynamo")) and inner.__code__.co_filename.startswith(
        str(folder)
    )


def _library(kind: type) -> str:
    return str(kind.__module__).partition(".")[0]


def _runs(value: Any) -> Any:
    """A function's code and defaults, which can be changed without another function taking its place."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    return (id(value.__code__), id(value.__defaults__)) if isinstance(value, FunctionType) else None


def _state() -> dict[str, Any]:
    """What decides how torch computes, by name."""
    found: dict[str, Any] = {f"torch's {words}": get() for words, get, _ in SETTINGS}
    for name in HOOKS:
        found[f"torch.nn's {name.strip('_').replace('_', ' ')}"] = tuple(getattr(torch_modules, name, None) or ())
    found["the function modes of torch"] = torch._C._len_torch_function_stack()
    found["the dispatch modes of torch"] = torch._C._len_torch_dispatch_stack()
    implementations = getattr(torch.library, "_impls", ())
    found["implementations of torch's own operators"] = {
        entry for entry in map(str, implementations) if entry.startswith("aten/") and not entry.endswith("/Meta")
    }
    return found


def _model(pipe: Any) -> Iterator[tuple[str, Any]]:
    """Class, callables and hooks of each module of the pipeline's models; not the hooks by which libraries listen."""
    components = getattr(pipe, "components", None)
    for component, model in (components or {}).items():
        if not isinstance(model, nn.Module):
            continue
        for name, module in model.named_modules(remove_duplicate=True):
            own = {key: value for key, value in vars(module).items() if callable(value)}
            hooks = {
                key: [hook for hook in getattr(module, key).values() if not _is_of_library(hook)] for key in OWN_HOOKS
            }
            yield ".".join(filter(None, (component, name))), {"class": type(module), **own, **hooks}


def _is_of_library(hook: Any) -> bool:
    """Whether a hook is a function of a library's own: transformers adds some at a model's first call."""
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).partition(".")[0] in LIBRARIES


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    for name in before.keys() | after.keys():
        mine, other = before.get(name, {}), after.get(name, {})
        for key in mine.keys() | other.keys():
            first, second = mine.get(key), other.get(key)
            if first is not second and not (key in OWN_HOOKS and first == second):
                return f"{key.strip('_')} of {name}"
    return None


def _name(owner: Any, attribute: str) -> str:
    where = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
    return f"{where}.{attribute}"
