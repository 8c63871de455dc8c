"""Videos, read frame by frame: files through PyAV, and ``.npy`` arrays of T x H x W x C.

A clip is read once to be hashed, and again, a frame at a time, by whoever needs its values: no more than two frames of
two clips are in memory together. ``pixels_sha256`` is the array's by the usual rule for ``.npy``; of a video file it is
the SHA-256 of lines: its frames' hashes, each over the decoder's own planes, its rate, and its sounds' hashes.
"""

from __future__ import annotations

import hashlib
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from fuseproof.harness.media.decoding import VIDEO_SUFFIXES, Picture, stranger_in
from fuseproof.harness.media.files import Array, array_sha256, file_sha256, os_reason
from fuseproof.harness.media.mp4_boxes import check_boxes
from fuseproof.harness.media.refusals import check_pixel_count, check_regular_file, one_line, unreadable
from fuseproof.harness.media.video_stream import AudioTrack, StreamFacts, decode_frames, read_audio, read_facts

ARRAY = "array"
LARGEST_ARRAY_BYTES = 16 * 2**30
"""A minute of decoded video as float32."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_HEADER_ERRORS = (OSError, ValueError, TypeError, EOFError, SyntaxError, tokenize.TokenError)


class Frame(Protocol):
    """One frame: ``pixels`` are H x W x C, ``sha256`` is of what the file stores of it."""

    @property
    def sha256(self) -> str: ...

    @property
    def pixels(self) -> Array: ...


@dataclass(frozen=True)
class ArrayFrame:
    pixels: Array

    @cached_property
    def sha256(self) -> str:
        return array_sha256(self.pixels)


@dataclass(frozen=True)
class Clip:
    """What is known of a video without its values. ``pixel_format`` is ``"array"`` for ``.npy``, which has no rate.

    ``frames_sha256`` has one hash a frame. ``degenerate`` and ``nonfinite`` are as of a picture, over all frames.
    """

    path: Path
    width: int
    height: int
    channels: int
    dtype: np.dtype[np.generic]
    fps: Fraction | None
    pixel_format: str
    codec: str
    container: str
    file_sha256: str
    pixels_sha256: str
    frames_sha256: tuple[str, ...] = field(repr=False)
    nonfinite: int = 0
    degenerate: str | None = None
    lossy: str | None = None
    rendering: tuple[tuple[str, str], ...] = ()
    audio: tuple[AudioTrack, ...] = ()
    span: tuple[float, float] | None = None
    """The lowest and the highest finite value of a float array."""

    @property
    def frames(self) -> int:
        return len(self.frames_sha256)

    @property
    def bits(self) -> int:
        """Bits per value: 1, 8, 16, 32 or 64."""
        return 1 if self.dtype == np.bool_ else self.dtype.itemsize * 8

    def read(self) -> Iterator[Frame]:
        """The frames again, one at a time; raises :class:`FuseproofError` where the file has changed meanwhile."""
        if self.pixel_format == ARRAY:
            return _array_frames(_mapped(self.path))
        return iter(decode_frames(self.path, read_facts(self.path)))

    def picture(self, number: int) -> Picture:
        """Frame ``number``, from 1, as a picture."""
        frame = next(frame for index, frame in enumerate(self.read(), start=1) if index == number)
        mode = ARRAY if self.pixel_format == ARRAY else "RGB"
        return Picture(self.path, frame.pixels, mode, self.file_sha256, frame.sha256, self.container, self.lossy)


def is_clip(path: Path) -> bool:
    """Whether a path names a video: by its suffix, or a ``.npy`` whose header says four dimensions."""
    suffix = path.suffix.lower()
    return suffix in VIDEO_SUFFIXES or (suffix == ".npy" and _dimensions(path) == 4)


def load_clip(path: Path | str) -> Clip:
    """Read, check and hash a whole clip, a frame at a time.

    Raises:
        FuseproofError: missing, unreadable, empty, truncated, damaged, too large, without a video stream or frames, of
            a variable frame rate, or in a pixel format that would be rounded; names the file and the reason.
    """
    path = Path(path)
    if path.suffix.lower() == ".npy":
        return _array_clip(path)
    check_regular_file(path)
    try:
        with path.open("rb") as stream:
            stranger = stranger_in(stream.read(512))
    except OSError as error:
        raise unreadable(path, os_reason(error)) from error
    if stranger not in (None, "video"):
        raise unreadable(path, stranger or "")
    check_boxes(path)
    facts = read_facts(path)
    seen = _Seen(is_decoded=True)
    for frame in decode_frames(path, facts):
        seen.add(frame)
    return _file_clip(path, facts, seen)


def _file_clip(path: Path, facts: StreamFacts, seen: _Seen) -> Clip:
    audio = read_audio(path)
    listing = [*seen.hashes, f"{facts.fps} fps", *(track.sha256 for track in audio)]
    return Clip(
        path=path,
        width=facts.width,
        height=facts.height,
        channels=3,
        dtype=np.dtype(np.uint8),
        fps=facts.fps,
        pixel_format=facts.pixel_format,
        codec=facts.codec,
        container=facts.container,
        file_sha256=file_sha256(path),
        pixels_sha256=hashlib.sha256("".join(f"{line}\n" for line in listing).encode("ascii")).hexdigest(),
        frames_sha256=tuple(seen.hashes),
        degenerate=seen.degenerate,
        lossy=facts.lossy,
        rendering=facts.rendering,
        audio=audio,
    )


def _array_clip(path: Path) -> Clip:
    check_regular_file(path, LARGEST_ARRAY_BYTES)
    values = _mapped(path)
    count, height, width, channels = values.shape
    digest = hashlib.sha256(f"{values.dtype.name}|{'x'.join(map(str, values.shape))}|".encode("ascii"))
    seen = _Seen(is_decoded=False)
    for frame in _array_frames(values):
        seen.add(frame)
        digest.update(frame.pixels.astype(values.dtype.newbyteorder("<"), copy=False).tobytes())
    assert count == len(seen.hashes)
    return Clip(
        path=path,
        width=width,
        height=height,
        channels=channels,
        dtype=values.dtype.newbyteorder("="),
        fps=None,
        pixel_format=ARRAY,
        codec="none",
        container="npy",
        file_sha256=file_sha256(path),
        pixels_sha256=digest.hexdigest(),
        frames_sha256=tuple(seen.hashes),
        nonfinite=seen.nonfinite,
        degenerate=seen.degenerate,
        span=seen.span,
    )


class _Seen:
    """What one pass over the frames finds out."""

    def __init__(self, *, is_decoded: bool) -> None:
        self.hashes: list[str] = []
        self.nonfinite = 0
        self._is_decoded = is_decoded
        self._first: Array | None = None
        self._is_constant = True
        self.span: tuple[float, float] | None = None

    def add(self, frame: Frame) -> None:
        self.hashes.append(frame.sha256)
        # A repeated frame says nothing new, and RGB of a decoded one costs more than its hash.
        is_known = len(self.hashes) > 1 and self.hashes[-1] == self.hashes[-2]
        if self._is_decoded and (is_known or not self._is_constant):
            return
        pixels = frame.pixels
        if pixels.dtype.kind == "f":
            finite = pixels[np.isfinite(pixels)]
            self.nonfinite += int(pixels.size - finite.size)
            self._widen(finite)
        if self._first is None:
            self._first = pixels[:1, :1].copy()
        self._is_constant = self._is_constant and bool((pixels == self._first).all())

    def _widen(self, finite: Array) -> None:
        if finite.size:
            low, high = float(finite.min()), float(finite.max())
            self.span = (low, high) if self.span is None else (min(low, self.span[0]), max(high, self.span[1]))

    @property
    def degenerate(self) -> str | None:
        if self.nonfinite:
            return "non-finite"
        return "constant" if self._is_constant else None


def _dimensions(path: Path) -> int | None:
    try:
        with path.open("rb") as stream:
            reader = _HEADERS.get(np.lib.format.read_magic(stream))
            return None if reader is None else len(reader(stream)[0])
    except _HEADER_ERRORS:
        return None


def _mapped(path: Path) -> Array:
    """A four-dimensional array, mapped and not read."""
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (*_HEADER_ERRORS, OverflowError, MemoryError) as error:
        raise unreadable(path, f"it is no .npy array, or truncated ({one_line(error)})") from error
    if values.dtype.kind not in "buif" or values.dtype.itemsize > 8:
        raise unreadable(path, f"its dtype is {values.dtype}; bool, integers and floats up to float64 are compared")
    if values.ndim != 4 or min(values.shape) < 1 or values.shape[3] > 4:
        shape = "x".join(str(extent) for extent in values.shape)
        raise unreadable(path, f"its shape is {shape}; of a video TxHxWxC with 1 to 4 channels can be compared")
    check_pixel_count(path, values.shape[2], values.shape[1], values.shape[0])
    return values  # type: ignore[no-any-return]


def _array_frames(values: Array) -> Iterator[Frame]:
    native = values.dtype.newbyteorder("=")
    for frame in values:
        yield ArrayFrame(np.ascontiguousarray(frame, dtype=native))
