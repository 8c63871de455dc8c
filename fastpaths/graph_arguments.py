"""One form for calls that say the same: a key must not tell ``f(x)`` from ``f(x=x)`` or from a default spelled out."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from fuseproof.fastpaths.graph_values import CONSTANTS

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
VARIADIC = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.VAR_KEYWORD,
)


class CallForm:
    """The arguments of ``function`` by name, defaults included, in alphabetical order.

    Where the function does not say its parameters, or a call does not fit them, positions are kept.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = _parameters(function)
        self._names = tuple(parameters)
        self._defaults = {
            name: parameter.default
            for name, parameter in parameters.items()
            if type(parameter.default) in (*CONSTANTS, float)
        }
        self._positional = tuple(
            name for name, parameter in parameters.items() if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        )

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """``args`` and ``kwargs`` in the one form; calling the function with them is the same call."""
        placed = self._positional[: len(args)]
        fits = len(placed) == len(args) and not kwargs.keys() & set(placed) and kwargs.keys() <= set(self._names)
        if not fits:
            return args, dict(sorted(kwargs.items()))
        named = {**self._defaults, **dict(zip(placed, args, strict=True)), **kwargs}
        return (), dict(sorted(named.items()))


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        parameters = dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return {}
    return {} if any(parameter.kind in VARIADIC for parameter in parameters.values()) else parameters
