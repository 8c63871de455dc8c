"""Types of the keys that say where an arm's code comes from: ``ref``, ``repo``, ``setup``, ``python``, ``imports``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

LONGEST_SETUP_S = 86400.0
DEFAULT_SETUP_S = 3600.0


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


Ref = Annotated[str, AfterValidator(_checked_ref)]
Text = Annotated[str, AfterValidator(_checked_text)]
Module = Annotated[str, AfterValidator(_checked_module)]
SetupSeconds = Annotated[float, Field(gt=0, le=LONGEST_SETUP_S, allow_inf_nan=False)]


def problem_of_sources(ref: str | None, repo: str | None, setup: str | None) -> str | None:
    """Which of these keys of one arm make no sense together, or None."""
    if ref is None and repo is not None:
        return "repo needs a ref: without one the arm is not taken from a repository"
    if ref is None and setup is not None:
        return "setup needs a ref: it prepares the tree of one"
    return None
