"""Types of an arm's keys: where its code comes from (``ref``, ``repo``, ``setup``, ...), how its time is read."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

LONGEST_SETUP_S = 86400.0
DEFAULT_SETUP_S = 3600.0
TIME_UNITS = {"s": 1000.0, "ms": 1.0}
"""The groups that a ``time_pattern`` may name, and what a number of theirs is in milliseconds."""


def _checked_ref(text: str) -> str:
    if text.startswith("-"):
        raise ValueError("a git ref does not begin with a dash")
    if not text.strip() or any(ord(character) < 32 for character in text):
        raise ValueError("a git ref is a branch, a tag or a SHA")
    return text


def _checked_text(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise ValueError("it is empty or holds a NUL byte")
    return text


def _checked_module(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text):
        raise ValueError("a module is named as in an import statement, for example sglang.multimodal_gen")
    return text


def _checked_pattern(text: str) -> str:
    try:
        names = set(re.compile(text, re.MULTILINE).groupindex)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from error
    if len(names & {*TIME_UNITS}) != 1:
        raise ValueError(rf"{text!r} needs one group named s or ms around the number, as in 'time: (?P<s>[0-9.]+) s'")
    return text


Ref = Annotated[str, AfterValidator(_checked_ref)]
Text = Annotated[str, AfterValidator(_checked_text)]
Module = Annotated[str, AfterValidator(_checked_module)]
TimePattern = Annotated[str, AfterValidator(_checked_pattern)]
SetupSeconds = Annotated[float, Field(gt=0, le=LONGEST_SETUP_S, allow_inf_nan=False)]


def problem_of_sources(ref: str | None, repo: str | None, setup: str | None) -> str | None:
    """Which of these keys of one arm make no sense together, or None."""
    if ref is None and repo is not None:
        return "repo needs a ref: without one the arm is not taken from a repository"
    if ref is None and setup is not None:
        return "setup needs a ref: it prepares the tree of one"
    return None


def problem_of_time(command: str | None, time_pattern: str | None) -> str | None:
    """Why an arm's time cannot be read by its ``time_pattern``, or None."""
    if time_pattern is None:
        return None
    if command is None:
        return "time_pattern needs a command: generate writes a perf dump"
    if "{perf_dump}" in command:
        return "the command names {perf_dump} beside a time_pattern; its time is read from one of them"
    return None
