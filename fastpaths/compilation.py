"""Functions that torch.compile must not look into."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def outside_of_compilation(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """``function``; called where torch.compile traces, it breaks the graph, and nothing of it is compiled.

    The compiler is asked then and not here: its own decorator would import it.
    """

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        if torch.compiler.is_compiling():
            disabled: Callable[Parameters, Result] = torch.compiler.disable(function)
            return disabled(*args, **kwargs)
        return function(*args, **kwargs)

    return call
