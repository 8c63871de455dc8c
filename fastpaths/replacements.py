"""Replacing a module's ``forward`` so that it can be taken off again, whatever others did to the module meanwhile."""

from __future__ import annotations

import copy
import pickle
import types
from collections.abc import Callable
from typing import Any

Forward = Callable[..., Any]


class Replacement:
    """Stands in for ``owner.forward``. Taken off, it still answers, with the original: a hook may hold on to it.

    A copy of the owner gets the forward that it would have without us, bound to the copy; pickling is refused.
    """

    def __init__(self, owner: Any, make: Callable[[Forward], Forward]) -> None:
        self.owner = owner
        self.eager: Forward = owner.forward
        self.is_mounted = True
        self._was_own = "forward" in vars(owner)
        self._fused = make(self.eager)
        owner.forward = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._fused(*args, **kwargs) if self.is_mounted else self.eager(*args, **kwargs)

    def take_off(self) -> None:
        """Put the original back where we are still in place; elsewhere, only pass calls through from now on."""
        self.is_mounted = False
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
        raise pickle.PicklingError("fast paths are mounted on this model: unmount them before pickling it")
