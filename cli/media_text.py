"""``compare-media``'s report as plain text with units."""

from __future__ import annotations

from fuseproof.harness.media.comparison import MediaComparison, Side, share_text
from fuseproof.harness.media.files import printable
from fuseproof.harness.media.folders import MediaReport, Pair
from fuseproof.harness.media.metrics import Window

_LABEL_WIDTH = 15
_EQUALITY = {
    "file": "identical: file bytes and decoded values are the same",
    "pixels": "pixel-identical: decoded values are the same, file bytes differ",
    "different": "different: decoded values differ",
}
_PATTERNS = {
    "none": "",
    "scattered": "scattered: few pixels differ and no window stands out",
    "local": "local: one window is far worse than the rest of the picture",
    "widespread": "widespread: many pixels differ and no window stands out",
}


def report_text(report: MediaReport) -> str:
    """Every pair in one table when there are several, then the only or the worst pair in full."""
    if len(report.pairs) == 1 and not report.unmatched:
        return _details(report.pairs[0])
    worst = report.worst()
    sections = [_table(report), _extremes(report)]
    sections.append("\n".join([f"Worst pair: {printable(worst.name)}", _details(worst)]))
    return "\n\n".join(section for section in sections if section)


def ssim_text(value: float | None) -> str:
    """Six decimals, and never 1 for a value below it."""
    if value is None or value == 1:
        return "n/a" if value is None else "1"
    text = f"{value:.6f}"
    return f"1 - {1 - value:.2g}" if float(text) >= 1 else text


def psnr_text(comparison: MediaComparison) -> str:
    if comparison.psnr_is_infinite:
        return "∞ dB"
    return "n/a" if comparison.psnr_db is None else f"{comparison.psnr_db:.2f} dB"


def _details(pair: Pair) -> str:
    comparison = pair.comparison
    if comparison is None:
        return _row("unreadable", pair.error.message if pair.error else "")
    rows = [_row("A", _side_text(comparison.a)), _row("B", _side_text(comparison.b))]
    if comparison.mismatch is not None:
        return "\n".join([*rows, _row("MISMATCH", f"{comparison.mismatch}; nothing was resized or converted")])
    rows.append(_row("equality", _EQUALITY[comparison.equality]))
    rows += [_row("file SHA-256", _hashes(comparison.a.file_sha256, comparison.b.file_sha256))]
    rows += [_row("pixel SHA-256", _hashes(comparison.a.pixels_sha256, comparison.b.pixels_sha256))]
    rows += _similarity_rows(comparison) + _distance_rows(comparison)
    rows += [_row("DEGENERATE", sentence) for sentence in comparison.degenerate]
    rows += [_row("LOSSY", sentence) for sentence in comparison.lossy]
    return "\n".join(rows)


def _similarity_rows(comparison: MediaComparison) -> list[str]:
    ssim_note = comparison.ssim_unavailable or comparison.ssim_variant
    psnr_note = comparison.psnr_unavailable or comparison.psnr_metric.variant
    return [
        _row("SSIM", f"{ssim_text(comparison.ssim)} ({ssim_note})"),
        _row("PSNR", f"{psnr_text(comparison)} ({psnr_note})"),
    ]


def _distance_rows(comparison: MediaComparison) -> list[str]:
    counts = comparison.difference
    if counts is None:
        return []
    scale = "" if comparison.data_range is None or counts.max_abs is None else f" of {comparison.data_range:g}"
    rows = [
        _row("max |Δ|", f"{_level(counts.max_abs)}{scale}"),
        _row("mean |Δ|", f"{_level(counts.mean_abs)}, 99th percentile {_level(counts.p99_abs)}"),
        _row("differing", f"{_share(counts.differing_values, counts.values)} values"),
        _row("", f"{_share(counts.differing_pixels, counts.pixels)} pixels"),
    ]
    if counts.pattern == "none":
        return rows
    rows.append(_row("worst window", _window_text(counts.worst_window)))
    rows.append(_row("densest window", _window_text(counts.densest_window)))
    rows.append(_row("pattern", _PATTERNS[counts.pattern]))
    return rows


def _table(report: MediaReport) -> str:
    header = ("pair", "result", "SSIM", "PSNR", "max |Δ|", "differing values")
    lines = [header, *(_table_line(pair) for pair in report.pairs)]
    lines += [(name, "MISSING IN B", "", "", "", "") for name in report.only_in_a]
    lines += [(name, "MISSING IN A", "", "", "", "") for name in report.only_in_b]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    rows += [f"ignored, no media: {', '.join(report.ignored)}"] if report.ignored else []
    rows += [f"unreadable: {error.message}" for error in report.errors]
    return "\n".join(rows)


def _table_line(pair: Pair) -> tuple[str, str, str, str, str, str]:
    name, comparison = printable(pair.name), pair.comparison
    if comparison is None:
        return (name, "UNREADABLE", "", "", "", "")
    if comparison.difference is None:
        return (name, "MISMATCH", "", "", "", "")
    result = {"file": "identical", "pixels": "pixel-identical", "different": "different"}[comparison.equality]
    return (
        name,
        f"{result}, DEGENERATE" if comparison.degenerate else result,
        ssim_text(comparison.ssim),
        psnr_text(comparison),
        _level(comparison.max_abs),
        share_text(comparison.difference.differing_share),
    )


def _extremes(report: MediaReport) -> str:
    """The lowest SSIM, lowest PSNR and largest distance, each with its pair: they need not be the same one."""
    different = [(pair, pair.comparison) for pair in report.pairs if pair.comparison and not pair.comparison.identical]
    lines = []
    by_ssim = [(c.ssim, printable(pair.name)) for pair, c in different if c.ssim is not None]
    if by_ssim:
        lines.append(_row("lowest SSIM", f"{ssim_text(min(by_ssim)[0])} ({min(by_ssim)[1]})"))
    by_psnr = [(c.psnr_db, printable(pair.name)) for pair, c in different if c.psnr_db is not None]
    if by_psnr:
        lines.append(_row("lowest PSNR", f"{min(by_psnr)[0]:.2f} dB ({min(by_psnr)[1]})"))
    by_distance = [(c.max_abs, printable(pair.name)) for pair, c in different if c.max_abs is not None]
    if by_distance:
        lines.append(_row("largest |Δ|", f"{max(by_distance)[0]:g} ({max(by_distance)[1]})"))
    return "\n".join(lines)


def _side_text(side: Side) -> str:
    values = f"{side.mode}, {side.bits} bits a value ({side.dtype})"
    return f"{side.path}: {side.width}x{side.height} px, {values}, {side.container}"


def _window_text(window: Window) -> str:
    counts = f"{window.differing_pixels:,} of {window.pixels:,} pixels differ"
    place = f"{window.columns}x{window.rows} px at x {window.column}, y {window.row}"
    return f"{place}: {counts}, mean |Δ| {_level(window.mean_abs)}"


def _hashes(a: str, b: str) -> str:
    return f"{a} (both)" if a == b else f"A {a}\n{' ' * _LABEL_WIDTH} B {b}"


def _share(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({share_text(part / whole)})"


def _level(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _row(label: str, text: str) -> str:
    return f"{label:<{_LABEL_WIDTH}} {text}"
