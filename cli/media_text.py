"""``compare-media``'s report as plain text with units."""

from __future__ import annotations

from fuseproof.cli.clip_text import clip_rows
from fuseproof.cli.media_numbers import hashes_text, level_text, psnr_text, row, share_of, ssim_text, window_text
from fuseproof.harness.media.clip_comparison import ClipComparison
from fuseproof.harness.media.comparison import MediaComparison, Side, share_text
from fuseproof.harness.media.files import printable
from fuseproof.harness.media.folders import MediaReport, Pair

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


def _details(pair: Pair) -> str:
    comparison = pair.comparison
    if comparison is None:
        return row("unreadable", pair.error.message if pair.error else "")
    if isinstance(comparison, ClipComparison):
        return "\n".join(clip_rows(comparison))
    rows = [row("A", _side_text(comparison.a)), row("B", _side_text(comparison.b))]
    if comparison.mismatch is not None:
        return "\n".join([*rows, row("MISMATCH", f"{comparison.mismatch}; nothing was resized or converted")])
    rows.append(row("equality", _EQUALITY[comparison.equality]))
    rows += [row("file SHA-256", hashes_text(comparison.a.file_sha256, comparison.b.file_sha256))]
    rows += [row("pixel SHA-256", hashes_text(comparison.a.pixels_sha256, comparison.b.pixels_sha256))]
    rows += _similarity_rows(comparison) + _distance_rows(comparison)
    rows += [row("DEGENERATE", sentence) for sentence in comparison.degenerate]
    rows += [row("LOSSY", sentence) for sentence in comparison.lossy]
    return "\n".join(rows)


def _similarity_rows(comparison: MediaComparison) -> list[str]:
    ssim_note = comparison.ssim_unavailable or comparison.ssim_variant
    psnr_note = comparison.psnr_unavailable or comparison.psnr_metric.variant
    return [
        row("SSIM", f"{ssim_text(comparison.ssim)} ({ssim_note})"),
        row("PSNR", f"{psnr_text(comparison)} ({psnr_note})"),
    ]


def _distance_rows(comparison: MediaComparison) -> list[str]:
    counts = comparison.difference
    if counts is None:
        return []
    scale = "" if comparison.data_range is None or counts.max_abs is None else f" of {comparison.data_range:g}"
    rows = [
        row("max |Δ|", f"{level_text(counts.max_abs)}{scale}"),
        row("mean |Δ|", f"{level_text(counts.mean_abs)}, 99th percentile {level_text(counts.p99_abs)}"),
        row("differing", f"{share_of(counts.differing_values, counts.values)} values"),
        row("", f"{share_of(counts.differing_pixels, counts.pixels)} pixels"),
    ]
    if counts.pattern == "none":
        return rows
    rows.append(row("worst window", window_text(counts.worst_window)))
    rows.append(row("densest window", window_text(counts.densest_window)))
    rows.append(row("pattern", _PATTERNS[counts.pattern]))
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
    share = comparison.differing_share
    if comparison.mismatch is not None or share is None:
        return (name, "MISMATCH", "", "", "", "")
    result = {"file": "identical", "pixels": "pixel-identical", "different": "different"}[comparison.equality]
    return (
        name,
        f"{result}, DEGENERATE" if comparison.degenerate else result,
        ssim_text(comparison.ssim),
        psnr_text(comparison),
        level_text(comparison.max_abs),
        share_text(share),
    )


def _extremes(report: MediaReport) -> str:
    """The lowest SSIM, lowest PSNR and largest distance, each with its pair: they need not be the same one."""
    different = [(pair, pair.comparison) for pair in report.pairs if pair.comparison and not pair.comparison.identical]
    lines = []
    by_ssim = [(c.ssim, printable(pair.name)) for pair, c in different if c.ssim is not None]
    if by_ssim:
        lines.append(row("lowest SSIM", f"{ssim_text(min(by_ssim)[0])} ({min(by_ssim)[1]})"))
    by_psnr = [(c.psnr_db, printable(pair.name)) for pair, c in different if c.psnr_db is not None]
    if by_psnr:
        lines.append(row("lowest PSNR", f"{min(by_psnr)[0]:.2f} dB ({min(by_psnr)[1]})"))
    by_distance = [(c.max_abs, printable(pair.name)) for pair, c in different if c.max_abs is not None]
    if by_distance:
        lines.append(row("largest |Δ|", f"{max(by_distance)[0]:g} ({max(by_distance)[1]})"))
    return "\n".join(lines)


def _side_text(side: Side) -> str:
    values = f"{side.mode}, {side.bits} bits a value ({side.dtype})"
    return f"{side.path}: {side.width}x{side.height} px, {values}, {side.container}"
