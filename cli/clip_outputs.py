"""What ``generate`` writes of a clip and a picture: which file, at which rate, and the hash of every raw frame."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fuseproof.cli import video_file
from fuseproof.errors import UsageError
from fuseproof.harness.media.files import array_sha256, write_png

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.pipelines.family import Family
    from fuseproof.pipelines.requests import GenerationRequest

PICTURE, CLIP = ".png", ".mp4"

Pixels = npt.NDArray[np.uint8]


def suffix_of(request: GenerationRequest) -> str:
    """The ending of the file that ``request`` is written to."""
    return PICTURE if request.num_frames is None else CLIP


def named_for(options: GenerateOptions, family: Family) -> GenerateOptions:
    """``options`` with a file name of the kind that ``family`` writes; a name without an ending gets it.

    Raises :class:`UsageError` for a name of the other kind, and for a rate that no container holds.
    """
    wanted, other = (CLIP, PICTURE) if family.makes_video else (PICTURE, CLIP)
    name = options.output_file_name if options.output_file_name is not None else options.output_file_path
    if name is not None and name.lower().endswith(other):
        made = "a video" if family.makes_video else "an image"
        raise UsageError(
            f"the output file name {Path(name).name!r} ends in {other}, and {family.title} makes {made}.",
            next_step=f"Use a name that ends in {wanted}, or in neither.",
        )
    if not family.makes_video:
        return options
    video_file.frame_rate(rate_of(options, family))
    if name is None or name.lower().endswith(CLIP):
        return options
    if options.output_file_name is not None:
        return dataclasses.replace(options, output_file_name=name + CLIP)
    return dataclasses.replace(options, output_file_path=name + CLIP)


def rate_of(options: GenerateOptions, family: Family) -> float:
    """Frames a second of a clip: what was asked for, or what the model was made for."""
    return float(options.fps or family.default_fps or 1)


def refuse_unwritable_clip(options: GenerateOptions, request: GenerationRequest) -> None:
    """Raise for a clip whose size no file can hold, and where nothing can encode it; nothing is ever resized."""
    if request.num_frames is not None and options.saves_output:
        video_file.check_video_size(request.width, request.height)
        video_file.check_encoder()


def largest_bytes(request: GenerationRequest) -> int:
    """More than the file of ``request`` will take: its pixels, uncompressed."""
    return request.width * request.height * 3 * (request.num_frames or 1)


def pixels_of(raw: npt.NDArray[np.float32]) -> Pixels:
    """The uint8 pixels of raw values in 0..1, converted as diffusers does: a picture's are rounded, a clip's are cut.

    NaN becomes 0; the shape stays, [H, W, 3] or [T, H, W, 3].
    """
    if raw.ndim == 4:
        return video_file.frame_pixels(raw)
    finite = np.nan_to_num(raw, nan=0.0, posinf=1.0, neginf=0.0)
    pixels: Pixels = (np.clip(finite, 0.0, 1.0) * 255).round().astype(np.uint8)
    return pixels


def write(path: Path, pixels: Pixels, fps: float | None, quality: str | None) -> None:
    """Write ``pixels`` whole or not at all; ``fps`` and ``quality`` are a clip's."""
    if fps is None:
        write_png(path, pixels)
    else:
        video_file.write_video(path, pixels, fps, quality)


def frame_hashes(raw: npt.NDArray[np.float32]) -> Iterator[str]:
    """The hash of each raw frame [H, W, 3] of a clip, as :func:`array_sha256` makes it; none for a picture."""
    if raw.ndim == 4:
        yield from map(array_sha256, raw)
