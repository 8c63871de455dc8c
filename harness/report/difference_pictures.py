"""The amplified difference of two outputs as a picture, with its scale of colours, its factor and its size printed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuseproof.harness.media.decoding import Picture
from fuseproof.harness.media.diff import difference_levels
from fuseproof.harness.media.metrics import fixed_data_range
from fuseproof.harness.report.canvas import LINE_PIXELS, Pixels, scale_text, scaled_levels, step_of, written
from fuseproof.harness.report.colour_map import LEVELS, coloured, palette

LONGEST_SIDE = 512
LEGEND_WIDTH = 288
MARGIN = 4
BAR_PIXELS = 10
_WHITE = (255, 255, 255)
_BLACK = (0, 0, 0)


@dataclass(frozen=True)
class DifferencePicture:
    """``words`` say what the colours mean and at which scale the picture is drawn."""

    pixels: Pixels
    words: str


def difference_picture(
    a: Picture, b: Picture, *, data_range: float | None, names: tuple[str, str] = ("A", "B")
) -> DifferencePicture:
    """The largest distance of each pixel's channels, amplified until the picture's largest is nearly the lightest.

    Of a picture that is drawn smaller, the largest distance of every box is shown. ``names`` are printed below.
    Raises :class:`FuseproofError` where the two differ in size, channels or bit depth.
    """
    levels, factor = difference_levels(a, b, data_range=data_range)
    step = step_of(a.width, a.height, LONGEST_SIDE)
    drawn = coloured(scaled_levels(levels, step))
    meaning = f"|{names[0]} - {names[1]}| x {factor}{_lightest(a, data_range, factor)}"
    words = (
        f"the absolute difference, amplified {factor:,} times, the largest of each pixel's channels: "
        f"dark is equal{_lightest_in_words(a, data_range, factor)}; drawn {scale_text(step)}"
    )
    if step < 0:
        words += f", the largest of each {-step} x {-step} pixels"
    return DifferencePicture(_with_legend(drawn, (meaning, f"drawn {scale_text(step)}")), words)


def _unit(picture: Picture, data_range: float | None) -> float | None:
    return data_range or fixed_data_range(picture.pixels.dtype)


def _lightest(picture: Picture, data_range: float | None, factor: int) -> str:
    span = _unit(picture, data_range)
    return "" if span is None else f", lightest = {span / factor:.4g} of {span:g}"


def _lightest_in_words(picture: Picture, data_range: float | None, factor: int) -> str:
    span = _unit(picture, data_range)
    return "" if span is None else f", the lightest colour {span / factor:.4g} of {span:g}"


def _with_legend(drawn: Pixels, lines: tuple[str, ...]) -> Pixels:
    """The picture over a bar of all colours, from equal to the largest, and the lines of text."""
    height, width = drawn.shape[:2]
    footer = MARGIN * 3 + BAR_PIXELS + LINE_PIXELS * len(lines)
    canvas = np.full((height + footer, max(width, LEGEND_WIDTH), 3), _WHITE, dtype=np.uint8)
    canvas[:height, :width] = drawn
    top = height + MARGIN
    canvas[top : top + BAR_PIXELS, MARGIN : MARGIN + LEVELS] = palette()[None]
    texts = [(MARGIN, top + BAR_PIXELS + MARGIN + LINE_PIXELS * index, line) for index, line in enumerate(lines)]
    return written(canvas, texts, _BLACK)
