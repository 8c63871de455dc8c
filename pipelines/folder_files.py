"""A model folder's files as the checks of it read and name them: JSON objects, and what stands there instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.regular_files import open_regular
from fuseproof.pipelines.weight_files import foreign_contents

NAMES_SHOWN = 4


def read_json_object(path: Path, folder: Path) -> dict[str, Any]:
    """The JSON object in ``path`` of the model ``folder``, never an empty one; a FuseproofError says what is there."""
    shown = shown_path(path, folder)
    refuse_foreign_contents(path, folder)
    try:
        with open_regular(path) as file:
            value = json.loads(file.read().decode("utf-8"))
    except OSError as error:
        raise unreadable(f"{shown} in {folder} cannot be read: {error.strerror or error}.") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise unreadable(f"{shown} in {folder} is not valid JSON: {error.msg} at {where}.") from error
    except UnicodeDecodeError as error:
        raise unreadable(f"{shown} in {folder} is not UTF-8 text (byte {error.start}).") from error
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).split(";")[0]
        raise unreadable(f"{shown} in {folder} is not usable JSON: {reason}.") from error
    if not isinstance(value, dict):
        raise unreadable(f"{shown} in {folder} holds {json.dumps(value)[:40]}; a JSON object was expected.")
    if not value:
        raise unreadable(f"{shown} in {folder} is an empty object {{}}.")
    return value


def refuse_foreign_contents(path: Path, folder: Path) -> None:
    """Raise a FuseproofError where ``path``, which should hold JSON, is empty, a git-LFS pointer or a web page."""
    shown = shown_path(path, folder)
    try:
        with open_regular(path) as file:
            start = file.read(512)
    except OSError as error:
        raise unreadable(f"{shown} in {folder} cannot be read: {error.strerror or error}.") from error
    contents = "empty" if not start else foreign_contents(start)
    if contents is not None:
        raise unreadable(f"{shown} in {folder} is {contents}; JSON was expected.")


def unreadable(message: str) -> FuseproofError:
    """The error for a folder that is not what it should be, with the usual way out."""
    return FuseproofError(message, next_step="Download or copy the model folder again.")


def some_of(names: list[str]) -> str:
    """The first few of ``names``, and how many more there are."""
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def shown_path(path: Path, folder: Path) -> str:
    """``path`` as it is called in sentences: from ``folder`` on."""
    return path.relative_to(folder).as_posix()
