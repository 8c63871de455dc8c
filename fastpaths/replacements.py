"""Replacing a module's ``forward`` so that it can be taken off again, whatever others did to the module meanwhile."""

from __future__ import annotations

import copy
import functools
import pickle
import types
from collections.abc import Callable
from typing import Any

Forward = Callable[..., Any]


class Replacement:
    """Stands in for ``owner.forward``. Taken off, it still answers, with the original: a hook may hold on to it.

    The original is the class's as it is when it is called: somebody may have patched the class meanwhile. A copy of the
    owner gets the forward that it would have without us, bound to the copy; pickling is refused while we are on.
    """

    def __init__(self, owner: Any, make: Callable[[Forward], Forward]) -> None:
        self.owner = owner
        self.is_mounted = True
        self._was_own = "forward" in vars(owner)
        self.eager: Forward = owner.forward if self._was_own else _forward_of_class(owner)
        self._fused = make(self.eager)
        owner.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fused(*args, **kwargs) if self.is_mounted else self.eager(*args, **kwargs)

    def take_off(self) -> None:
        """Put the original back where we are still in place; elsewhere, only pass calls through from now on.

        Whatever the fused form held goes, whoever still holds us.
        """
        self.is_mounted = False
        self._fused = self.eager
        if vars(self.owner).get("forward") is not self:
            return
        if self._was_own:
            self.owner.forward = self.eager
        else:
            del self.owner.forward

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = memo.get(id(self.owner))
        if self._was_own or owner is None:
            return copy.deepcopy(self.eager, memo)
        return types.MethodType(type(self.owner).forward, owner)

    def __reduce__(self) -> Any:
        if not self.is_mounted and self._was_own:
            return _itself, (self.eager,)
        if not self.is_mounted:
            return types.MethodType(type(self.owner).forward, self.owner).__reduce__()
        raise pickle.PicklingError("fast paths are mounted on this model: unmount them before pickling it")


def is_replaced(module: Any) -> bool:
    """Whether a forward of somebody else's stands in for the module's own; one of ours, still on or not, is none."""
    return not isinstance(vars(module).get("forward"), Replacement) and not runs_its_own(module)


def runs_its_own(module: Any) -> bool:
    """Whether calling the module runs its class's own forward, hooks aside.

    The class's own may stand among the attributes: in a copy of a mounted module, and where a hook was taken off again.
    """
    if "forward" not in vars(module):
        return True
    forward = vars(module)["forward"]
    while isinstance(forward, Replacement) and not forward.is_mounted:
        if not forward._was_own:
            return forward.owner is module
        forward = forward.eager
    is_bound = getattr(forward, "__self__", None) is module
    return is_bound and getattr(forward, "__func__", None) is type(module).forward


def _forward_of_class(owner: Any) -> Forward:
    @functools.wraps(owner.forward)  # whoever asks for its parameters gets the class's
    def forward(*args: Any, **kwargs: Any) -> Any:
        return type(owner).forward(owner, *args, **kwargs)

    return forward


def _itself(original: Forward) -> Forward:
    return original
