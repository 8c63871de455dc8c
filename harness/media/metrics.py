"""How far two arrays of one shape and dtype are apart: counts, distances, the worst windows, SSIM and PSNR.

Everything is computed in float64 on native values. SSIM and PSNR are scikit-image's; where they cannot be computed the
value is None and the reason is kept, so a NaN can never pass for a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

import numpy as np
import numpy.typing as npt

from fuseproof.harness.media.files import Array

WINDOW_PIXELS = 32
"""Side of the square in which local damage is looked for (pixelmatch calls it windowSize)."""

LOCAL_WINDOW_SHARE = 0.25
"""A local difference fills at least this share of its worst window ..."""

LOCAL_CONCENTRATION = 4.0
"""... and is there at least this many times the picture's mean; otherwise it is scattered, or widespread."""

WIDESPREAD_SHARE = 0.25

DEFAULT_SSIM_WINDOW = 7

Pattern = Literal["none", "scattered", "local", "widespread"]

_FIXED_DATA_RANGES = {"bool": 1.0, "uint8": 255.0, "uint16": 65535.0}


@dataclass(frozen=True)
class Window:
    """A rectangle of at most 32 x 32 pixels, its top left corner at (``column``, ``row``)."""

    row: int
    column: int
    rows: int
    columns: int
    differing_pixels: int
    mean_abs: float | None

    @property
    def pixels(self) -> int:
        return self.rows * self.columns

    @property
    def differing_share(self) -> float:
        return self.differing_pixels / self.pixels


@dataclass(frozen=True)
class Difference:
    """Counts and distances, in grey levels of the stored depth (or the array's own unit).

    A value differs when its bits do, so -0 differs from +0 although their distance is 0. Distances are None where a
    non-finite value makes them meaningless. ``worst_window`` has the largest mean distance, ``densest_window`` the most
    differing pixels.
    """

    values: int
    differing_values: int
    pixels: int
    differing_pixels: int
    max_abs: float | None
    mean_abs: float | None
    p99_abs: float | None
    worst_window: Window
    densest_window: Window
    pattern: Pattern

    @property
    def differing_share(self) -> float:
        return self.differing_values / self.values

    @property
    def differing_pixel_share(self) -> float:
        return self.differing_pixels / self.pixels


@dataclass(frozen=True)
class Metric:
    """One similarity: its value or, where there is none, why; ``is_infinite`` stands for a PSNR without any error."""

    value: float | None
    unavailable: str | None = None
    is_infinite: bool = False
    variant: str = ""


def fixed_data_range(dtype: np.dtype[np.generic]) -> float | None:
    """Largest minus smallest value that a picture of ``dtype`` can hold; None when the dtype does not say."""
    return _FIXED_DATA_RANGES.get(dtype.name)


def measure_difference(a: Array, b: Array) -> Difference:
    """Compare two arrays of the same dtype and shape, H x W or H x W x C, value by value."""
    differs = _bits(a) != _bits(b)
    pixel_differs = differs if differs.ndim == 2 else differs.any(axis=2)
    with np.errstate(all="ignore"):
        distance = np.abs(a.astype(np.float64) - b.astype(np.float64))
    is_finite = bool(np.isfinite(distance).all())
    pixel_distance = distance if distance.ndim == 2 else distance.mean(axis=2)
    densest_window = _window_at_maximum(pixel_differs.astype(np.float64), pixel_differs, pixel_distance)
    worst_window = (
        _window_at_maximum(pixel_distance, pixel_differs, pixel_distance)
        if is_finite and distance.any()
        else densest_window
    )
    mean_abs = float(distance.mean()) if is_finite else None
    return Difference(
        values=differs.size,
        differing_values=int(differs.sum()),
        pixels=pixel_differs.size,
        differing_pixels=int(pixel_differs.sum()),
        max_abs=float(distance.max()) if is_finite else None,
        mean_abs=mean_abs,
        p99_abs=float(np.percentile(distance, 99)) if is_finite else None,
        worst_window=worst_window,
        densest_window=densest_window,
        pattern=_pattern(float(pixel_differs.mean()), mean_abs, worst_window),
    )


def ssim(a: Array, b: Array, data_range: float | None, *, has_alpha: bool) -> Metric:
    """Structural similarity with scikit-image's defaults, and exactly 1 only when all values are equal.

    With an alpha channel, colour and alpha are measured apart and the lower number counts: averaged together, an
    untouched alpha channel would hide damaged colours.
    """
    window = _largest_odd_window(min(a.shape[:2]))
    if window is None:
        return Metric(None, f"a side of {min(a.shape[:2])} px is below the smallest window, 3 px")
    if data_range is None:
        return Metric(None, _needs_data_range(a))
    with np.errstate(all="ignore"):
        parts = [_ssim_of(x, y, data_range, window) for x, y in _colour_and_alpha(a, b, has_alpha=has_alpha)]
    # Rounding can lift a picture with one changed bit to 1.0, a number that is kept for equality.
    value = min(*parts, math.nextafter(1.0, 0.0)) if all(math.isfinite(part) for part in parts) else None
    unavailable = None if value is not None else "a value is not finite or too large"
    return Metric(value, unavailable, variant=_ssim_variant(a, data_range, window, has_alpha=has_alpha))


def psnr(a: Array, b: Array, data_range: float | None, *, has_alpha: bool) -> Metric:
    """Peak signal-to-noise ratio in dB over all values; with alpha, the lower of colour's and alpha's."""
    from skimage.metrics import peak_signal_noise_ratio

    if data_range is None:
        return Metric(None, _needs_data_range(a))
    with np.errstate(all="ignore"):
        parts = [
            float(peak_signal_noise_ratio(x, y, data_range=data_range))
            for x, y in _colour_and_alpha(a, b, has_alpha=has_alpha)
        ]
    if any(math.isnan(part) or part == -math.inf for part in parts):
        return Metric(None, "a value is not finite or too large")
    is_infinite = all(part == math.inf for part in parts)
    variant = f"{'the lower of colour and alpha, ' if has_alpha else ''}data range {data_range:g}"
    return Metric(None if is_infinite else min(parts), is_infinite=is_infinite, variant=variant)


def count_nonfinite(array: Array) -> int:
    """How many values are NaN or infinite."""
    return int(array.size - np.isfinite(array).sum()) if array.dtype.kind == "f" else 0


def differing_bits(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    """Which values of two arrays of one shape and dtype have other bits."""
    differs: npt.NDArray[np.bool_] = _bits(a) != _bits(b)
    return differs


def _bits(array: Array) -> Array:
    """Floats as integers of their size, so that -0, +0 and NaN payloads are told apart."""
    if array.dtype.kind != "f":
        return array
    bits: Array = array.view(f"u{array.dtype.itemsize}")
    return bits


def _window_at_maximum(
    score: npt.NDArray[np.float64], pixel_differs: npt.NDArray[np.bool_], pixel_distance: npt.NDArray[np.float64]
) -> Window:
    """The window with the largest sum of ``score``, all H x W; summed-area table, every position is tried."""
    height, width = score.shape
    rows, columns = min(WINDOW_PIXELS, height), min(WINDOW_PIXELS, width)
    table = np.zeros((height + 1, width + 1))
    table[1:, 1:] = score.cumsum(axis=0).cumsum(axis=1)
    sums = table[rows:, columns:] - table[:-rows, columns:] - table[rows:, :-columns] + table[:-rows, :-columns]
    row, column = (int(index) for index in np.unravel_index(int(sums.argmax()), sums.shape))
    inside = (slice(row, row + rows), slice(column, column + columns))
    mean_abs = float(pixel_distance[inside].mean())
    return Window(
        row=row,
        column=column,
        rows=rows,
        columns=columns,
        differing_pixels=int(pixel_differs[inside].sum()),
        mean_abs=mean_abs if math.isfinite(mean_abs) else None,
    )


def _pattern(differing_pixel_share: float, mean_abs: float | None, worst: Window) -> Pattern:
    if differing_pixel_share == 0:
        return "none"
    if mean_abs and worst.mean_abs is not None:
        concentration = worst.mean_abs / mean_abs
    else:
        concentration = worst.differing_share / differing_pixel_share
    if worst.differing_share >= LOCAL_WINDOW_SHARE and concentration >= LOCAL_CONCENTRATION:
        return "local"
    return "widespread" if differing_pixel_share >= WIDESPREAD_SHARE else "scattered"


def _colour_and_alpha(a: Array, b: Array, *, has_alpha: bool) -> list[tuple[npt.NDArray[np.float64], ...]]:
    pair = (a.astype(np.float64), b.astype(np.float64))
    if not has_alpha:
        return [pair]
    return [tuple(x[..., :-1] for x in pair), tuple(x[..., -1] for x in pair)]


def _ssim_of(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], data_range: float, window: int) -> float:
    from skimage.metrics import structural_similarity

    channel_axis = 2 if a.ndim == 3 else None
    return float(structural_similarity(a, b, win_size=window, data_range=data_range, channel_axis=channel_axis))


def _largest_odd_window(side: int) -> int | None:
    window = min(DEFAULT_SSIM_WINDOW, side if side % 2 else side - 1)
    return window if window >= 3 else None


def _ssim_variant(array: Array, data_range: float, window: int, *, has_alpha: bool) -> str:
    channels = array.shape[2] if array.ndim == 3 else 1
    averaged = f"mean of {channels} channels" if channels > 1 else "1 channel"
    if has_alpha:
        averaged = "the lower of colour and alpha"
    return (
        f"scikit-image {version('scikit-image')}, uniform {window}x{window} window, sample covariance, "
        f"{averaged}, data range {data_range:g}"
    )


def _needs_data_range(array: Array) -> str:
    return f"{array.dtype} values have no data range of their own; compare-media takes one as --data-range"
