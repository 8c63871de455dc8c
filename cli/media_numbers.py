"""The numbers of a media comparison as ``compare-media`` prints them."""

from __future__ import annotations

from fuseproof.harness.media.comparing import Comparison
from fuseproof.harness.media.comparison import share_text
from fuseproof.harness.media.metrics import Window

LABEL_WIDTH = 15


def ssim_text(value: float | None) -> str:
    """Six decimals, and never 1 for a value below it."""
    if value is None or value == 1:
        return "n/a" if value is None else "1"
    text = f"{value:.6f}"
    return f"1 - {1 - value:.2g}" if float(text) >= 1 else text


def psnr_text(comparison: Comparison) -> str:
    if comparison.psnr_is_infinite:
        return "∞ dB"
    return "n/a" if comparison.psnr_db is None else f"{comparison.psnr_db:.2f} dB"


def window_text(window: Window) -> str:
    counts = f"{window.differing_pixels:,} of {window.pixels:,} pixels differ"
    place = f"{window.columns}x{window.rows} px at x {window.column}, y {window.row}"
    return f"{place}: {counts}, mean |Δ| {level_text(window.mean_abs)}"


def hashes_text(a: str, b: str) -> str:
    return f"{a} (both)" if a == b else f"A {a}\n{' ' * LABEL_WIDTH} B {b}"


def share_of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({share_text(part / whole)})"


def level_text(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def row(label: str, text: str) -> str:
    return f"{label:<{LABEL_WIDTH}} {text}"
