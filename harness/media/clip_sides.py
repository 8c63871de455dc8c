"""The two videos of a comparison without their values, and what about them keeps or qualifies a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fuseproof.harness.machine.redaction import redact
from fuseproof.harness.media.audio_comparison import track_text
from fuseproof.harness.media.clips import ARRAY, Clip
from fuseproof.harness.media.files import printable
from fuseproof.harness.media.proof import span_warnings


@dataclass(frozen=True)
class ClipSide:
    """What is known of one of the two clips without its values; ``path`` is fit to be published."""

    path: str
    width: int
    height: int
    frames: int
    fps: float | None
    pixel_format: str
    dtype: str
    codec: str
    container: str
    file_sha256: str
    pixels_sha256: str
    nonfinite: int
    degenerate: str | None
    lossy: str | None
    audio: tuple[str, ...]
    """One text a track."""


def side_of(clip: Clip) -> ClipSide:
    """A clip as a comparison publishes it."""
    return ClipSide(
        path=redact(printable(clip.path)),
        width=clip.width,
        height=clip.height,
        frames=clip.frames,
        fps=None if clip.fps is None else float(clip.fps),
        pixel_format=clip.pixel_format,
        dtype=clip.dtype.name,
        codec=clip.codec,
        container=clip.container,
        file_sha256=clip.file_sha256,
        pixels_sha256=clip.pixels_sha256,
        nonfinite=clip.nonfinite,
        degenerate=clip.degenerate,
        lossy=clip.lossy,
        audio=tuple(map(track_text, clip.audio)),
    )


def mismatch_of(a: Clip, b: Clip) -> str | None:
    """Why the frames of two clips cannot be compared, with both values; None where they can."""
    reasons = []
    if (a.width, a.height) != (b.width, b.height):
        reasons.append(f"geometry: A is {a.width}x{a.height} px, B is {b.width}x{b.height} px")
    if a.frames != b.frames:
        reasons.append(f"frame count: A has {a.frames}, B has {b.frames}")
    if a.channels != b.channels:
        reasons.append(f"channels: A has {a.channels}, B has {b.channels}")
    if a.pixel_format != b.pixel_format and ARRAY not in (a.pixel_format, b.pixel_format):
        reasons.append(f"pixel format: A is {a.pixel_format}, B is {b.pixel_format}")
    if a.dtype != b.dtype:
        reasons.append(f"bit depth: A has {a.bits} bits ({a.dtype}), B has {b.bits} bits ({b.dtype})")
    return "; ".join(reasons) or None


def rate_differences(a: Clip, b: Clip) -> Iterator[str]:
    """The sentence about two frame rates that differ."""
    if a.fps is not None and b.fps is not None and a.fps != b.fps:
        yield f"frame rate: A has {float(a.fps):g} fps, B has {float(b.fps):g} fps"


def clip_warnings(a: Clip, b: Clip) -> tuple[str, ...]:
    """What a reader must know beside the numbers."""
    found = []
    if a.path.samefile(b.path):
        found.append("A and B are the same file; a file always equals itself")
    for label, clip in (("A", a), ("B", b)):
        if clip.frames > 1 and len(set(clip.frames_sha256)) == 1:
            found.append(f"{label}: all {clip.frames} frames are the same picture")
    if a.lossy or b.lossy:
        reasons = "; ".join(f"{label}: {clip.lossy}" for label, clip in (("A", a), ("B", b)) if clip.lossy)
        found.append(f"{reasons}: exactness cannot be shown, and the numbers include the codec's loss")
    if (a.container, a.codec) != (b.container, b.codec):
        shown = [f"{clip.codec} in {clip.container}" for clip in (a, b)]
        found.append(f"the containers differ: A is {shown[0]}, B is {shown[1]}")
    if a.rendering and b.rendering and a.rendering != b.rendering:
        told = [", ".join(f"{name} {value}" for name, value in clip.rendering) for clip in (a, b)]
        found.append(f"the stored values are compared, but players are told differently: A {told[0]}; B {told[1]}")
    return tuple(found)


def range_warnings(a: Clip, b: Clip, data_range: float | None) -> tuple[str, ...]:
    """That float clips do not suit the data range that they are measured with."""
    spans = [clip.span for clip in (a, b) if clip.span is not None]
    if data_range is None or not spans:
        return ()
    return span_warnings(min(span[0] for span in spans), max(span[1] for span in spans), data_range)
