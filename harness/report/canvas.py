"""Drawing that gives the same pixels on every machine: whole-number scales, a bitmap font, PNG without metadata."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

Pixels = npt.NDArray[np.uint8]
"""uint8 H x W x 3."""

PNG_LEVEL = 6
MOST_PALETTE_COLOURS = 256
CHARACTER_PIXELS = 6
LINE_PIXELS = 14


def step_of(width: int, height: int, longest: int) -> int:
    """How a picture fits into ``longest`` pixels: -n for one pixel of n x n, n for n x n pixels of one, 1 as it is."""
    side = max(width, height)
    return -math.ceil(side / longest) if side > longest else max(1, longest // side)


def scale_text(step: int) -> str:
    """``1:4`` for a picture of a quarter of the size, ``4:1`` for one of four times the size."""
    return f"1:{-step}" if step < 0 else f"{step}:1"


def scaled(pixels: Pixels, step: int) -> Pixels:
    """By box means where it becomes smaller, by repetition where it becomes larger; never between pixels."""
    if step < 0:
        return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).reduce(-step))
    return pixels.repeat(step, axis=0).repeat(step, axis=1)


def scaled_levels(levels: Pixels, step: int) -> Pixels:
    """The same for uint8 H x W, by the largest value of a box: one differing pixel stays visible at any scale."""
    if step > 0:
        return levels.repeat(step, axis=0).repeat(step, axis=1)
    size = -step
    rows, columns = (math.ceil(extent / size) for extent in levels.shape)
    padded = np.zeros((rows * size, columns * size), dtype=np.uint8)
    padded[: levels.shape[0], : levels.shape[1]] = levels
    boxes: Pixels = padded.reshape(rows, size, columns, size).max(axis=(1, 3))
    return boxes


def written(pixels: Pixels, texts: Iterable[tuple[int, int, str]], colour: tuple[int, int, int]) -> Pixels:
    """A copy with one-line texts (column, row of the upper left corner, text), in Pillow's bitmap font."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default_imagefont()
    for column, row, text in texts:
        draw.text((column, row), text.encode("ascii", "replace").decode("ascii"), fill=colour, font=font)
    return np.asarray(image)


def png(pixels: Pixels) -> bytes:
    """A PNG with a palette where 256 colours are enough, without times, names or any other text."""
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if image.getcolors(maxcolors=MOST_PALETTE_COLOURS) is not None:
        image = _with_palette(pixels)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=PNG_LEVEL)
    return buffer.getvalue()


def _with_palette(pixels: Pixels) -> Image.Image:
    """Exactly the colours there are, in their order; Pillow's own quantisation is not the same in every version."""
    keys = (pixels.astype(np.int64) * (65536, 256, 1)).sum(axis=2)
    known, indices = np.unique(keys, return_inverse=True)
    image = Image.fromarray(indices.reshape(keys.shape).astype(np.uint8))
    image.putpalette([value for key in known.tolist() for value in (key >> 16, key >> 8 & 255, key & 255)])
    return image
