"""Values of a profile's fields that :class:`Fields` does not know: whole numbers, shares, one of several words."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.perf.fields import Fields

LARGEST = 1e15
"""Thirty years in microseconds, a petabyte: what lies beyond would overflow in sums and ratios."""


def refusal(fields: Fields, name: str, problem: str) -> FuseproofError:
    """The error that names file and field."""
    return FuseproofError(f"{fields.path}: {fields.prefix}{name} {problem}.", next_step=fields.next_step)


def amount(fields: Fields, name: str) -> float:
    """A required finite number from 0 on."""
    value = fields.number(name)
    if not 0 <= value <= LARGEST:
        raise refusal(fields, name, f"is {value:g}, expected a number from 0 to {LARGEST:g}")
    return value


def optional_amount(fields: Fields, name: str) -> float | None:
    """The same, or None where the field is null."""
    return None if fields.values.get(name) is None else amount(fields, name)


def whole(fields: Fields, name: str, minimum: int = 0) -> int:
    """A required integer from ``minimum`` on; 2.0 is none."""
    fields.number(name)
    value = fields.values[name]
    if not isinstance(value, int) or not minimum <= value <= LARGEST:
        raise refusal(fields, name, f"is {value:.15g}, expected a whole number of {minimum} or more")
    return value


def optional_whole(fields: Fields, name: str) -> int | None:
    """The same, or None where the field is null."""
    return None if fields.values.get(name) is None else whole(fields, name)


def share(fields: Fields, name: str) -> float:
    """A number from 0 to 1, which rounding may miss by a millionth."""
    value = fields.number(name)
    if not 0 <= value <= 1 + 1e-6:
        raise refusal(fields, name, f"is {value:g}, expected a share from 0 to 1")
    return min(value, 1.0)


def truth(fields: Fields, name: str) -> bool:
    """A required boolean."""
    value = fields.values.get(name)
    if not isinstance(value, bool):
        raise refusal(fields, name, "must be true or false")
    return value


def one_of(fields: Fields, name: str, allowed: Collection[str]) -> str:
    """A required string that is one of ``allowed``."""
    value = fields.text(name)
    if value not in allowed:
        raise refusal(fields, name, f"is {value[:60]!r}, expected one of {', '.join(allowed)}")
    return value


def texts(fields: Fields, name: str) -> tuple[str, ...]:
    """A required list of strings."""
    found = fields.sequence(name)
    for index, value in enumerate(found):
        if not isinstance(value, str):
            raise refusal(fields, f"{name}[{index}]", "must be a string")
    return tuple(found)


def amounts(fields: Fields, name: str) -> tuple[float, ...]:
    """A list of finite numbers from 0 on; empty where the field is missing or null."""
    return tuple(amount(one, str(index)) for index, one in _elements(fields, name))


def wholes(fields: Fields, name: str) -> tuple[int, ...]:
    """The same of whole numbers."""
    return tuple(whole(one, str(index)) for index, one in _elements(fields, name))


def _elements(fields: Fields, name: str) -> Iterator[tuple[int, Fields]]:
    """Each element of a list as the one field of an object, so that errors name it."""
    for index, value in enumerate(fields.sequence(name)):
        yield index, replace(fields, values={str(index): value}, prefix=f"{fields.prefix}{name}.")


def refuse_missing(fields: Fields, names: Collection[str]) -> None:
    """Raise for the first field of ``names`` that is not there: half a file is no profile."""
    for name in names:
        if name not in fields.values:
            raise FuseproofError(f"{fields.path} has no {fields.prefix}{name}.", next_step=fields.next_step)


def refuse_not_finite(fields: Fields) -> None:
    """Raise where NaN or an infinity stands anywhere in the file, also in what is only handed on."""
    if any(isinstance(value, float) and not math.isfinite(value) for value in _values(fields.values)):
        raise FuseproofError(
            f"{fields.path} holds NaN or an infinity, which is no strict JSON.", next_step=fields.next_step
        )


def _values(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        else:
            yield value
