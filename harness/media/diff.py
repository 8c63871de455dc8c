"""A picture of a difference: A, B and their amplified absolute difference side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fuseproof.errors import FuseproofError
from fuseproof.harness.media.decoding import Picture
from fuseproof.harness.media.files import printable
from fuseproof.harness.media.metrics import fixed_data_range

GUTTER_PIXELS = 8
_GUTTER_GREY = 128
_EXACT_DISTANCES: dict[str, type[np.signedinteger[Any]]] = {"uint8": np.int16, "uint16": np.int32}
"""Where distances need no floating point; pictures are large."""


def difference_image(a: Picture, b: Picture, *, data_range: float | None) -> tuple[npt.NDArray[np.uint8], int]:
    """``A | B | difference`` as uint8 H x (3W + gutters) x 3, and the whole factor the difference was amplified by.

    The difference panel is grey: the largest distance of a pixel's channels, alpha included, times the factor that
    brings the picture's largest one close to white. Non-finite values are white there and black in A and B. Alpha is
    not applied to A and B. ``data_range`` is the comparison's; without one the values' own span is used.

    Raises:
        FuseproofError: the two differ in size, channels or bit depth.
    """
    amplified, factor = difference_levels(a, b, data_range=data_range)
    low, span = _displayed_range(a, b, data_range)
    gutter = np.full((a.height, GUTTER_PIXELS, 3), _GUTTER_GREY, dtype=np.uint8)
    panels = [_colours(a, low, span), gutter, _colours(b, low, span), gutter, np.stack([amplified] * 3, axis=2)]
    return np.concatenate(panels, axis=1), factor


def difference_levels(a: Picture, b: Picture, *, data_range: float | None) -> tuple[npt.NDArray[np.uint8], int]:
    """The amplified difference alone, uint8 H x W, and its factor; both as in :func:`difference_image`.

    Raises:
        FuseproofError: the two differ in size, channels or bit depth.
    """
    if a.pixels.shape != b.pixels.shape or a.pixels.dtype != b.pixels.dtype:
        raise FuseproofError(
            f"{printable(a.path)} and {printable(b.path)} differ in size, channels or bit depth, "
            "so there is no difference to draw.",
            next_step="leave --diff-image away",
        )
    span = data_range or _displayed_range(a, b, None)[1]
    exact = _EXACT_DISTANCES.get(a.pixels.dtype.name, np.float64)
    with np.errstate(all="ignore"):
        distance = np.abs(a.pixels.astype(exact) - b.pixels.astype(exact))
        grey = (distance if distance.ndim == 2 else distance.max(axis=2)) / np.float64(span)
    largest = float(grey[np.isfinite(grey)].max(initial=0.0))
    factor = max(1, math.floor(1 / largest)) if largest > 0 else 1
    return _to_uint8(np.nan_to_num(grey * factor, nan=1.0, posinf=1.0)), factor


def shown_pixels(picture: Picture) -> npt.NDArray[np.uint8]:
    """A picture as a screen shows it: uint8 H x W x 3, without its alpha, floats over their own span."""
    if picture.mode in ("RGB", "RGBA") and picture.pixels.dtype == np.uint8:
        return np.ascontiguousarray(picture.pixels[..., :3]).view(np.uint8)
    return _colours(picture, *_displayed_range(picture, picture, fixed_data_range(picture.pixels.dtype)))


def _displayed_range(a: Picture, b: Picture, data_range: float | None) -> tuple[float, float]:
    """The value shown black and the distance from it to white."""
    values = np.concatenate([picture.pixels.astype(np.float64).ravel() for picture in (a, b)])
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if data_range is None:
        return low, (high - low) or 1.0
    # -1..1 with data range 2 is centred on 0; everything else starts at 0.
    return (-data_range / 2 if low < 0 else 0.0), data_range


def _colours(picture: Picture, low: float, span: float) -> npt.NDArray[np.uint8]:
    if picture.mode in ("CMYK", "YCbCr"):
        size = (picture.width, picture.height)
        return np.asarray(Image.frombytes(picture.mode, size, picture.pixels.tobytes()).convert("RGB"))
    shown = _to_uint8((np.nan_to_num(picture.pixels.astype(np.float64), nan=low) - low) / span)
    if shown.ndim == 3 and shown.shape[2] >= 3:
        return shown[..., :3]
    grey = shown if shown.ndim == 2 else shown[..., 0]
    return np.stack([grey] * 3, axis=2)


def _to_uint8(share: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    return np.rint(np.clip(share, 0.0, 1.0) * 255).astype(np.uint8)
