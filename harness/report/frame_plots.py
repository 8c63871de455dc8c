"""How far every frame of the worst pair of two videos is apart, as curves over the frames; HTML only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuseproof.harness.media.clip_comparison import ClipComparison
from fuseproof.harness.report.document import Part, Trace

MOST_POINTS = 400


def frame_plots(title: str, comparison: ClipComparison) -> Iterator[Part]:
    """SSIM and PSNR of each frame; the numbers are in report.json. Nothing for one frame, or where none differs."""
    if len(comparison.distances) < 2 or not comparison.changed_frames:
        return
    last = f"frames 1 to {len(comparison.distances)}"
    ssim = [own.ssim for own in comparison.distances]
    yield from _curve(f"{title}: SSIM of {last}, 1 for an identical one", ssim, "{:.4f}")
    psnr = [own.psnr_db for own in comparison.distances]
    has_identical = any(own.identical for own in comparison.distances)
    note = ", an identical one at the top" if has_identical else ""
    yield from _curve(f"{title}: PSNR of {last}{note}", psnr, "{:.2f} dB")


def _curve(title: str, values: Sequence[float | None], form: str) -> Iterator[Part]:
    """A value that is None (infinite) stands at the top; a long clip keeps the lowest value of every stretch."""
    known = [value for value in values if value is not None]
    if not known:
        return
    low, high = min(known), max(known)
    span = (high - low) or 1.0
    filled = [high if value is None else value for value in values]
    size = -(-len(filled) // MOST_POINTS)
    lowest = [(start, min(filled[start : start + size])) for start in range(0, len(filled), size)]
    last = max(1, len(filled) - 1)
    points = tuple((round(start / last, 4), round((value - low) / span, 4)) for start, value in lowest)
    yield Trace(title, points, form.format(low), form.format(high))
