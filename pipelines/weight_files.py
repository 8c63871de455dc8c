"""Is this file a whole safetensors file? Answered from its header and its size alone, before a weight is read.

Format (https://github.com/huggingface/safetensors, "Format"): 8 bytes little-endian header length N, N bytes of JSON
``{name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}``, then the data, without gaps.
Interrupted downloads, git-LFS pointers and saved error pages all break that in ways worth telling apart.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.regular_files import open_regular

LENGTH_BYTES = 8
HEADER_LIMIT_BYTES = 100_000_000  # the safetensors library's own limit
SNIFFED_BYTES = 512
LFS_POINTER_START = b"version https://git-lfs"
BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64"), 64),
}


@dataclass(frozen=True)
class TensorEntry:
    """A tensor as its file's header describes it; ``dtype`` is safetensors' name, such as ``BF16``."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class WeightFile:
    """A checked safetensors file."""

    path: Path
    size_bytes: int
    tensors: Mapping[str, TensorEntry]

    @property
    def parameters(self) -> int:
        """How many values the file holds."""
        return sum(math.prod(entry.shape) for entry in self.tensors.values())


def read_weight_file(path: Path, shown_name: str) -> WeightFile:
    """Check one safetensors file; a FuseproofError names ``shown_name``, the cause, and the sizes seen and expected."""
    try:
        size_bytes = path.stat().st_size
        with open_regular(path) as file:
            start = file.read(SNIFFED_BYTES)
            _refuse_other_contents(start, size_bytes, shown_name)
            header_bytes = int.from_bytes(start[:LENGTH_BYTES], "little")
            _refuse_impossible_header(header_bytes, size_bytes, shown_name)
            file.seek(LENGTH_BYTES)
            header = _parse_header(file.read(header_bytes), shown_name)
    except OSError as error:
        raise FuseproofError(
            f"{shown_name} cannot be read: {error.strerror or error}.",
            next_step="Check the file and its permissions.",
        ) from error
    data_bytes = _check_layout(header, shown_name)
    _check_size(LENGTH_BYTES + header_bytes + data_bytes, size_bytes, shown_name)
    tensors = {name: TensorEntry(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
    return WeightFile(path, size_bytes, tensors)


def foreign_contents(start: bytes) -> str | None:
    """What a file that should hold JSON or weights holds instead, from its first bytes: a pointer or a web page."""
    if start.startswith(LFS_POINTER_START):
        return "a git-LFS pointer"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "an HTML page"
    return None


def _refuse_other_contents(start: bytes, size_bytes: int, shown_name: str) -> None:
    if size_bytes == 0:
        raise _damaged(f"{shown_name} is empty (0 bytes); a safetensors file was expected.")
    contents = foreign_contents(start)
    if contents == "a git-LFS pointer":
        declared = re.search(rb"^size (\d+)", start, flags=re.MULTILINE)
        expected = f"{int(declared.group(1)):,} bytes" if declared else "the weights"
        raise FuseproofError(
            f"{shown_name} is a git-LFS pointer of {size_bytes:,} bytes, not the file of {expected} it stands for.",
            next_step="Run `git lfs pull` in the model folder, or download the model again.",
        )
    if contents is not None:
        raise _damaged(f"{shown_name} is {contents} of {size_bytes:,} bytes, not a safetensors file.")


def _refuse_impossible_header(header_bytes: int, size_bytes: int, shown_name: str) -> None:
    if size_bytes < LENGTH_BYTES:
        raise _damaged(f"{shown_name} is truncated: {size_bytes} bytes, and the header alone needs more.")
    if header_bytes > HEADER_LIMIT_BYTES:
        raise _damaged(
            f"{shown_name} is not a safetensors file: its first 8 bytes announce a header of {header_bytes:,} bytes."
        )
    if LENGTH_BYTES + header_bytes > size_bytes:
        raise _damaged(
            f"{shown_name} is truncated: its header ends at byte {LENGTH_BYTES + header_bytes:,}, "
            f"beyond the file's {size_bytes:,} bytes."
        )


def _parse_header(text: bytes, shown_name: str) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=_named_once)
    except _NamedTwiceError as error:
        raise _damaged(f"{shown_name} is damaged: its header names {str(error)!r} twice.") from error
    except RecursionError as error:
        raise _damaged(f"{shown_name} is not a safetensors file: its header is nested too deeply.") from error
    except ValueError as error:
        raise _damaged(f"{shown_name} is not a safetensors file: its header is not JSON ({error}).") from error
    if not isinstance(header, dict):
        raise _damaged(f"{shown_name} is not a safetensors file: its header is no JSON object.")
    header.pop("__metadata__", None)
    return header


class _NamedTwiceError(ValueError):
    """A name that one JSON object has twice; readers differ in which of the two they take."""


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        names = [name for name, _ in pairs]
        raise _NamedTwiceError(next(name for name in named if names.count(name) > 1))
    return named


def _check_layout(header: dict[str, Any], shown_name: str) -> int:
    """The data's length in bytes, after checking that the tensors fill it without gap or overlap."""
    spans: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        try:
            begin, end = (_length(offset) for offset in entry["data_offsets"])
            values = _length(math.prod(_length(length) for length in entry["shape"]))
            bits = BITS.get(entry["dtype"])
        except (TypeError, KeyError, ValueError) as error:
            raise _damaged(f"{shown_name} is damaged: its header describes tensor {name!r} wrongly.") from error
        if bits is not None and values * bits != (end - begin) * 8:
            raise _damaged(
                f"{shown_name} is damaged: tensor {name!r} needs {values * bits // 8:,} bytes and has {end - begin:,}."
            )
        spans.append((begin, end, name))
    position = 0
    for begin, end, name in sorted(spans):
        if begin != position:
            raise _damaged(f"{shown_name} is damaged: tensor {name!r} starts at byte {begin:,}, not {position:,}.")
        position = end
    return position


def _length(value: object) -> int:
    """A length or an offset of a header: a whole number that fits 63 bits; never 1.0, true or Infinity."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no length")
    return value


def _check_size(expected_bytes: int, size_bytes: int, shown_name: str) -> None:
    if size_bytes < expected_bytes:
        raise _damaged(f"{shown_name} is truncated: {size_bytes:,} bytes of {expected_bytes:,}.")
    if size_bytes > expected_bytes:
        extra = size_bytes - expected_bytes
        raise _damaged(f"{shown_name} has {extra:,} trailing bytes: {size_bytes:,} bytes, {expected_bytes:,} expected.")


def _damaged(message: str) -> FuseproofError:
    return FuseproofError(message, next_step="Download or copy this file again.")
