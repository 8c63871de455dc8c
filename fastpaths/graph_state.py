"""What a graph of a module reads besides its inputs: where every weight lies, and which code runs on it.

Told without waiting for the device and without walking the module tree at every call: the places that hold weights and
submodules are written down once, and looked into. Counted as a change: a weight, buffer or other tensor attribute in
other memory, a submodule or attention processor replaced, a parameter added or removed, a hook or another forward on a
submodule, another mode (``train``/``eval``), another attention backend. Not a change: new values in the same memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import nn

WATCHED_ATTRIBUTES = ("training", "forward", "processor")
BACKEND_ATTRIBUTE = "_attention_backend"
"""Where diffusers' attention processors keep the backend that was chosen for them."""
NAMES_TOLD = 3

Place = tuple[str, dict[str, Any], str]
"""A name, and where its value is found: ``holder.get(key)``."""
State = tuple[int, tuple[Hashable, ...]]


class ModuleState:
    """The state of ``root`` as one comparable tuple per call. Its own hooks do not count: they run outside of it."""

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._walks = 0
        self._registries: tuple[tuple[str, dict[str, Any]], ...] = ()
        self._objects: tuple[Place, ...] = ()
        self._tensors: tuple[Place, ...] = ()
        self._processors: tuple[tuple[str, Any], ...] = ()
        self._structure: tuple[int, ...] = ()
        self._changed: list[str] = []
        self._told_by_identity: list[Any] = []

    def __call__(self) -> State:
        """How often anything but a tensor's memory has changed; then addresses, in a fixed order."""
        structure = self._read_structure()
        if not self._walks or structure != self._structure:
            self._walk(structure)
        try:
            addresses = self._read_addresses()
        except (AttributeError, KeyError):  # a tensor gave way to None, or to nothing
            self._walk(structure)
            addresses = self._read_addresses()
        backends = [getattr(processor, BACKEND_ATTRIBUTE, None) for _, processor in self._processors]
        return self._walks, (*addresses, *backends)

    def explain(self, before: State, after: State) -> str:
        """What differs between two states, by name."""
        if before[0] != after[0]:
            return f"{_listed(self._changed)} changed after capture"
        names = [*(name for name, _, _ in self._tensors), *(name for name, _ in self._processors)]
        pairs = zip(names, before[1], after[1], strict=True)
        return f"{_listed([name for name, old, new in pairs if old != new])} moved after capture"

    def _read_structure(self) -> tuple[int, ...]:
        sizes = [len(registry) for _, registry in self._registries]
        return (*sizes, *[id(holder.get(key)) for _, holder, key in self._objects])

    def _read_addresses(self) -> list[int]:
        return [holder[key].data_ptr() for _, holder, key in self._tensors]

    def _walk(self, seen: tuple[int, ...]) -> None:
        names = [*(name for name, _ in self._registries), *(name for name, _, _ in self._objects)]
        self._changed = [name for name, old, new in zip(names, self._structure, seen, strict=True) if old != new]
        self._walks += 1
        modules = list(self._root.named_modules())
        self._registries = tuple(_registries(modules))
        self._objects = tuple(_objects(modules))
        self._tensors = tuple(_tensors(modules))
        self._processors = tuple(
            (_joined(path, "processor"), vars(module)["processor"])
            for path, module in modules
            if "processor" in vars(module)
        )
        self._structure = self._read_structure()
        # What is told by identity must stay alive, or another object could be taken for it.
        self._told_by_identity = [holder.get(key) for _, holder, key in self._objects]


def _registries(modules: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, module in modules:
        own = (module._parameters, module._buffers, module._modules)
        hooks = (module._forward_hooks, module._forward_pre_hooks) if path else ()
        yield from ((path or "the model", registry) for registry in (*own, *hooks))


def _objects(modules: list[tuple[str, nn.Module]]) -> Iterator[Place]:
    for path, module in modules:
        yield from ((_joined(path, key), module._modules, key) for key in module._modules)
        yield from ((_joined(path, key), vars(module), key) for key in WATCHED_ATTRIBUTES)
        for holder in (module._parameters, module._buffers):
            yield from ((_joined(path, key), holder, key) for key, value in holder.items() if value is None)


def _tensors(modules: list[tuple[str, nn.Module]]) -> Iterator[Place]:
    for path, module in modules:
        for holder in (module._parameters, module._buffers, vars(module)):
            tensors = [key for key, value in holder.items() if isinstance(value, torch.Tensor)]
            yield from ((_joined(path, key), holder, key) for key in tensors)


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _listed(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
    return f"{', '.join(names[:NAMES_TOLD]) or 'the model'}{more}"
