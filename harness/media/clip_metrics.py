"""How far the frames of two clips of one shape and dtype are apart, a pair at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fuseproof.harness.media.clips import Clip
from fuseproof.harness.media.files import Array
from fuseproof.harness.media.metrics import (
    Difference,
    Metric,
    count_nonfinite,
    differing_bits,
    measure_difference,
    psnr,
    ssim,
)

_NOT_FINITE = Metric(None, "there are non-finite values")
_BY_DEFINITION = "every frame is identical, so it is not computed"


@dataclass(frozen=True)
class FrameDistance:
    """One frame of A against the same frame of B. Of an equal one SSIM is 1 and PSNR, which is infinite, is None.

    A frame whose planes differ and whose RGB does not has no differing values and still is not identical.
    """

    identical: bool
    ssim: float | None
    psnr_db: float | None
    max_abs: float | None
    differing_values: int


_EQUAL = FrameDistance(identical=True, ssim=1.0, psnr_db=None, max_abs=0.0, differing_values=0)


class Measured:
    """The distances of all frames in order, and the worst frame's values; no other frame is kept."""

    def __init__(self, data_range: float | None) -> None:
        self.distances: list[FrameDistance] = []
        self.worst_frame: int | None = None
        self._data_range = data_range
        self._worst_key: tuple[float, float, float] | None = None
        self._worst_pixels: tuple[Array, Array] | None = None
        self._ssim: list[Metric] = []
        self._psnr: list[Metric] = []

    def add_all(self, a: Clip, b: Clip) -> None:
        """Measure every frame of two clips of equal shape; nothing is decoded where all hashes agree."""
        has_same_format = a.pixel_format == b.pixel_format
        if has_same_format and a.frames_sha256 == b.frames_sha256:
            self.distances = [_EQUAL] * a.frames
            return
        for index, (own, other) in enumerate(zip(a.read(), b.read(), strict=True)):
            if has_same_format and a.frames_sha256[index] == b.frames_sha256[index]:
                self.distances.append(_EQUAL)
            else:
                self._add(own.pixels, other.pixels, can_be_equal=not has_same_format)

    @property
    def ssim(self) -> Metric:
        """The worst frame's, or why a frame has none."""
        return _worst(self._ssim, Metric(1.0, variant=_BY_DEFINITION))

    @property
    def psnr(self) -> Metric:
        """The worst frame's, or why a frame has none."""
        return _worst(self._psnr, Metric(None, is_infinite=True, variant=_BY_DEFINITION))

    @property
    def worst_difference(self) -> Difference | None:
        """Of the worst frame; None where every frame is identical."""
        return None if self._worst_pixels is None else measure_difference(*self._worst_pixels)

    def _add(self, a: Array, b: Array, *, can_be_equal: bool) -> None:
        differing = differing_bits(a, b)
        if can_be_equal and not differing.any():
            self.distances.append(_EQUAL)
            return
        is_finite = not (count_nonfinite(a) or count_nonfinite(b))
        similarity, noise = (_NOT_FINITE, _NOT_FINITE) if not is_finite else self._similarities(a, b)
        largest = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) if is_finite else None
        distance = FrameDistance(False, similarity.value, noise.value, largest, int(differing.sum()))
        self.distances.append(distance)
        self._ssim.append(similarity)
        self._psnr.append(noise)
        key = _key(distance)
        if self._worst_key is None or key < self._worst_key:
            self._worst_key, self._worst_pixels, self.worst_frame = key, (a, b), len(self.distances)

    def _similarities(self, a: Array, b: Array) -> tuple[Metric, Metric]:
        return ssim(a, b, self._data_range, has_alpha=False), psnr(a, b, self._data_range, has_alpha=False)


def _key(distance: FrameDistance) -> tuple[float, float, float]:
    """Sorts the worst frame first: non-finite, then by PSNR, by SSIM, by the largest distance."""
    if distance.max_abs is None:
        return (-1.0, 0.0, 0.0)
    closeness = [float("inf") if value is None else value for value in (distance.psnr_db, distance.ssim)]
    return (closeness[0], closeness[1], -distance.max_abs)


def _worst(metrics: list[Metric], none: Metric) -> Metric:
    """The lowest one; one that is unavailable comes before all numbers, and an infinite one behind them."""
    if not metrics:
        return none
    missing = next((metric for metric in metrics if metric.value is None and not metric.is_infinite), None)
    if missing is not None:
        return missing
    lowest = min(metrics, key=lambda metric: float("inf") if metric.value is None else metric.value)
    return replace(lowest, variant=f"of the worst frame; {lowest.variant}")
