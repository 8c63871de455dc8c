"""Pictures for the media tests, made from a seed; nothing is downloaded."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image


def smooth_picture(height: int = 96, width: int = 128, *, seed: int = 0) -> npt.NDArray[np.uint8]:
    """uint8 H x W x 3 with structure and a little grain, so that SSIM has something to measure."""
    row, column = np.mgrid[0:height, 0:width]
    waves = [np.sin(row / (7 + 3 * channel)) + np.cos(column / (11 - 2 * channel)) for channel in range(3)]
    grain = np.random.default_rng(seed).normal(0, 4, (height, width, 3))
    return np.clip(128 + 40 * np.stack(waves, axis=2) + grain, 1, 200).astype(np.uint8)


def save(path: Path, pixels: npt.NDArray[np.generic], **options: object) -> Path:
    """Save through Pillow (or numpy for ``.npy``) and return the path."""
    if path.suffix == ".npy":
        np.save(path, pixels)
    else:
        Image.fromarray(pixels).save(path, **options)  # type: ignore[arg-type]
    return path


def png_of_depth_16(values: npt.NDArray[np.uint16], colour_type: int) -> bytes:
    """A PNG with 16 bits a value, which Pillow cannot write for RGB (2), grey + alpha (4) and RGBA (6)."""
    height, width = values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return png_file(width, height, depth=16, colour_type=colour_type, packed_rows=zlib.compress(rows))


def png_file(width: int, height: int, *, depth: int, colour_type: int, packed_rows: bytes) -> bytes:
    """A PNG from its header fields and its compressed rows; they need not agree."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", packed_rows) + _chunk(b"IEND", b"")


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
