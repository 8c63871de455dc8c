"""What the command lines of ``training`` share: types of options, early checks, errors as sentences.

Light to import: neither torch nor diffusers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoints import MODEL_INDEX
from fuseproof.pipelines.packaged_parts import is_in_parts

if TYPE_CHECKING:
    import torch

INTERRUPTED = 130
LARGEST_SEED = 2**62


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that takes a whole number from ``least`` on, up to ``most``."""
    allowed = f"a whole number from {least} " + ("on" if most is None else f"to {most}")

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
        return value

    return parse


def finite_number(least: float, most: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """The type of an option that takes a finite number from ``least`` to ``most``; without ``least`` if ``above``."""
    end = "" if above else " on"
    allowed = f"a finite number {'above' if above else 'from'} {least:g}{end if most == math.inf else f' to {most:g}'}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < least or value > most or (above and value == least):
            raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")
        return value

    return parse


seed = whole_number(0, LARGEST_SEED)
"""The type of ``--seed``."""


def device_named(name: str) -> torch.device:
    """The device that ``--device`` names, ``auto``: CUDA where there is some; a UsageError where it is not there."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and (kind == "cpu" or not index.isdecimal())):
        raise UsageError(
            f"--device {name!r} is unknown; auto, cpu, cuda and cuda:NUMBER are allowed.",
            next_step="Leave --device out to take the GPU where there is one.",
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= count:
        raise UsageError(
            f"--device {name}: torch sees {count} CUDA devices here{f', 0 to {count - 1}' if count else ''}.",
            next_step="Use --device cpu, or a machine with such a GPU and a torch that was built for it.",
        )
    return torch.device(name)


def require_checkpoint(folder: Path, option: str = "--checkpoint") -> Path:
    """``folder``, where it holds a checkpoint in diffusers' layout or a part; a FuseproofError where it does not."""
    reason = None
    if not folder.exists():
        reason = f"there is no folder {folder}"
    elif not folder.is_dir():
        reason = f"{folder} is no folder"
    elif not is_checkpoint(folder):
        reason = f"{folder} has no {MODEL_INDEX}, so it is no checkpoint in diffusers' layout"
    if reason is not None:
        raise FuseproofError(f"{option}: {reason}.", next_step=f"Give {option} the folder that holds {MODEL_INDEX}.")
    return folder


def is_checkpoint(folder: Path) -> bool:
    """Whether a checkpoint or a part of one lies in ``folder``, by its name alone."""
    return (folder / MODEL_INDEX).is_file() or is_in_parts(folder)


def require_writable(folder: Path, option: str = "--output") -> None:
    """Make ``folder`` where it is missing, and try to write there; a FuseproofError says why that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as tried:
            tried.write(b"\n")
    except OSError as error:
        raise FuseproofError(
            f"{option}: {folder} cannot be written: {error.strerror or error}.",
            next_step=f"Give {option} another place, or make room and rights there.",
        ) from error


def read_object(path: Path, what: str, next_step: str) -> Mapping[str, Any]:
    """The JSON object in ``path``, which is ``what``; a FuseproofError where there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise FuseproofError(f"{path}, {what}, is missing.", next_step=next_step) from error
    except (OSError, ValueError, RecursionError) as error:
        cause = getattr(error, "strerror", None) or error
        raise FuseproofError(f"{path}, {what}, cannot be read: {cause}.", next_step=next_step) from error
    if not isinstance(values, dict):
        raise FuseproofError(
            f"{path}, {what}, holds {json.dumps(values)[:40]}; an object was expected.", next_step=next_step
        )
    return values


def is_number(value: object) -> bool:
    """Whether a value of JSON is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def told(body: Callable[[], int], interrupted: str = "interrupted") -> int:
    """What ``body`` returns; what a user or the machine did wrong as sentences on stderr, and its exit code.

    Anything else that escapes is a bug and keeps its traceback.
    """
    try:
        code = body()
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(f"{interrupted}\n")
        return INTERRUPTED
    except FuseproofError as error:
        return say(error)
    except BrokenPipeError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return say(FuseproofError("standard output was closed, so not everything was shown."))
    except OSError as error:
        return say(FuseproofError(f"{type(error).__name__}: {error}."))
    return code


def say(error: FuseproofError) -> int:
    """Print an error and its next step on stderr; return its exit code."""
    sys.stderr.write(f"error: {error.message}\n" + (f"  next: {error.next_step}\n" if error.next_step else ""))
    return error.exit_code
