"""Compare two videos frame by frame: equality by the decoder's own planes, then how far apart each frame is.

The worst frame decides: its SSIM and its PSNR are the clip's, the means stand beside them and decide nothing. Geometry,
frame count, channels and depth must agree. Frame rate and sound are compared too: SSIM and PSNR do not see them, so a
difference there breaks every contract. Two frames at a time are in memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fuseproof.harness.media.audio_comparison import audio_differences
from fuseproof.harness.media.clip_metrics import FrameDistance, Measured
from fuseproof.harness.media.clip_sides import (
    ClipSide,
    clip_warnings,
    mismatch_of,
    range_warnings,
    rate_differences,
    side_of,
)
from fuseproof.harness.media.clips import Clip
from fuseproof.harness.media.comparison import check_data_range
from fuseproof.harness.media.metrics import Difference, Metric, fixed_data_range
from fuseproof.harness.media.proof import proof_gaps, proof_losses, share_text
from fuseproof.harness.media.similarities import Equality, Similarities

USUAL_SSIM = 0.92
USUAL_PSNR_DB = 24.0
"""The floors that pull requests hold the worst frame of a video to."""
MOST_NAMED_FRAMES = 8


@dataclass(frozen=True)
class ClipComparison(Similarities):
    """The result for one pair of videos; satisfies ``schedules.contracts.Measured``. Frames count from 1.

    ``ssim`` and ``psnr_db`` are those of the worst frame. ``unseen`` are differences that no frame shows: rate, sound.
    ``worst_difference`` is of the frame ``worst_frame``; None where every frame is identical.
    """

    a: ClipSide
    b: ClipSide
    equality: Equality
    mismatch: str | None
    unseen: tuple[str, ...]
    distances: tuple[FrameDistance, ...]
    values: int
    data_range: float | None
    ssim_metric: Metric
    psnr_metric: Metric
    worst_frame: int | None
    worst_difference: Difference | None
    warnings: tuple[str, ...]

    @property
    def changed_frames(self) -> tuple[int, ...]:
        """The numbers, from 1, of the frames that are not identical."""
        return tuple(number for number, own in enumerate(self.distances, start=1) if not own.identical)

    @property
    def mean_ssim(self) -> float | None:
        """Over all frames, identical ones as 1."""
        known = [own.ssim for own in self.distances if own.ssim is not None]
        return math.fsum(known) / len(known) if known and len(known) == len(self.distances) else None

    @property
    def mean_psnr_db(self) -> float | None:
        """Over the frames that have one: an identical frame's is infinite."""
        known = [own.psnr_db for own in self.distances if own.psnr_db is not None]
        return math.fsum(known) / len(known) if known else None

    @property
    def worst_ssim_frame(self) -> int | None:
        return _lowest([own.ssim for own in self.distances], self.changed_frames)

    @property
    def worst_psnr_frame(self) -> int | None:
        return _lowest([own.psnr_db for own in self.distances], self.changed_frames)

    @property
    def max_abs(self) -> float | None:
        """The largest distance of two values in any frame."""
        known = [own.max_abs for own in self.distances]
        return None if None in known or not known else max(own for own in known if own is not None)

    @property
    def differing_values(self) -> int:
        return sum(own.differing_values for own in self.distances)

    @property
    def differing_share(self) -> float | None:
        """Share of all frames' values (not pixels) that differ, 0..1."""
        return None if self.mismatch is not None else self.differing_values / self.values

    @property
    def difference(self) -> Difference | None:
        return self.worst_difference

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
    def meets_usual_floors(self) -> bool | None:
        """Whether the worst frame has the SSIM and PSNR usual for videos; None where it has neither."""
        if self.ssim is None or (self.psnr_db is None and not self.psnr_is_infinite):
            return None
        return self.ssim >= USUAL_SSIM and (self.psnr_db is None or self.psnr_db >= USUAL_PSNR_DB)

    @property
    def differing(self) -> str:
        """How much differs, in words."""
        if self.mismatch is not None:
            return self.mismatch
        return "; ".join(filter(None, (self.frames_text, *self.unseen)))

    @property
    def frames_text(self) -> str:
        """Which frames differ, how much of them and by how much at most; that none does, where none does."""
        changed = self.changed_frames
        if not changed:
            return f"all {len(self.distances)} frames are identical"
        counted = f"{len(changed)} of {len(self.distances)} frames differ ({numbers_text(changed)})"
        if self.max_abs == 0:
            return f"{counted}, in their planes or bits only: no value that is shown differs"
        share = share_text(self.differing_share or 0.0)
        text = f"{counted}, in {self.differing_values:,} of {self.values:,} values ({share})"
        return text if self.max_abs is None else f"{text}, the largest by {self.max_abs:g}"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: no NaN or Infinity; an infinite PSNR is null with ``psnr_is_infinite``."""
        return {
            "kind": "video",
            "a": asdict(self.a),
            "b": asdict(self.b),
            "equality": self.equality,
            "identical": self.identical,
            "mismatch": self.mismatch,
            "unseen": list(self.unseen),
            "frames": len(self.distances),
            "identical_frames": len(self.distances) - len(self.changed_frames),
            "changed_frames": list(self.changed_frames),
            "data_range": self.data_range,
            "ssim": self.ssim,
            "ssim_frame": self.worst_ssim_frame,
            "mean_ssim": self.mean_ssim,
            "ssim_variant": self.ssim_variant or None,
            "ssim_unavailable": self.ssim_unavailable,
            "psnr_db": self.psnr_db,
            "psnr_frame": self.worst_psnr_frame,
            "mean_psnr_db": self.mean_psnr_db,
            "psnr_is_infinite": self.psnr_is_infinite,
            "psnr_unavailable": self.psnr_unavailable,
            "usual_floors": {"ssim": USUAL_SSIM, "psnr_db": USUAL_PSNR_DB, "met": self.meets_usual_floors},
            "max_abs": self.max_abs,
            "values": self.values,
            "differing_values": self.differing_values,
            "differing_share": self.differing_share,
            "worst_frame": self.worst_frame,
            "worst_difference": asdict(self.worst_difference) if self.worst_difference else None,
            "distances": [asdict(own) for own in self.distances],
            "degenerate": list(self.degenerate),
            "lossy": list(self.lossy),
            "warnings": list(self.warnings),
        }


def compare_clips(a: Clip, b: Clip, *, data_range: float | None = None) -> ClipComparison:
    """Compare two clips; ``data_range`` is as for pictures. Frames that are equal are not decoded a second time for
    their values.

    Raises:
        UsageError: ``data_range`` is not a finite number above 0.
        FuseproofError: a file is no longer what it was when it was hashed.
    """
    check_data_range(data_range)
    sides, unseen = (side_of(a), side_of(b)), (*rate_differences(a, b), *audio_differences(a, b))
    mismatch = mismatch_of(a, b)
    if mismatch is not None:
        none = Metric(None, "the two mismatch")
        return ClipComparison(
            *sides, "different", mismatch, unseen, (), 0, None, none, none, None, None, clip_warnings(a, b)
        )
    effective_range = fixed_data_range(a.dtype) or data_range
    measured = Measured(effective_range)
    measured.add_all(a, b)
    is_equal = not (measured.worst_frame or unseen)
    return ClipComparison(
        *sides,
        ("file" if a.file_sha256 == b.file_sha256 else "pixels") if is_equal else "different",
        None,
        unseen,
        tuple(measured.distances),
        a.frames * a.height * a.width * a.channels,
        effective_range,
        measured.ssim,
        measured.psnr,
        measured.worst_frame,
        measured.worst_difference,
        (*clip_warnings(a, b), *range_warnings(a, b, effective_range)),
    )


def numbers_text(numbers: Sequence[int]) -> str:
    """``number 2``, ``numbers 3 to 7, 9``: runs of numbers, and how many numbers are not named."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    named = [" to ".join(map(str, run)) for run in runs[:MOST_NAMED_FRAMES]]
    rest = sum(run[-1] - run[0] + 1 for run in runs[MOST_NAMED_FRAMES:])
    more = f" and {rest} more" if rest else ""
    return f"number{'' if len(numbers) == 1 else 's'} {', '.join(named)}{more}"


def _lowest(values: Sequence[float | None], changed: Sequence[int]) -> int | None:
    """The number of the changed frame with the lowest value; None where none has one."""
    known = [(value, number) for number in changed if (value := values[number - 1]) is not None]
    return min(known)[1] if known else None
