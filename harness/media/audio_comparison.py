"""The sound of two videos: tracks, rates, lengths, samples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fuseproof.harness.media.clips import Clip
from fuseproof.harness.media.metrics import differing_bits
from fuseproof.harness.media.video_stream import AudioTrack, audio_samples


def audio_differences(a: Clip, b: Clip) -> tuple[str, ...]:
    """One sentence a difference; none where both are silent or sound the same, sample by sample."""
    if len(a.audio) != len(b.audio):
        return (f"sound: A has {_tracks(len(a.audio))}, B has {_tracks(len(b.audio))}",)
    return tuple(_differences(a, b))


def track_text(track: AudioTrack) -> str:
    """``aac, 48000 Hz, stereo, 96000 samples``."""
    return f"{track.codec}, {track.sample_rate} Hz, {track.layout}, {track.samples} samples"


def _tracks(count: int) -> str:
    return "none" if count == 0 else f"{count} track{'' if count == 1 else 's'}"


def _differences(a: Clip, b: Clip) -> Iterator[str]:
    for index, (own, other) in enumerate(zip(a.audio, b.audio, strict=True)):
        name = "sound" if len(a.audio) == 1 else f"sound of track {index + 1}"
        shapes = [(track.sample_rate, track.layout, track.samples) for track in (own, other)]
        if shapes[0] != shapes[1]:
            yield f"{name}: A is {track_text(own)}; B is {track_text(other)}"
        elif own.sha256 != other.sha256:
            yield f"{name}: {_samples_text(a, b, index)}"


def _samples_text(a: Clip, b: Clip, index: int) -> str:
    own, other = audio_samples(a.path, index), audio_samples(b.path, index)
    if own.dtype != other.dtype or own.shape != other.shape:
        return f"A has {own.dtype} samples, B has {other.dtype} ones"
    differs = differing_bits(own, other).any(axis=1)
    distance = np.abs(own.astype(np.float64) - other.astype(np.float64)).max()
    first = int(differs.argmax())
    return f"{int(differs.sum()):,} of {len(own):,} samples differ, the first is number {first + 1:,}, by {distance:g}"
