"""Compare two pictures: equality by file bytes, then by decoded values, then how far apart they are.

Equality is never read off SSIM. Size, channels and bit depth must agree; a mismatch is reported with both values and
nothing is resized or converted. Equal files of a lossy container do not prove equal outputs, and equal degenerate
pictures (constant, non-finite) prove nothing: both are kept as objections that a contract sees.

Colour modes are compared as :mod:`fuseproof.harness.media.decoding` reads them: RGB against RGBA, L or CMYK is a
channel mismatch even when they would look alike, a palette picture counts as the RGB or RGBA picture it shows, and a
difference in alpha alone is a difference. A ``.npy`` array may face a picture of its own shape and dtype.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fuseproof.errors import UsageError
from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.decoding import Picture, load_image
from fuseproof.harness.media.files import array_sha256, degenerate_reason, file_sha256, printable, write_png
from fuseproof.harness.media.metrics import (
    Difference,
    Metric,
    count_nonfinite,
    fixed_data_range,
    measure_difference,
    psnr,
    ssim,
)
from fuseproof.harness.media.proof import distance_text, proof_gaps, proof_losses, share_text, span_warnings
from fuseproof.harness.media.similarities import Equality, Similarities

__all__ = [
    "MediaComparison",
    "Picture",
    "Side",
    "array_sha256",
    "check_data_range",
    "compare_pictures",
    "degenerate_reason",
    "distance_text",
    "file_sha256",
    "load_image",
    "share_text",
    "write_png",
]


@dataclass(frozen=True)
class Side:
    """What is known of one of the two pictures without its values; ``path`` is fit to be published."""

    path: str
    width: int
    height: int
    mode: str
    bits: int
    dtype: str
    container: str
    file_sha256: str
    pixels_sha256: str
    nonfinite: int
    degenerate: str | None
    lossy: str | None


@dataclass(frozen=True)
class MediaComparison(Similarities):
    """The result for one pair; satisfies ``schedules.contracts.Measured``.

    ``difference`` is None when the two mismatch. ``psnr_db`` is None when PSNR is infinite or unavailable, and
    ``psnr_is_infinite`` / ``psnr_unavailable`` tell which. SSIM is exactly 1 only for equal values.
    """

    a: Side
    b: Side
    equality: Equality
    mismatch: str | None
    difference: Difference | None
    data_range: float | None
    ssim_metric: Metric
    psnr_metric: Metric
    warnings: tuple[str, ...]

    @property
    def max_abs(self) -> float | None:
        return self.difference.max_abs if self.difference else None

    @property
    def mean_abs(self) -> float | None:
        return self.difference.mean_abs if self.difference else None

    @property
    def differing_share(self) -> float | None:
        """Share of values (not pixels) whose bits differ, 0..1."""
        return self.difference.differing_share if self.difference else None

    @property
    def has_nonfinite(self) -> bool:
        return self.a.nonfinite > 0 or self.b.nonfinite > 0

    @property
    def degenerate(self) -> tuple[str, ...]:
        """One sentence a side whose values prove nothing."""
        return proof_gaps(self.a, self.b)

    @property
    def lossy(self) -> tuple[str, ...]:
        """One sentence a side whose container may hide or make differences."""
        return proof_losses(self.a, self.b)

    @property
    def unseen(self) -> tuple[str, ...]:
        """A picture has nothing beside its values; a video has a frame rate and sound."""
        return ()

    @property
    def differing(self) -> str:
        """How much differs, in words."""
        if self.difference is None:
            return self.mismatch or ""
        counts = self.difference
        text = f"{counts.differing_values:,} of {counts.values:,} values differ ({share_text(counts.differing_share)})"
        if counts.max_abs == 0 and counts.differing_values:
            return f"{text}, in their bits only (signed zeros)"
        return text if counts.max_abs is None else f"{text}, the largest by {counts.max_abs:g}"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: no NaN or Infinity; an infinite PSNR is null with ``psnr_is_infinite``."""
        return {
            "a": asdict(self.a),
            "b": asdict(self.b),
            "equality": self.equality,
            "identical": self.identical,
            "mismatch": self.mismatch,
            "data_range": self.data_range,
            "ssim": self.ssim,
            "ssim_variant": self.ssim_variant or None,
            "ssim_unavailable": self.ssim_unavailable,
            "psnr_db": self.psnr_db,
            "psnr_is_infinite": self.psnr_is_infinite,
            "psnr_unavailable": self.psnr_unavailable,
            "differing_share": self.differing_share,
            "differing_pixel_share": self.difference.differing_pixel_share if self.difference else None,
            "difference": asdict(self.difference) if self.difference else None,
            "degenerate": list(self.degenerate),
            "lossy": list(self.lossy),
            "warnings": list(self.warnings),
        }


def compare_pictures(a: Picture, b: Picture, *, data_range: float | None = None) -> MediaComparison:
    """Compare two decoded pictures.

    ``data_range`` (largest minus smallest possible value) is for dtypes that do not imply it, such as float32; without
    it their SSIM and PSNR are unavailable. bool, uint8 and uint16 use 1, 255 and 65535.

    Raises:
        UsageError: ``data_range`` is not a finite number above 0.
    """
    check_data_range(data_range)
    mismatch = _mismatch(a, b)
    sides = _side(a), _side(b)
    if mismatch is not None:
        unavailable = Metric(None, "the two mismatch")
        notes = _warnings(a, b)
        return MediaComparison(*sides, "different", mismatch, None, None, unavailable, unavailable, notes)
    effective_range = fixed_data_range(a.pixels.dtype) or data_range
    is_identical = a.pixels_sha256 == b.pixels_sha256
    similarities = _similarities(a, b, effective_range, is_identical=is_identical)
    equality: Equality = "different"
    if is_identical:
        equality = "file" if a.file_sha256 == b.file_sha256 else "pixels"
    return MediaComparison(
        *sides,
        equality,
        None,
        measure_difference(a.pixels, b.pixels),
        effective_range,
        *similarities,
        _warnings(a, b) + _range_warnings(a, b, effective_range),
    )


def check_data_range(data_range: float | None) -> None:
    """Raise a UsageError unless ``data_range`` is None or a finite number above 0."""
    if data_range is not None and not (math.isfinite(data_range) and data_range > 0):
        raise UsageError(
            f"The data range is {data_range}; it must be a finite number above 0.",
            next_step="1 suits values in 0..1, 2 suits values in -1..1",
        )


def _side(picture: Picture) -> Side:
    return Side(
        path=redact(printable(picture.path)),
        width=picture.width,
        height=picture.height,
        mode=picture.mode,
        bits=picture.bits,
        dtype=picture.pixels.dtype.name,
        container=picture.container,
        file_sha256=picture.file_sha256,
        pixels_sha256=picture.pixels_sha256,
        nonfinite=count_nonfinite(picture.pixels),
        degenerate=degenerate_reason(picture.pixels),
        lossy=picture.lossy,
    )


def _mismatch(a: Picture, b: Picture) -> str | None:
    reasons = []
    if (a.width, a.height) != (b.width, b.height):
        reasons.append(f"geometry: A is {a.width}x{a.height} px, B is {b.width}x{b.height} px")
    is_same_meaning = a.mode == b.mode or "array" in (a.mode, b.mode)
    if not is_same_meaning or a.pixels.shape[2:] != b.pixels.shape[2:]:
        reasons.append(f"channels: A has {a.channels} ({a.mode}), B has {b.channels} ({b.mode})")
    if a.pixels.dtype != b.pixels.dtype:
        reasons.append(f"bit depth: A has {a.bits} bits ({a.pixels.dtype}), B has {b.bits} bits ({b.pixels.dtype})")
    return "; ".join(reasons) or None


def _similarities(a: Picture, b: Picture, data_range: float | None, *, is_identical: bool) -> tuple[Metric, Metric]:
    if count_nonfinite(a.pixels) or count_nonfinite(b.pixels):
        unavailable = Metric(None, "there are non-finite values")
        return unavailable, unavailable
    if is_identical:
        by_definition = "all values are equal, so it is not computed"
        return Metric(1.0, variant=by_definition), Metric(None, is_infinite=True, variant=by_definition)
    has_alpha = a.has_alpha or b.has_alpha
    return (
        ssim(a.pixels, b.pixels, data_range, has_alpha=has_alpha),
        psnr(a.pixels, b.pixels, data_range, has_alpha=has_alpha),
    )


def _warnings(a: Picture, b: Picture) -> tuple[str, ...]:
    found = []
    if _is_same_file(a.path, b.path):
        found.append("A and B are the same file; a file always equals itself")
    for label, picture in (("A", a), ("B", b)):
        found += [f"{label}: {note}" for note in picture.notes]
    if a.lossy or b.lossy:
        reasons = "; ".join(f"{label}: {p.lossy}" for label, p in (("A", a), ("B", b)) if p.lossy)
        found.append(f"{reasons}: exactness cannot be shown, and the numbers include the codec's loss")
    if a.container != b.container:
        found.append(f"the containers differ: A is {a.container}, B is {b.container}")
    if a.rendering != b.rendering:
        shown = [", ".join(f"{name} {value}" for name, value in p.rendering) or "none" for p in (a, b)]
        found.append(f"the stored values are compared, but viewers are told differently: A {shown[0]}; B {shown[1]}")
    return tuple(found)


def _range_warnings(a: Picture, b: Picture, data_range: float | None) -> tuple[str, ...]:
    """Float pictures in 0..1 measured with data range 255 look almost perfect whatever they hold."""
    if data_range is None or fixed_data_range(a.pixels.dtype) is not None:
        return ()
    finite = [values[np.isfinite(values)] for values in (a.pixels.astype(np.float64), b.pixels.astype(np.float64))]
    if not all(values.size for values in finite):
        return ()
    low, high = min(float(v.min()) for v in finite), max(float(v.max()) for v in finite)
    return span_warnings(low, high, data_range)


def _is_same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:
        return False
