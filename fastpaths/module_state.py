"""Whether a mounted model is still the one that was mounted: compared at every call, before anything fused runs.

A fused form reads weights and constants by itself and so passes by everything that makes a module compute something
else: an adapter, a hook, another processor, a changed ``eps``, a patched class. No list of such things is complete, so
none is kept: all attributes of all modules must be what they were when the mount was done (decision 0011).
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.foreign_code import CALLS

HOOKS = frozenset({"_forward_hooks", "_forward_pre_hooks"})
ROOT_MAY_CHANGE = HOOKS | {"forward", "_diffusers_hook", "_fuseproof_mount"}
"""What works around the whole model's call, not within it, and what diffusers and a mount note down there."""
NEVER_READ = frozenset(
    {
        "_backward_hooks",
        "_backward_pre_hooks",
        "_forward_hooks_always_called",
        "_forward_hooks_with_kwargs",
        "_forward_pre_hooks_with_kwargs",
        "_load_state_dict_post_hooks",
        "_load_state_dict_pre_hooks",
        "_non_persistent_buffers_set",
        "_state_dict_hooks",
        "_state_dict_pre_hooks",
    }
)
"""Registries without part in a forward that records no gradients, or that say how the hooks of another one run."""
PROCESSOR = "processor"
CONTAINERS = (dict, list, set)
LAYOUT: tuple[Any, ...] = (
    torch.Tensor.data_ptr,
    torch.Tensor.stride,
    torch.Tensor.shape.__get__,
    torch.Tensor.dtype.__get__,
)


class Snapshot:
    """All that decides what ``root`` computes, but for the values of its weights; made when the mount is done.

    Compared: the attributes of every module and attention processor, with the dictionaries, lists and sets in them;
    every class, and its ``forward`` and ``__call__``; the functions of ``namespaces`` (Python modules); and where the
    parameters of ``fixed`` modules lie, with shape, strides and dtype. Hooks on ``hookable`` modules may come and go.
    """

    def __init__(
        self,
        root: nn.Module,
        fixed: Iterable[tuple[str, nn.Module]] = (),
        namespaces: Iterable[types.ModuleType] = (),
        hookable: Iterable[nn.Module] = (),
    ) -> None:
        self._root = root
        self._names, self._modules = zip(*root.named_modules(), strict=True)
        self._processors = [(name, found) for name, found in self._attributes(PROCESSOR) if hasattr(found, "__dict__")]
        self._holders: list[Any] = [*self._modules[1:], *(processor for _, processor in self._processors)]
        self._attributes_then = [dict(vars(holder)) for holder in self._holders]
        self._root_then = self._root_attributes()
        may_change = {root: ROOT_MAY_CHANGE, **dict.fromkeys(hookable, HOOKS)}
        self._containers = [
            found
            for holder in (root, *self._holders)
            for found in _containers_of(holder, may_change.get(holder, frozenset()))
        ]
        self._contents_then = [_copied(container) for container in self._containers]
        self._types_then = list(map(type, self._modules))
        self._code = list(_code_of({*self._types_then, *(type(found) for _, found in self._processors)}))
        self._code_then = [getattr(owner, name, None) for owner, name in self._code]
        self._functions = [(vars(space), name) for space in namespaces for name in _functions_in(space)]
        self._functions_then = [space.get(name) for space, name in self._functions]
        self._fixed = [(name, module._parameters) for name, module in fixed if module._parameters]
        self._layouts_then = self._layouts()
        self._addresses = tuple(self._layouts_then[0])

    def addresses(self) -> tuple[int, ...]:
        """Where the fixed parameters lie: what a captured graph has baked in."""
        return self._addresses

    def change(self) -> str | None:
        """The first thing that is not as it was, by module and attribute; None where all is."""
        try:
            # All attributes at once, in C: a value that is the very same object is never looked into.
            if (
                list(map(vars, self._holders)) == self._attributes_then
                and self._containers == self._contents_then
                and self._root_attributes() == self._root_then
                and list(map(type, self._modules)) == self._types_then
                and [getattr(owner, name, None) for owner, name in self._code] == self._code_then
                and [space.get(name) for space, name in self._functions] == self._functions_then
                and self._layouts() == self._layouts_then
            ):
                return None
        except Exception:  # noqa: BLE001 - a value that cannot be compared, two tensors for instance, is another value
            pass
        return self._explained()

    def _root_attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self._root).items() if name not in ROOT_MAY_CHANGE}

    def _attributes(self, key: str) -> Iterator[tuple[str, Any]]:
        for name, module in zip(self._names, self._modules, strict=True):
            if key in vars(module):
                yield _joined(name, key), vars(module)[key]

    def _layouts(self) -> tuple[list[Any], ...]:
        """Address, strides, shape and dtype of the fixed parameters, one list each; called in C for speed."""
        weights = [weight for _, parameters in self._fixed for weight in parameters.values() if weight is not None]
        return tuple(list(map(read, weights)) for read in LAYOUT)

    def _explained(self) -> str:
        for name, module, kind in zip(self._names, self._modules, self._types_then, strict=True):
            if type(module) is not kind:
                return f"{name or 'the model'} became {type(module).__name__} since the mount"
        thens = [self._root_then, *self._attributes_then]
        for (name, holder), then in zip(self._named_holders(), thens, strict=True):
            now = self._root_attributes() if holder is self._root else vars(holder)
            reason = _attribute_change(name, then, now)
            if reason is not None:
                return reason
        contents = {id(live): then for live, then in zip(self._containers, self._contents_then, strict=True)}
        for (name, _), then in zip(self._named_holders(), thens, strict=True):
            for key, value in then.items():
                reason = _content_change(name, key, value, contents)
                if reason is not None:
                    return reason
        for (owner, name), code in zip(self._code, self._code_then, strict=True):
            if _differs(getattr(owner, name, None), code):
                return f"{owner.__name__}.{name} was replaced since the mount"
        for (space, name), function in zip(self._functions, self._functions_then, strict=True):
            if _differs(space.get(name), function):
                return f"{space.get('__name__')}.{name} was replaced since the mount"
        return self._moved() or "the model changed since the mount"

    def _moved(self) -> str | None:
        known = iter(list(zip(*self._layouts_then, strict=True)))
        for name, parameters in self._fixed:
            for key, weight in parameters.items():
                if weight is None:
                    continue
                address, *layout = next(known, (None,))
                if weight.data_ptr() != address:
                    return f"{_joined(name, key)} has moved since mounting; mount again"
                if [weight.stride(), weight.shape, weight.dtype] != layout:
                    return f"{_joined(name, key)} has another layout since the mount"
        return None

    def _named_holders(self) -> Iterator[tuple[str, Any]]:
        yield from zip(self._names, self._modules, strict=True)
        yield from self._processors


class Guard:
    """Answers, before anything fused runs, whether this call may: sealed when the mount's own replacements are in."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None

    def seal(self, snapshot: Snapshot) -> None:
        """Every call is compared with ``snapshot`` from now on."""
        self._snapshot = snapshot

    def reason(self) -> str | None:
        """Why this call must be eager as a whole, or None."""
        around = call_reason()
        if around is not None or self._snapshot is None:
            return around or "the mount is not done yet"
        return self._snapshot.change()

    def addresses(self) -> tuple[int, ...]:
        """Where the fixed parameters lie: what a captured graph has baked in."""
        return self._snapshot.addresses() if self._snapshot is not None else ()


def call_reason() -> str | None:
    """What around this call makes torch do something else than the modules say; None where nothing does."""
    registries = nn.modules.module
    if registries._global_forward_hooks or registries._global_forward_pre_hooks:
        return "a hook for all modules is registered (torch.nn.modules.module)"
    for index in range(torch._C._len_torch_function_stack()):
        mode = torch._C._get_function_stack_at(index)
        if type(mode) is not torch.utils._device.DeviceContext:
            return f"the torch function mode {type(mode).__name__} is active"
    if torch._C._len_torch_dispatch_stack():
        return "a torch dispatch mode is active"
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return "a torch.func transform (vmap, grad, ...) is active"
    if torch._C._get_tracing_state() is not None:
        return "torch.jit is tracing"
    return None


def _containers_of(holder: Any, may_change: frozenset[str]) -> Iterator[Any]:
    for key, value in vars(holder).items():
        if key not in NEVER_READ and key not in may_change:
            yield from _nested(value)


def _nested(value: Any) -> Iterator[Any]:
    if not isinstance(value, CONTAINERS):
        return
    yield value
    for part in value.values() if isinstance(value, dict) else value:
        yield from _nested(part)


def _copied(container: Any) -> Any:
    """Of the plain kind, which compares equal to its subclasses; OrderedDict would compare order, slowly."""
    return next(kind(container) for kind in CONTAINERS if isinstance(container, kind))


def _code_of(classes: Iterable[type]) -> Iterator[tuple[type, str]]:
    yield from ((owner, name) for owner in classes for name in CALLS if hasattr(owner, name))


def _functions_in(space: types.ModuleType) -> list[str]:
    kinds = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
    return [name for name, value in vars(space).items() if isinstance(value, kinds)]


def _attribute_change(name: str, then: dict[str, Any], now: dict[str, Any]) -> str | None:
    for key in {**then, **now}:
        if key in then and key in now and not _differs(then[key], now[key]):
            continue
        if key == "forward":
            return f"{name} has a hook or another forward since the mount"
        return f"{_joined(name, key)} changed since the mount"
    return None


def _content_change(name: str, key: str, value: Any, contents: dict[int, Any]) -> str | None:
    for container in _nested(value):
        then = contents.get(id(container), container)
        if not _differs(container, then):
            continue
        if key in HOOKS:
            return f"{name} has a hook or another forward since the mount"
        if key == "_modules":
            return _seat_change(name, then, container)
        if isinstance(container, dict) and container is value and key.startswith("_"):
            return _attribute_change(name, then, container)
        return f"{_joined(name, key)} changed since the mount"
    return None


def _seat_change(name: str, then: dict[str, Any], now: dict[str, Any]) -> str | None:
    for key in {**then, **now}:
        if then.get(key) is now.get(key):
            continue
        if key not in then:
            return f"{_joined(name, key)} was added since the mount"
        if key not in now:
            return f"{_joined(name, key)} was taken out since the mount"
        return f"{_joined(name, key)} was replaced by {type(now[key]).__name__}"
    return None


def _differs(a: Any, b: Any) -> bool:
    try:
        return not (a is b or [a] == [b])
    except Exception:  # noqa: BLE001 - as in Snapshot.change
        return True


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
