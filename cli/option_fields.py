"""Command-line options declared once, as the fields of a frozen dataclass.

``@click_options(GenerateOptions)`` turns every field made by :func:`flag`, :func:`switch` or :func:`whole` into a click
option, so that names, types, defaults and help exist in one place and the typed object is built straight from what
click parsed.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from fuseproof.cli.options import bool_option

Command = TypeVar("Command", bound=Callable[..., Any])
_DECLARATION = "fuseproof.option"


class WholeNumber(click.ParamType[int]):
    """An integer in a closed range; the error says both the value and the range."""

    name = "integer"

    def __init__(self, minimum: int, maximum: int | None = None) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Accept plain decimal digits with a sign; ``42.0``, ``1e3`` and ``true`` are refused, not rounded."""
        text = str(value).strip()
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,40}", text) else None
        if number is None or number < self.minimum or (self.maximum is not None and number > self.maximum):
            limit = (
                f"from {self.minimum} to {self.maximum}" if self.maximum is not None else f"of {self.minimum} or more"
            )
            self.fail(f"{text!r} is not a whole number {limit}.", param, ctx)
        return number


class FiniteNumber(click.ParamType[float]):
    """A float in a closed range. NaN and infinities are refused, which click's own range type lets through."""

    name = "float"

    def __init__(self, minimum: float, maximum: float | None = None) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Accept what Python's ``float`` accepts, inside the range."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        is_inside = number >= self.minimum and (self.maximum is None or number <= self.maximum)
        if not (math.isfinite(number) and is_inside):
            limit = f"from {self.minimum:g} to {self.maximum:g}" if self.maximum is not None else f">= {self.minimum:g}"
            self.fail(f"{str(value)!r} is not a finite number {limit}.", param, ctx)
        return number


class Name(click.ParamType[str]):
    """One of several names; an alias becomes the name it stands for."""

    name = "name"

    def __init__(self, *names: str, aliases: Mapping[str, str] | None = None) -> None:
        self.names = names
        self.aliases = dict(aliases or {})

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the canonical name."""
        name = self.aliases.get(value, value)
        if name not in self.names:
            self.fail(f"{str(value)!r} is not one of {', '.join((*self.names, *self.aliases))}.", param, ctx)
        return str(name)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the choices the way click shows its own."""
        return f"[{'|'.join((*self.names, *self.aliases))}]"


class PathText(click.ParamType[str]):
    """A path as text, with ``~`` as the home folder: a shell expands neither ``--flag=~/x`` nor a config file's words.

    A URL stays as it is.
    """

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Expand ``~`` and ``~user``; a user that does not exist leaves the text alone."""
        text = str(value)
        return text if "://" in text else os.path.expanduser(text)  # noqa: PTH111 (Path would turn '' into '.')


def flag(*names: str, description: str, type: Any = str, default: Any = None, **extra: Any) -> Any:  # noqa: A002
    """A dataclass field whose value comes from one command-line option."""
    option = click.option(*names, type=type, default=default, help=description, **{"show_default": True, **extra})
    return dataclasses.field(default=() if extra.get("multiple") else default, metadata={_DECLARATION: option})


def whole(*names: str, minimum: int, maximum: int | None = None, description: str, default: int | None = None) -> Any:
    """A field for an integer in a closed range."""
    return flag(*names, type=WholeNumber(minimum, maximum), default=default, description=description)


def switch(*names: str, description: str, default: bool | None = False) -> Any:
    """A field for a boolean in sglang's forms: ``--flag``, ``--flag=true``, ``--flag false``."""
    option = bool_option(*names, default=default, description=description, show_default=default is not None)
    return dataclasses.field(default=default, metadata={_DECLARATION: option})


def click_options(options_class: type) -> Callable[[Command], Command]:
    """Decorate a command with one click option per declared field, in the order of the fields."""

    def decorate(command: Command) -> Command:
        for field in reversed(dataclasses.fields(options_class)):
            if _DECLARATION in field.metadata:
                command = field.metadata[_DECLARATION](command)
        return command

    return decorate


def flag_name(field_name: str) -> str:
    """``num_gpus`` -> ``--num-gpus``, for messages."""
    return "--" + field_name.replace("_", "-")
