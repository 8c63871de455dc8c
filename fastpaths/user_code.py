"""Calling a function of one's own: what it prints, raises, or leaves switched on stays with it.

Only Python's own ``print`` is caught; what a library writes to file descriptor 1 goes where it always went.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, NamedTuple

import torch
from torch import nn

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.bits import parts_of
from fuseproof.fastpaths.trials import is_device_error
from fuseproof.fastpaths.wording import plain_text

NEXT_STEP = "Its inputs may be spoilt, so the request ends here: mend the site, or leave it out of --fastpaths."


class UserCodeError(FuseproofError):
    """A function of a site raised. ``kind`` is the exception's type, ``detail`` its words and where it came from.

    ``is_fatal`` where nothing may go on: the device failed, or the function asked the process to exit.
    """

    def __init__(self, site: str, what: str, error: BaseException) -> None:
        place = _place(error)
        exits = isinstance(error, SystemExit)
        said = f"asked to exit with status {error.code!r}" if isinstance(error, SystemExit) else plain_text(error)
        self.kind = type(error).__name__
        self.detail = plain_text(f"{said} ({Path(place[0]).name}, line {place[1]})" if place else said)
        self.is_fatal = exits or is_device_error(error)
        where = f" in {plain_text(place[0])}, line {place[1]}" if place else ""
        super().__init__(f"site {site!r}: {what} raised {self.kind}{where}: {said}.", next_step=NEXT_STEP)


def call_quietly(
    site: str, what: str, inside: set[int], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call ``function``, which is ``what`` of ``site``: stdout goes to stderr, and the gradient mode is put back.

    ``inside`` holds this thread meanwhile. Whatever is raised, and a request to exit, is a :class:`UserCodeError`; only
    an interrupt from the keyboard passes.
    """
    records_gradients, thread = torch.is_grad_enabled(), threading.get_ident()
    stdout, sys.stdout = sys.stdout, sys.stderr  # contextlib.redirect_stdout costs a microsecond more, at every call
    inside.add(thread)
    try:
        return function(*args, **kwargs)
    except UserCodeError:  # of a site inside this one
        raise
    except (Exception, SystemExit) as error:
        raise UserCodeError(site, what, error) from error
    finally:
        inside.discard(thread)
        sys.stdout = stdout
        if torch.is_grad_enabled() != records_gradients:
            torch.set_grad_enabled(records_gradients)


class UserCall(NamedTuple):
    """One call: ``fused`` and ``reject_reason`` take ``module`` (if any), ``arguments``, ``keywords`` and ``outputs``.

    ``outputs`` are tensors that ``fused``, and nothing else, may write into. ``inside`` holds the threads that are
    running a function of the site.
    """

    site: str
    module: nn.Module | None
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    outputs: Mapping[str, torch.Tensor]
    inside: set[int]

    def of(self, what: str, function: Callable[..., Any]) -> Any:
        """Call one function of the site; see :func:`call_quietly`."""
        leading = () if self.module is None else (self.module,)
        arguments = (*leading, *self.arguments)
        return call_quietly(self.site, what, self.inside, function, *arguments, **self.keywords, **self.outputs)

    def inputs(self) -> list[tuple[int | str, torch.Tensor]]:
        """Every tensor but the outputs."""
        named: list[tuple[int | str, Any]] = [*enumerate(self.arguments), *self.keywords.items()]
        return [(name, tensor) for name, value in named for tensor in tensors_in(value)]

    def name_of(self, argument: int | str, function: Callable[..., Any]) -> str:
        """What ``function`` calls an argument."""
        if isinstance(argument, str):
            return argument
        position = argument + (self.module is not None)
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        if position < len(parameters) and parameters[position].kind in kinds:
            return parameters[position].name
        return f"number {argument + 1}"


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in a value of any kind."""
    if isinstance(value, torch.Tensor):
        yield value
    for _, part in parts_of(value) or ():
        yield from tensors_in(part)


def _place(error: BaseException) -> tuple[str, int] | None:
    """File and line, in the file of the function that was called: the last line of it that was running."""
    frames = list(_frames(error.__traceback__))
    called = next((code.co_filename for code, _ in frames if code.co_filename != __file__), None)
    lines = [line for code, line in frames if code.co_filename == called]
    return (called, lines[-1]) if called is not None else None


def _frames(trace: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lineno
        trace = trace.tb_next
