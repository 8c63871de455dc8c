"""The size of a clip that begins with an image: its aspect at a fixed area, and the image cut to that. Torch-free.

sglang's rule for Wan 2.2 TI2V-5B and LongLive 2, which is that of Wan's own code: both sides are multiples of the
model's patches, together at most the area; ``--width`` and ``--height`` decide nothing. The image is scaled until it
covers that size, and what stands out on both sides is cut off alike. A request for 960x928 with an image of 3 to 2
comes out at 1152x768.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image


def clip_canvas(width: int, height: int, area: int, multiple: int) -> tuple[int, int]:
    """Width and height of the clip for an image of ``width`` x ``height``: of two candidates, the one nearer in aspect.

    One rounds the ideal width down and gives the height what is left of ``area``, the other the height first. No side
    is shorter than ``multiple``.
    """
    aspect = width / height
    ideal_width = math.sqrt(area * aspect)
    ideal_height = area / ideal_width
    by_width = _down(ideal_width, multiple)
    by_height = _down(ideal_height, multiple)
    width_first = (by_width, _down(area / by_width, multiple))
    height_first = (_down(area / by_height, multiple), by_height)
    return width_first if _distance(width_first, aspect) < _distance(height_first, aspect) else height_first


def covering_crop(pixels: Image.Image, width: int, height: int) -> Image.Image:
    """``pixels`` scaled by Lanczos until they cover ``width`` x ``height``, and the middle of that."""
    from PIL import Image

    scale = max(width / pixels.width, height / pixels.height)
    scaled = pixels.resize((round(pixels.width * scale), round(pixels.height * scale)), Image.Resampling.LANCZOS)
    left, top = (scaled.width - width) // 2, (scaled.height - height) // 2
    return scaled.crop((left, top, left + width, top + height))


def _down(side: float, multiple: int) -> int:
    return max(int(side // multiple) * multiple, multiple)


def _distance(size: tuple[int, int], aspect: float) -> float:
    ratio = size[0] / size[1]
    return max(ratio / aspect, aspect / ratio)
