"""Values taken over from an arm's dump: plain JSON, finite, not too deep, redacted. An arm may be anybody's program."""

from __future__ import annotations

import math
from typing import Any

from fuseproof.harness.machine.redaction import redact

DEEPEST = 12
"""Our own dumps are five deep."""


class ForeignValueError(Exception):
    """What a dump holds that cannot be kept, in words that follow the name of the place."""


def kept(value: Any, place: str, depth: int = 0) -> Any:
    """A copy of ``value`` that strict JSON can hold, with secrets removed from keys and texts.

    ``place`` names it in errors, for example ``fastpaths.sites``. Raises :class:`ForeignValueError` for a number that
    is not finite and for nesting deeper than :data:`DEEPEST`.
    """
    if depth > DEEPEST:
        raise ForeignValueError(f"{place} is nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        return {clean_text(str(key)): kept(item, f"{place}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [kept(item, f"{place}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ForeignValueError(f"{place} is {value}, not a finite number")
    return value


def count(value: Any, place: str) -> float:
    """A counter of work: a finite number that is not negative; a missing one is 0."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise ForeignValueError(f"{place} is {value!r}, not a count")
    return value


def clean_text(text: str) -> str:
    """``text`` without secrets, and without half characters that no file can hold."""
    return redact(text.encode("utf-8", "backslashreplace").decode("utf-8"))
