"""How an array that a slot has kept is read and hashed."""

from __future__ import annotations

import tokenize
import zipfile
from pathlib import Path

import numpy as np

from fuseproof.harness.media.files import array_sha256

LARGEST_BYTES = 16 * 2**30
"""A minute of decoded video; what is larger is no slot's output."""
PLAIN_KINDS = frozenset("biufc")
"""Booleans, integers, floats: what a decoder gives."""


class UnreadableArrayError(Exception):
    """Why a kept file is no array; the text completes "is …"."""


def kept_array_sha256(path: Path) -> str:
    """The hash of a kept array by the rule of the dump; :class:`UnreadableArrayError` for whatever is none.

    numpy evaluates a header with Python's own tokenizer and tells archives by their first bytes, so a hostile file
    fails in many ways.
    """
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise UnreadableArrayError(f"larger than {LARGEST_BYTES // 2**30} GiB")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (
        *(OSError, ValueError, TypeError, KeyError, AttributeError, EOFError, SyntaxError, ArithmeticError),
        *(MemoryError, RecursionError, tokenize.TokenError, zipfile.BadZipFile, NotImplementedError),
    ) as error:
        raise UnreadableArrayError(f"no array that can be read: {type(error).__name__}") from error
    if not isinstance(array, np.ndarray):
        raise UnreadableArrayError("an archive of arrays, and one array was expected")
    if array.dtype.kind not in PLAIN_KINDS:
        raise UnreadableArrayError(f"an array of {array.dtype.name}, and numbers were expected")
    try:
        return array_sha256(array)
    except MemoryError as error:
        raise UnreadableArrayError("too large to be hashed here") from error
