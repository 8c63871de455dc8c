"""Option kinds that several commands share, declared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def bool_option(
    *names: str, default: bool | None = False, description: str, **extra: Any
) -> Callable[[Decorated], Decorated]:
    """A boolean in sglang's three forms: ``--flag``, ``--flag=true`` and ``--flag false``."""
    return click.option(
        *names,
        is_flag=False,
        flag_value="true",
        type=click.BOOL,
        default=default,
        metavar="[BOOL]",
        help=description,
        **extra,
    )


def json_option(description: str = "Print strict JSON on stdout instead of text.") -> Callable[[Decorated], Decorated]:
    """``--json``, on every command that prints a result."""
    return click.option("--json", "as_json", is_flag=True, help=description)
