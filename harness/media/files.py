"""Hash arrays and files, tell degenerate pictures, write a PNG whole or not at all."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from fuseproof.errors import FuseproofError
from fuseproof.harness.atomic_files import regular_target, replace_whole

Array = npt.NDArray[np.generic]

_HASH_CHUNK_BYTES = 1 << 20


def array_sha256(array: npt.NDArray[np.generic]) -> str:
    """SHA-256 of ``dtype|shape|`` and the C-order little-endian bytes, the same on every machine.

    A float32 array of shape (256, 256, 3) is prefixed with ``float32|256x256x3|``.
    """
    shape = "x".join(str(extent) for extent in array.shape)
    digest = hashlib.sha256(f"{array.dtype.name}|{shape}|".encode("ascii"))
    digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def file_sha256(path: Path | str) -> str:
    """SHA-256 of a file's bytes, read in chunks.

    Raises:
        FuseproofError: the file cannot be read.
    """
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as stream:
            while chunk := stream.read(_HASH_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise FuseproofError(
            f"{printable(path)} cannot be read: {os_reason(error)}.", next_step="check the path and its permissions"
        ) from error
    return digest.hexdigest()


def degenerate_reason(array: npt.NDArray[np.generic]) -> str | None:
    """``"non-finite"`` or ``"constant"`` (every pixel equals the first one) when ``array`` proves nothing, else None.

    ``array`` is H x W or H x W x C of any numeric dtype; the last axis of a 3-axis array holds the channels.
    """
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return "non-finite"
    pixels = array.reshape(-1, array.shape[-1]) if array.ndim >= 3 else array.reshape(-1, 1)
    return "constant" if bool((pixels == pixels[:1]).all()) else None


def write_png(path: Path | str, pixels: npt.NDArray[np.uint8]) -> None:
    """Write uint8 H x W x 3 as PNG at zlib level 1, through a temporary file in the same folder and a rename.

    A symbolic link stays one; a device, a pipe or a folder is refused.

    Raises:
        FuseproofError: the folder is missing or read-only, or the disk is full; nothing is left behind.
        ValueError: another dtype or shape.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"write_png takes uint8 HxWx3, not {pixels.dtype} {pixels.shape}")
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG", compress_level=1)
    target = regular_target(Path(path))
    try:
        replace_whole(target, buffer.getvalue())
    except OSError as error:
        raise FuseproofError(
            f"{printable(path)} could not be written: {os_reason(error)}.",
            next_step="check that the folder exists, is writable and has space",
        ) from error


def printable(path: Path | str) -> str:
    """A path or text safe to print: undecodable bytes and control characters become U+FFFD."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def os_reason(error: OSError) -> str:
    """The operating system's words for what went wrong, without the path."""
    return error.strerror or type(error).__name__
