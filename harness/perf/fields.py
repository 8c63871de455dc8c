"""Checked access to the fields of a JSON file that somebody else wrote, with errors that name file and field."""

from __future__ import annotations

import codecs
import errno
import json
import math
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from fuseproof.errors import FuseproofError

LARGEST_FILE_BYTES = 64 * 1024 * 1024
SHORTEST_MS = 1e-6
LONGEST_MS = 1e12
"""Thirty years: what lies beyond is a wrong unit, and would overflow in sums and ratios."""


def read_json_object(path: Path, *, next_step: str | None = None) -> dict[str, Any]:
    """Read a file that holds one JSON object; UTF-8 with or without a byte-order mark, or UTF-16 with one.

    Raises :class:`FuseproofError` naming the file and the cause.
    """
    text = _decode(path, _read_bytes(path, next_step), next_step)
    if not text.strip():
        raise FuseproofError(f"{path} is empty, expected a JSON object.", next_step=next_step)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise FuseproofError(f"{path} is not valid JSON: {_position(error)}.", next_step=next_step) from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).split(";")[0]
        raise FuseproofError(f"{path} is not usable JSON: {reason}.", next_step=next_step) from error
    if not isinstance(value, dict):
        raise FuseproofError(f"{path} holds {_kind(value)}, expected a JSON object.", next_step=next_step)
    return value


@dataclass(frozen=True)
class Fields:
    """One JSON object of a file; ``prefix`` is where it sits, so that an error can say ``steps[3].duration_ms``."""

    values: Mapping[str, Any]
    path: Path
    prefix: str = ""
    next_step: str | None = None
    """What every error advises."""

    def time(self, name: str) -> float:
        """A required positive time in milliseconds."""
        value = self.number(name)
        if not SHORTEST_MS <= value <= LONGEST_MS:
            raise self._error(name, f"is {value:g}, expected milliseconds between {SHORTEST_MS:g} and {LONGEST_MS:g}")
        return value

    def optional_time(self, name: str) -> float | None:
        """A positive time in milliseconds, or None when the field is missing or null."""
        return None if self.values.get(name) is None else self.time(name)

    def duration(self, name: str) -> float:
        """A required number that may be zero but not negative (a stage's milliseconds, a peak's MiB)."""
        value = self.number(name)
        if not 0 <= value <= LONGEST_MS:
            raise self._error(name, f"is {value:g}, expected a number between 0 and {LONGEST_MS:g}")
        return value

    def number(self, name: str) -> float:
        """A required finite number; a string that looks like one is not one."""
        if name not in self.values:
            raise self._missing(name)
        value = self.values[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._error(name, f"is {_quoted(value)}, expected a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self._error(name, f"is {number}, expected a finite number")
        return number

    def text(self, name: str) -> str:
        """A required string."""
        value = self.optional_text(name)
        if value is None:
            raise self._missing(name)
        return value

    def optional_text(self, name: str) -> str | None:
        """A string, or None when the field is missing or null."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._error(name, f"is {_quoted(value)}, expected a string")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """An object; empty when the field is missing or null."""
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._error(name, f"is {_kind(value)}, expected an object")
        return value

    def sequence(self, name: str) -> list[Any]:
        """A list; empty when the field is missing or null."""
        value = self.values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._error(name, f"is {_kind(value)}, expected a list")
        return value

    def mappings(self, name: str) -> list[dict[str, Any]]:
        """A list of objects; empty when the field is missing or null."""
        return [dict(child.values) for child in self.children(name)]

    def child(self, name: str) -> Fields:
        """The object in a field, empty when the field is missing or null."""
        return replace(self, values=self.mapping(name), prefix=f"{self.prefix}{name}.")

    def children(self, name: str) -> list[Fields]:
        """The objects in a list."""
        found = []
        for index, value in enumerate(self.sequence(name)):
            if not isinstance(value, dict):
                raise self._error(f"{name}[{index}]", f"is {_kind(value)}, expected an object")
            found.append(replace(self, values=value, prefix=f"{self.prefix}{name}[{index}]."))
        return found

    def _missing(self, name: str) -> FuseproofError:
        return FuseproofError(f"{self.path} has no {self.prefix}{name}.", next_step=self.next_step)

    def _error(self, name: str, problem: str) -> FuseproofError:
        return FuseproofError(f"{self.path}: {self.prefix}{name} {problem}.", next_step=self.next_step)


def _read_bytes(path: Path, next_step: str | None) -> bytes:
    try:
        with _open_regular(path) as stream:
            content = stream.read(LARGEST_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise FuseproofError(f"{path} does not exist.", next_step=next_step) from error
    except IsADirectoryError as error:
        raise FuseproofError(f"{path} is a directory, expected a JSON file.", next_step=next_step) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuseproofError(f"{path} cannot be read: {reason}.", next_step=next_step) from error
    if len(content) > LARGEST_FILE_BYTES:
        limit_mib = LARGEST_FILE_BYTES // 2**20
        raise FuseproofError(f"{path} is larger than {limit_mib} MiB, too large for a dump.", next_step=next_step)
    return content


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file; a pipe without a writer would wait for ever, and a device may never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, and a regular file was expected")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _decode(path: Path, content: bytes, next_step: str | None) -> str:
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise FuseproofError(
            f"{path} is not text: byte 0x{content[error.start]:02x} at offset {error.start} is not {error.encoding}.",
            next_step=next_step,
        ) from error


def _position(error: json.JSONDecodeError) -> str:
    where = f"line {error.lineno}, column {error.colno}"
    is_cut_off = error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string")
    return f"it ends too early, at {where} (truncated?)" if is_cut_off else f"{error.msg} at {where}"


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def _quoted(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else _kind(value)
