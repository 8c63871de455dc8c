"""Something that must be dropped after every call of a method, however the call ends."""

from __future__ import annotations

import copy
import pickle
import types
from collections.abc import Callable
from typing import Any


class ResetAfter:
    """Stands in for the method ``name`` of ``owner``, and calls ``reset`` after it, also on an exception.

    The method is the class's as it is when it is called. A copy of the owner gets its own method, without us; pickling
    is refused while we are on.
    """

    def __init__(self, owner: Any, name: str, reset: Callable[[], None]) -> None:
        self._owner = owner
        self._name = name
        self._reset = reset
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(type(self._owner), self._name)(self._owner, *args, **kwargs)
        finally:
            self._reset()

    def take_off(self) -> None:
        """The class's method answers again; what somebody put over us stays."""
        if vars(self._owner).get(self._name) is self:
            delattr(self._owner, self._name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        owner = memo.get(id(self._owner))
        method = getattr(type(self._owner), self._name)
        return types.MethodType(method, copy.deepcopy(self._owner, memo) if owner is None else owner)

    def __reduce__(self) -> Any:
        raise pickle.PicklingError("fast paths are mounted on this model: unmount them before pickling it")
