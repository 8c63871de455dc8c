"""Option kinds that several commands share, declared once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Boolean(click.types.BoolParamType):
    """Click's own words for true and false, without the empty one: an unset shell variable is no decision."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Return the boolean that ``value`` says."""
        if isinstance(value, str) and (not value.strip() or self.str_to_bool(value) is None):
            self.fail(
                f"{value!r} is not a valid boolean; write true or false (also 1, 0, yes, no, on, off).", param, ctx
            )
        return super().convert(value, param, ctx)


def bool_option(
    *names: str, default: bool | None = False, description: str, **extra: Any
) -> Callable[[Decorated], Decorated]:
    """A boolean in sglang's three forms: ``--flag``, ``--flag=true`` and ``--flag false``."""
    return click.option(
        *names,
        is_flag=False,
        flag_value="true",
        type=Boolean(),
        default=default,
        metavar="[BOOL]",
        help=description,
        **extra,
    )


def json_option(description: str = "Print strict JSON on stdout instead of text.") -> Callable[[Decorated], Decorated]:
    """``--json``, on every command that prints a result."""
    return click.option("--json", "as_json", is_flag=True, help=description)
