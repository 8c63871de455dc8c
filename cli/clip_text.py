"""A comparison of two videos as rows of plain text with units."""

from __future__ import annotations

from fuseproof.cli.media_numbers import hashes_text, level_text, psnr_text, row, share_of, ssim_text, window_text
from fuseproof.harness.media.clip_comparison import USUAL_PSNR_DB, USUAL_SSIM, ClipComparison, numbers_text
from fuseproof.harness.media.clip_sides import ClipSide

_EQUALITY = {
    "file": "identical: file bytes and decoded frames are the same",
    "pixels": "frame-identical: decoded frames are the same, file bytes differ",
    "different": "different",
}


def clip_rows(comparison: ClipComparison) -> list[str]:
    """Both clips, then what is equal, then the worst frame and the mean, then what proves nothing."""
    rows = [row("A", _side_text(comparison.a)), row("B", _side_text(comparison.b))]
    if comparison.mismatch is not None:
        rows.append(row("MISMATCH", f"{comparison.mismatch}; nothing was resized, converted or cut"))
        return [*rows, *(row("DIFFERENT", text) for text in comparison.unseen)]
    rows.append(row("equality", _equality_text(comparison)))
    rows.append(row("file SHA-256", hashes_text(comparison.a.file_sha256, comparison.b.file_sha256)))
    rows.append(row("decoded SHA-256", hashes_text(comparison.a.pixels_sha256, comparison.b.pixels_sha256)))
    rows += _frame_rows(comparison)
    rows += [row("DIFFERENT", text) for text in comparison.unseen]
    rows += [row("DEGENERATE", sentence) for sentence in comparison.degenerate]
    return rows + [row("LOSSY", sentence) for sentence in comparison.lossy]


def _equality_text(comparison: ClipComparison) -> str:
    text = _EQUALITY[comparison.equality]
    return f"{text}: {comparison.differing}" if comparison.equality == "different" else text


def _frame_rows(comparison: ClipComparison) -> list[str]:
    changed, total = comparison.changed_frames, len(comparison.distances)
    rows = [row("frames", f"{total - len(changed)} of {total} identical")]
    if changed:
        rows.append(row("changed", numbers_text(changed)))
    rows.append(row("SSIM", _worst_and_mean(comparison, "SSIM")))
    rows.append(row("PSNR", _worst_and_mean(comparison, "PSNR")))
    if not changed:
        return rows
    rows.append(row("usual floors", _floors_text(comparison)))
    scale = "" if comparison.data_range is None else f" of {comparison.data_range:g}"
    rows.append(row("max |Δ|", f"{level_text(comparison.max_abs)}{scale}"))
    rows.append(row("differing", f"{share_of(comparison.differing_values, comparison.values)} values of all frames"))
    window = comparison.worst_difference
    if window is not None and window.pattern != "none":
        place = f"of frame {comparison.worst_frame}: {window_text(window.worst_window)}"
        rows += [row("worst window", place), row("pattern", f"{window.pattern}, in frame {comparison.worst_frame}")]
    return rows


def _worst_and_mean(comparison: ClipComparison, name: str) -> str:
    is_ssim = name == "SSIM"
    reason = comparison.ssim_unavailable if is_ssim else comparison.psnr_unavailable
    metric = comparison.ssim_metric if is_ssim else comparison.psnr_metric
    if not comparison.changed_frames or reason is not None:
        value = ssim_text(comparison.ssim) if is_ssim else psnr_text(comparison)
        return f"{value} ({reason or metric.variant})"
    variant = metric.variant.removeprefix("of the worst frame; ")
    if is_ssim:
        worst, number = ssim_text(comparison.ssim), comparison.worst_ssim_frame
        return f"worst {worst} (frame {number}), mean {ssim_text(comparison.mean_ssim)} ({variant})"
    if comparison.worst_psnr_frame is None:
        return f"{psnr_text(comparison)} ({variant})"
    mean = "n/a" if comparison.mean_psnr_db is None else f"{comparison.mean_psnr_db:.2f} dB"
    over = "" if len(comparison.changed_frames) == len(comparison.distances) else " of the frames that differ"
    return f"worst {psnr_text(comparison)} (frame {comparison.worst_psnr_frame}), mean {mean}{over} ({variant})"


def _floors_text(comparison: ClipComparison) -> str:
    floors = f"of videos, for the worst frame: SSIM >= {USUAL_SSIM:g} and PSNR >= {USUAL_PSNR_DB:g} dB"
    words = {True: "met", False: "NOT met", None: "not judged"}
    return f"{words[comparison.meets_usual_floors]} ({floors})"


def _side_text(side: ClipSide) -> str:
    rate = "no frame rate" if side.fps is None else f"{side.fps:g} fps"
    sound = "; ".join(side.audio) or "no sound"
    values = side.dtype if side.pixel_format == "array" else f"{side.pixel_format}, {side.codec}"
    size = f"{side.width}x{side.height} px, {side.frames} frames, {rate}"
    return f"{side.path}: {size}, {values}, {side.container}, {sound}"
