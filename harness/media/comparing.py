"""Two files of any medium: pictures with pictures, videos with videos."""

from __future__ import annotations

from pathlib import Path

from fuseproof.harness.media.clip_comparison import ClipComparison, compare_clips
from fuseproof.harness.media.clips import is_clip, load_clip
from fuseproof.harness.media.comparison import MediaComparison, check_data_range, compare_pictures
from fuseproof.harness.media.decoding import Picture, load_image
from fuseproof.harness.media.refusals import check_regular_file, unreadable

Comparison = MediaComparison | ClipComparison


def compare_files(a: Path, b: Path, *, data_range: float | None = None) -> Comparison:
    """Compare two pictures, or two videos frame by frame.

    Raises:
        UsageError: ``data_range`` is not a finite number above 0.
        FuseproofError: a file is unreadable, or one is a picture and the other a video.
    """
    check_data_range(data_range)
    for path in (a, b):
        check_regular_file(path)
    if is_clip(a) and is_clip(b):
        return compare_clips(load_clip(a), load_clip(b), data_range=data_range)
    if is_clip(a) or is_clip(b):
        clip, picture = (a, b) if is_clip(a) else (b, a)
        raise unreadable(clip, f"it is a video and {picture.name} is a picture", "name two videos or two pictures")
    return compare_pictures(load_image(a), load_image(b), data_range=data_range)


def shown_picture(path: Path, frame: int | None = None) -> Picture:
    """A picture, or frame ``frame`` of a video, from 1; without a number the one in the middle.

    Raises :class:`FuseproofError` for a file that cannot be read.
    """
    if not is_clip(path):
        return load_image(path)
    clip = load_clip(path)
    return clip.picture((clip.frames + 1) // 2 if frame is None else frame)
