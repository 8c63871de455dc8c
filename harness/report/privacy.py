"""Keep private things out of a report: absolute paths, home folders, tokens.

A campaign may be rendered again on another machine and must give the same bytes, so nothing here looks at the machine
it runs on: paths are recognised by their form. The campaign's own folder is recognised by what follows it
(``…/slots/<cell>/<slot>``) and becomes relative to the campaign folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from fuseproof.harness.machine.environment import redact

_CAMPAIGN_PREFIX = re.compile(r"(?<![\w.~-])(?:/[^\s'\"=:/]+)*/(?=slots/[^\s'\"/]+/\d{2})")
_HOME = re.compile(
    r"(?<![\w.~-])(?:/home/[^/\s'\"]+|/Users/[^/\s'\"]+|/root|[A-Za-z]:\\Users\\[^\\\s'\"]+)(?=[/\\\s'\"]|$)"
)
_ABSOLUTE = re.compile(r"(?<![\w.:/~<>-])/(?:[\w.+@%,-]+/)+([\w.+@%,-]*)")
_HARMLESS = re.compile(r"[^/\\]{0,7}|[-+−\d.,%×→()\[\] ]*|[0-9a-f]{64}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TEXT_FLAGS = ("--prompt", "--negative-prompt")
_STAND_IN = "/path/to/"
"""Stands for folders that are nobody else's business; our own sentences name it."""
_SYSTEM_FILES = ("/dev/null", "/usr/bin/env", "/bin/sh", "/bin/bash")


def clean_text(text: str) -> str:
    """``text`` without tokens, home folders or absolute paths; an unknown path keeps its last part only."""
    text = _CAMPAIGN_PREFIX.sub("", text)
    text = _HOME.sub("~", text)
    return redact(_ABSOLUTE.sub(_without_folders, text))


def _without_folders(match: re.Match[str]) -> str:
    path = match.group(0)
    if path in (*_SYSTEM_FILES, _STAND_IN):
        return path
    name = match.group(1) or PurePosixPath(path).name
    return f"{_STAND_IN}{name}"


def clean_arguments(arguments: Iterable[str]) -> list[str]:
    """A command's words, cleaned; the program itself is shown by its name, and prompts only lose tokens."""
    cleaned: list[str] = []
    previous = ""
    for position, word in enumerate(arguments):
        if position == 0 and word.startswith("/"):
            cleaned.append(PurePosixPath(word).name)
        elif previous in _TEXT_FLAGS or word.startswith(tuple(f"{flag}=" for flag in _TEXT_FLAGS)):
            cleaned.append(redact(word))
        else:
            cleaned.append(_clean_word(word))
        previous = word
    return cleaned


def _clean_word(word: str) -> str:
    flag, separator, value = word.partition("=")
    if not separator or not flag.startswith("-"):
        flag, separator, value = "", "", word
    if _is_one_path(value):
        name = PurePosixPath(value).name
        return f"{flag}{separator}" + (value if value in _SYSTEM_FILES else f"/path/to/{redact(name)}")
    return f"{flag}{separator}{clean_text(value)}"


def _is_one_path(value: str) -> bool:
    """An absolute path that may hold spaces; not a whole command (``/abs/python -S /x/arm.py``), nor one to keep."""
    words = value.split()
    is_command = len(words) > 1 and any(word.startswith(("-", "/", "~", "{", "'", '"')) for word in words[1:])
    is_kept = "\n" in value or "/slots/" in value or _HOME.match(value) is not None
    return value.startswith("/") and not is_command and not is_kept


class Cleaner:
    """Cleans many texts; equal ones once. Short words and plain numbers hold nothing private."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def text(self, text: str) -> str:
        """:func:`clean_text`, remembered."""
        if _HARMLESS.fullmatch(text) and not _SURROGATE.search(text):
            return text
        if text not in self._known:
            # A file name that is no UTF-8 reaches us as lone surrogates, which no report file can hold.
            self._known[text] = clean_text(text.encode("utf-8", "backslashreplace").decode("utf-8"))
        return self._known[text]

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it cleaned; keys are the program's own."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.value(entry) for key, entry in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(entry) for entry in value]
        return value
