"""A video file through PyAV: what its header says, its frames one at a time, its sound.

Frames keep the decoder's own planes, which are the same on every machine: they are what is hashed and what equality is
decided by. RGB is made of them only to be measured and shown, with swscale's bit-exact arithmetic.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from fuseproof.errors import FuseproofError
from fuseproof.harness.media.files import Array
from fuseproof.harness.media.refusals import check_pixel_count, one_line, unreadable

PIXEL_FORMATS = frozenset(
    {
        *("yuv420p", "yuv422p", "yuv444p", "yuvj420p", "yuvj422p", "yuvj444p"),
        *("gray", "gbrp", "rgb24", "bgr24", "bgr0", "rgb0"),
    }
)
"""Whose planes are 8 bits a value: what is deeper, or has alpha, would be cut to be measured."""
_BYTES_PER_PIXEL = {"rgb24": 3, "bgr24": 3, "bgr0": 4, "rgb0": 4}
_LOSSLESS_CODECS = frozenset({"ffv1", "ffvhuff", "huffyuv", "rawvideo", "png", "utvideo"})
_LARGEST_RATE_DENOMINATOR = 1001
_CONSTANT_TICKS = 1
"""How far two frames' durations may differ, in the container's own clock: 24 fps do not divide a millisecond clock."""


@dataclass(frozen=True)
class StreamFacts:
    """What a file's header and packets say of its only video stream. ``frames`` is what the decoder must give."""

    width: int
    height: int
    frames: int
    fps: Fraction
    pixel_format: str
    codec: str
    container: str
    rendering: tuple[tuple[str, str], ...]

    @property
    def lossy(self) -> str | None:
        """Why equal files do not prove equal frames before encoding."""
        if self.codec in _LOSSLESS_CODECS:
            return None
        return f"{self.codec} in {self.container} is a lossy container"


@dataclass(frozen=True)
class VideoFrame:
    """One decoded frame."""

    planes: bytes
    pixel_format: str
    decoded: Any

    @cached_property
    def sha256(self) -> str:
        """Of ``pixel format|WxH|`` and the planes' rows without their padding, one plane after the other."""
        head = f"{self.pixel_format}|{self.decoded.width}x{self.decoded.height}|".encode("ascii")
        return hashlib.sha256(head + self.planes).hexdigest()

    @cached_property
    def pixels(self) -> Array:
        """uint8 H x W x 3, RGB."""
        from av.video.reformatter import Interpolation

        exact = Interpolation.ACCURATE_RND | Interpolation.BITEXACT | Interpolation.FULL_CHR_H_INT
        rgb = self.decoded.reformat(format="rgb24", interpolation=Interpolation.BILINEAR | exact, threads=1)
        values: Array = rgb.to_ndarray()
        return values


@dataclass(frozen=True)
class AudioTrack:
    """One track of sound; ``sha256`` is of its decoded samples, ``samples`` how many each channel has."""

    codec: str
    sample_rate: int
    layout: str
    samples: int
    sha256: str


def read_facts(path: Path) -> StreamFacts:
    """The only video stream of a file, its packets counted and their times looked at; no frame is decoded.

    Raises :class:`FuseproofError` where there is no video stream or more than one, no frame, a variable frame rate, a
    pixel format that cannot be measured unrounded, or more pixels than the limit.
    """
    with _opened(path) as container:
        streams = container.streams.video
        if len(streams) != 1:
            found = f"{len(streams)} video streams; one can be compared" if streams else "no video stream"
            raise unreadable(path, f"it holds {found}")
        stream = streams[0]
        context = stream.codec_context
        times = sorted(packet.pts for packet in container.demux(stream) if packet.size and packet.pts is not None)
        if not times:
            raise unreadable(path, "its video stream holds no frame")
        check_pixel_count(path, context.width, context.height, len(times))
        if context.pix_fmt not in PIXEL_FORMATS:
            raise unreadable(path, _deep(context.pix_fmt))
        fps = _frame_rate(path, stream, times)
        promised = _promised(container, stream, fps)
        if promised > len(times):
            raise unreadable(path, _truncated(promised, len(times)))
        return StreamFacts(
            width=context.width,
            height=context.height,
            frames=len(times),
            fps=fps,
            pixel_format=context.pix_fmt,
            codec=context.name,
            container=path.suffix.lower().removeprefix("."),
            rendering=(*_rendering(context), ("shown from", _shown_from(stream)), _turned(path)),
        )


def decode_frames(path: Path, facts: StreamFacts) -> Iterator[VideoFrame]:
    """Every frame in the order it is shown, one in memory at a time.

    Raises :class:`FuseproofError` where the file is damaged, ends early, or its frames change size or format.
    """
    count = 0
    with _opened(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for frame in container.decode(stream):
            shape = (frame.width, frame.height, frame.format.name)
            if shape != (facts.width, facts.height, facts.pixel_format):
                raise unreadable(path, f"frame {count + 1} is {frame.width}x{frame.height} in {frame.format.name}")
            if frame.is_corrupt:
                raise unreadable(path, f"frame {count + 1} is damaged")
            count += 1
            yield VideoFrame(_planes(frame), facts.pixel_format, frame)
    if count != facts.frames:
        raise unreadable(path, _truncated(facts.frames, count))


def read_audio(path: Path) -> tuple[AudioTrack, ...]:
    """Every track of sound in a file, decoded and hashed; none where it is silent."""
    with _opened(path) as container:
        tracks = [(s.codec_context.name, s.codec_context.sample_rate, s.layout.name) for s in container.streams.audio]
    found = []
    for index, (codec, rate, layout) in enumerate(tracks):
        samples = audio_samples(path, index)
        digest = hashlib.sha256(f"{samples.dtype.name}|{samples.shape}|".encode("ascii") + samples.tobytes())
        found.append(AudioTrack(codec, rate, layout, len(samples), digest.hexdigest()))
    return tuple(found)


def audio_samples(path: Path, index: int) -> Array:
    """The decoded samples of track ``index`` as [samples, channels], in the decoder's own dtype."""
    parts = []
    with _opened(path) as container:
        stream = container.streams.audio[index]
        for frame in container.decode(stream):
            values = frame.to_ndarray()
            channels = frame.layout.nb_channels
            parts.append(values.T if frame.format.is_planar else values.reshape(-1, channels))
    return np.ascontiguousarray(np.concatenate(parts)) if parts else np.zeros((0, 1), np.float32)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import av

    try:
        with av.open(str(path)) as container:
            yield container
    except FuseproofError:
        raise
    except (av.FFmpegError, OSError, ValueError, MemoryError) as error:
        reason = one_line(getattr(error, "strerror", None) or error)
        raise unreadable(path, f"it is truncated, damaged or no video ({reason})") from error


def _planes(frame: Any) -> bytes:
    rows = []
    width_bytes = _BYTES_PER_PIXEL.get(frame.format.name, 1)
    for plane in frame.planes:
        values = np.frombuffer(plane, np.uint8)[: plane.height * plane.line_size]
        rows.append(values.reshape(plane.height, plane.line_size)[:, : plane.width * width_bytes].tobytes())
    return b"".join(rows)


def _frame_rate(path: Path, stream: Any, times: list[int]) -> Fraction:
    """The constant number of frames a second; one frame alone has the rate that its stream names."""
    if len(times) == 1:
        return Fraction(stream.average_rate or stream.guessed_rate or 1)
    durations = [after - before for before, after in pairwise(times)]
    if max(durations) - min(durations) > _CONSTANT_TICKS:
        longest = durations.index(max(durations)) + 1
        shown = [f"{float(ticks * stream.time_base):g} s" for ticks in (max(durations), min(durations))]
        text = f"its frame rate is variable: frame {longest} lasts {shown[0]}, another one {shown[1]}"
        raise unreadable(path, text, "make it again with a constant frame rate (ffmpeg: -fps_mode cfr)")
    seconds = (times[-1] - times[0]) * stream.time_base
    stated = stream.average_rate
    if stated and abs((len(times) - 1) / stated - seconds) <= 2 * _CONSTANT_TICKS * stream.time_base:
        return Fraction(stated)
    return Fraction((len(times) - 1) / seconds).limit_denominator(_LARGEST_RATE_DENOMINATOR)


def _promised(container: Any, stream: Any, fps: Fraction) -> int:
    """How many frames the header speaks of: by their number, else by the duration where no sound may outlast them."""
    if stream.frames or not container.duration or container.streams.audio:
        return int(stream.frames)
    return int(Fraction(container.duration, 1_000_000) * fps + Fraction(1, 2))


def _rendering(context: Any) -> tuple[tuple[str, str], ...]:
    """What changes how the same planes look."""
    aspect = context.sample_aspect_ratio
    return (
        ("colour space", str(int(context.colorspace))),
        ("colour range", str(int(context.color_range))),
        ("pixel aspect", str(aspect) if aspect else "1"),
    )


def _shown_from(stream: Any) -> str:
    """When a player shows the first frame, in seconds after the file's beginning."""
    return f"{float((stream.start_time or 0) * stream.time_base):.6g} s"


def _turned(path: Path) -> tuple[str, str]:
    """How a player turns or mirrors the stored frames: the display matrix that the first one carries."""
    with _opened(path) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        frame = next(container.decode(stream), None)
        matrix = None if frame is None else frame.side_data.get("DISPLAYMATRIX")
        if matrix is None:
            return "display matrix", "none"
        turn = struct.unpack("<9i", bytes(matrix))
        return "display matrix", " ".join(f"{value / 2**16:g}" for value in (*turn[:2], *turn[3:5]))


def _deep(pixel_format: str | None) -> str:
    known = ", ".join(sorted(PIXEL_FORMATS))
    return f"its pixel format is {pixel_format}, and frames of 8 bits a value without alpha can be compared ({known})"


def _truncated(promised: int, found: int) -> str:
    return f"it is truncated or damaged: it promises {promised} frames and gives {found}"
