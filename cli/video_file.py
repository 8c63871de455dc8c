"""A video on disk: H.264 in MP4 with 4:2:0 colour, written whole or not at all, at exactly the size that was computed.

The encoder loses; what was computed is hashed before it runs, frame by frame. Its one thread makes equal frames equal
files on one machine, however many cores are free.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.atomic_files import regular_target, replace_whole

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

CODEC = "libx264"
PIXEL_FORMAT = "yuv420p"
DEFAULT_QUALITY = "default"
RATE_FACTORS = {"maximum": 10, "high": 18, "default": 25, "medium": 28, "low": 35}
"""x264's constant rate factor of each ``--output-quality``, 0 without loss of its own and 51 the worst; 25 is what
diffusers' ``export_to_video`` asks for."""
LARGEST_RATE = 65535
LARGEST_DENOMINATOR = 1001
"""Of broadcast rates such as 24000/1001."""


def frame_pixels(frames: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """uint8 frames of raw values in 0..1, cut to whole levels as diffusers' ``export_to_video`` cuts them; NaN is 0.

    ``frames`` are [T, H, W, 3] or one of them. Unlike a picture's values these are not rounded.
    """
    import numpy as np

    finite = np.nan_to_num(frames, nan=0.0, posinf=1.0, neginf=0.0)
    pixels: npt.NDArray[np.uint8] = (np.clip(finite, 0.0, 1.0) * np.float32(255)).astype(np.uint8)
    return pixels


def check_video_size(width: int, height: int) -> None:
    """Raise :class:`UsageError` for a size that 4:2:0 colour cannot hold; nothing is ever resized or padded."""
    if width % 2 == 0 and height % 2 == 0:
        return
    sizes = " or ".join(f"{w}x{h}" for w in _even(width) for h in _even(height))
    raise UsageError(
        f"A video of {width}x{height} px cannot be written: {PIXEL_FORMAT} needs an even width and height.",
        next_step=f"The nearest sizes are {sizes}.",
    )


def check_encoder() -> None:
    """Raise :class:`FuseproofError` where clips cannot be encoded, before one is computed."""
    try:
        import av

        av.codec.Codec(CODEC, "w")
    except ImportError as error:
        raise FuseproofError(
            f"A clip is written by the library av (PyAV), which cannot be loaded here: {error}.",
            next_step="Install av, or leave the file out with --no-save-output: hashes are recorded all the same.",
        ) from error
    except ValueError as error:  # av's own class for a codec that its build lacks is one
        raise FuseproofError(
            f"This build of the library av (PyAV) has no encoder {CODEC}: {error}.",
            next_step="Install av from PyPI, or leave the file out with --no-save-output.",
        ) from error


def frame_rate(fps: float) -> Fraction:
    """The rate as the fraction that a container holds: 23.976 is 2997/125. Raises :class:`UsageError` beyond it."""
    if not 1 / LARGEST_DENOMINATOR <= fps <= LARGEST_RATE:
        raise UsageError(
            f"--fps is {fps:g}; it must be from {1 / LARGEST_DENOMINATOR:.3f} to {LARGEST_RATE}.",
            next_step="Videos usually have 16, 24 or 30 frames a second.",
        )
    return Fraction(fps).limit_denominator(LARGEST_DENOMINATOR)


def write_video(
    path: Path, frames_uint8: npt.NDArray[np.uint8], fps: float, quality: str | None = DEFAULT_QUALITY
) -> None:
    """Write uint8 [T, H, W, 3] as MP4 through a temporary file in the same folder and a rename.

    ``quality`` is one of :data:`RATE_FACTORS`; None is the default.

    Raises:
        UsageError: an odd size, or an impossible rate.
        FuseproofError: the encoder fails, the folder is missing or read-only, or the disk is full; nothing is left.
        ValueError: another dtype or shape.
    """
    if frames_uint8.dtype.name != "uint8" or frames_uint8.ndim != 4 or frames_uint8.shape[3] != 3:
        raise ValueError(f"write_video takes uint8 TxHxWx3, not {frames_uint8.dtype} {frames_uint8.shape}")
    count, height, width = frames_uint8.shape[:3]
    if count == 0:
        raise ValueError("write_video takes at least one frame")
    check_video_size(width, height)
    content = _encoded(frames_uint8, (width, height), frame_rate(fps), RATE_FACTORS[quality or DEFAULT_QUALITY])
    try:
        replace_whole(regular_target(path), content)
    except OSError as error:
        raise FuseproofError(
            f"{path} could not be written: {error.strerror or error}.",
            next_step="Check that the folder exists, is writable and has space.",
        ) from error


def _encoded(frames: Iterable[npt.NDArray[np.uint8]], size: tuple[int, int], rate: Fraction, rate_factor: int) -> bytes:
    import av

    buffer = io.BytesIO()
    try:
        with av.open(buffer, "w", format="mp4") as container:
            stream = container.add_stream(CODEC, rate=rate, options={"crf": str(rate_factor)})
            stream.width, stream.height = size
            stream.pix_fmt = PIXEL_FORMAT
            stream.codec_context.thread_count = 1
            for packet in _packets(stream, frames):
                container.mux(packet)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise FuseproofError(
            f"The video of {size[0]}x{size[1]} px could not be encoded: {error}.",
            next_step="The raw frames can be kept with --keep-raw, or nothing written with --no-save-output.",
        ) from error
    return buffer.getvalue()


def _packets(stream: Any, frames: Iterable[npt.NDArray[np.uint8]]) -> Iterator[Any]:
    import av
    import numpy as np

    for pixels in frames:
        yield from stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24"))
    yield from stream.encode()


def _even(extent: int) -> tuple[int, ...]:
    return (extent,) if extent % 2 == 0 else (extent - 1, extent + 1) if extent > 1 else (extent + 1,)
