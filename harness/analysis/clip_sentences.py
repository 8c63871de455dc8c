"""What differs between two videos in words: of a compared pair, and of the raw frames that slots recorded."""

from __future__ import annotations

from collections.abc import Iterator

from fuseproof.harness.analysis.runs import CellRuns
from fuseproof.harness.campaign.records import SlotOutput
from fuseproof.harness.media.clip_comparison import ClipComparison, numbers_text
from fuseproof.harness.number_format import number

MOST_DIGITS = 17


def clip_text(comparison: ClipComparison) -> str:
    """Which frames differ, the worst frame's SSIM and PSNR with its number, the means, and what no frame shows."""
    parts = [comparison.frames_text]
    if comparison.changed_frames:
        ssim = f"worst SSIM {_ssim(comparison.ssim)}{_frame(comparison.worst_ssim_frame)}"
        parts.append(f"{ssim}, mean {_ssim(comparison.mean_ssim)}")
        psnr = f"worst PSNR {_decibels(comparison.psnr_db)}{_frame(comparison.worst_psnr_frame)}"
        parts.append(f"{psnr}, mean {_decibels(comparison.mean_psnr_db)}")
    return "; ".join((*parts, *comparison.unseen))


def raw_frame_texts(cell: CellRuns) -> Iterator[str]:
    """Of every request the first run with other raw frames than the first baseline run's, and which these are.

    They are told by their hashes from before encoding: an encoder may make equal files of frames that differ.
    """
    reference = cell.of_arm("A")[0].record.outputs
    for request, first in enumerate(reference):
        for run in cell.runs:
            outputs = run.record.outputs
            changed = changed_raw_frames(first, outputs[request]) if request < len(outputs) else ()
            if changed:
                verb = "differs" if len(changed) == 1 else "differ"
                counted = f"{len(changed)} of {len(first.frames_sha256)} raw frames {verb} ({numbers_text(changed)})"
                yield f"output {request + 1} of {run.record.id}: {counted} from the first baseline run's"
                break


def changed_raw_frames(a: SlotOutput, b: SlotOutput) -> tuple[int, ...]:
    """The numbers, from 1, of frames whose hashes differ; none where not both record as many hashes."""
    if len(a.frames_sha256) != len(b.frames_sha256):
        return ()
    pairs = zip(a.frames_sha256, b.frames_sha256, strict=True)
    return tuple(index for index, (own, other) in enumerate(pairs, start=1) if own != other)


def _frame(frame: int | None) -> str:
    return "" if frame is None else f" (frame {frame})"


def _ssim(value: float | None) -> str:
    """With enough digits never to read as 1 when values differ."""
    if value is None:
        return "n/a"
    texts = (f"{value:.{digits}f}" for digits in range(6, MOST_DIGITS))
    return next((text for text in texts if float(text) < 1.0), "just below 1")


def _decibels(value: float | None) -> str:
    return "n/a" if value is None else f"{number(value, 2)} dB"
