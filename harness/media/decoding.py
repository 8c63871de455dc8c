"""Read one picture in its native depth.

What is compared is what the file stores, expanded only where nothing can be lost:

=============================  =======================================================================================
stored as                      read as
=============================  =======================================================================================
1, L, LA, RGB, RGBA            as stored; ``1`` is bool, the others uint8
CMYK, YCbCr                    as stored, never converted (the conversions round)
palette                        the colours shown: RGB, or RGBA where an entry is transparent
L or RGB with one colour       LA or RGBA: the transparent colour becomes an alpha channel
marked transparent
16-bit grey, RGB, RGBA         uint16 (Pillow would cut 16-bit RGB to 8 bits; PyAV decodes those PNGs)
32-bit integer, float TIFF     int32, float32
``.npy``                       as stored: bool, integer or float; H x W or H x W x C with 1 to 4 channels
=============================  =======================================================================================

Animations and multi-page files are refused, as are pictures above :data:`MAX_PIXELS`; videos, and arrays of them, are
read frame by frame by :mod:`fuseproof.harness.media.clips`.
"""

from __future__ import annotations

import hashlib
import io
import math
import struct
import tokenize
import warnings
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from fuseproof.errors import FuseproofError
from fuseproof.harness.media.files import Array, array_sha256, os_reason
from fuseproof.harness.media.refusals import (
    check_pixel_count,
    check_regular_file,
    one_line,
    too_large,
    unreadable,
)

READABLE_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF")
IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".npy"})
VIDEO_SUFFIXES = frozenset({".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi"})

_NATIVE_MODES = frozenset({"1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I;16B", "I;16L", "I", "F"})
# Pillow's names for 16 bits a value in the file, whatever depth it decodes them to.
_DEEP_RAW_ENDINGS = (";16B", ";16L", ";16N")
_TIFF_LOSSY_COMPRESSIONS = frozenset({"jpeg", "tiff_jpeg", "webp"})
# What Pillow's decoders raise on damaged files, besides its own two error classes.
_DECODER_ERRORS = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    struct.error,
    zlib.error,
    LookupError,
    TypeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
    Image.DecompressionBombError,
)


@dataclass(frozen=True)
class Picture:
    """A decoded picture.

    ``pixels`` is H x W or H x W x C in native depth and native byte order. ``mode`` is Pillow's name of what the
    channels mean after expansion, or ``"array"`` for ``.npy``. ``lossy`` says why equal files prove nothing about what
    went into them, ``notes`` what a reader should know about how the file was read, and ``rendering`` holds the parts
    of the file that change how the same values look (profile, gamma, orientation).
    """

    path: Path
    pixels: Array = field(repr=False, compare=False)
    mode: str
    file_sha256: str
    pixels_sha256: str
    container: str
    lossy: str | None = None
    notes: tuple[str, ...] = ()
    rendering: tuple[tuple[str, str], ...] = ()

    @property
    def height(self) -> int:
        return int(self.pixels.shape[0])

    @property
    def width(self) -> int:
        return int(self.pixels.shape[1])

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[2]) if self.pixels.ndim == 3 else 1

    @property
    def has_alpha(self) -> bool:
        return self.mode in ("LA", "RGBA")

    @property
    def bits(self) -> int:
        """Bits per value: 1, 8, 16, 32 or 64."""
        return 1 if self.pixels.dtype == np.bool_ else self.pixels.dtype.itemsize * 8


def load_image(path: Path | str) -> Picture:
    """Read one picture or ``.npy`` array as the module docstring says.

    Raises:
        FuseproofError: missing, unreadable, empty, truncated, damaged, too large, or not a picture (an HTML page, a
            git-LFS pointer, a video); names the file and the reason.
    """
    path = Path(path)
    content = _read(path)
    return _from_npy(path, content) if path.suffix.lower() == ".npy" else _from_image(path, content)


def _read(path: Path) -> bytes:
    if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file():
        raise _video(path)
    check_regular_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, os_reason(error)) from error


def _from_npy(path: Path, content: bytes) -> Picture:
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise unreadable(path, f"its .npy format version {version[0]}.{version[1]} is not 1.0 or 2.0")
        shape, is_fortran, dtype = readers[version](stream)
    except (ValueError, TypeError, EOFError, SyntaxError, tokenize.TokenError) as error:
        raise unreadable(path, stranger_in(content) or f"it is no .npy array ({one_line(error)})") from error
    _check_npy_header(path, shape, dtype, len(content) - stream.tell())
    values = np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape, order="F" if is_fortran else "C")
    pixels = np.ascontiguousarray(values, dtype=dtype.newbyteorder("="))
    return Picture(path, pixels, "array", _sha256(content), array_sha256(pixels), "npy")


def _check_npy_header(path: Path, shape: tuple[int, ...], dtype: np.dtype[np.generic], stored_bytes: int) -> None:
    """Refuse what cannot be compared before anything is allocated: a header can promise any size."""
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        raise unreadable(path, f"its dtype is {dtype}; bool, integers and float16, float32, float64 can be compared")
    if len(shape) not in (2, 3) or min(shape) < 1 or (len(shape) == 3 and shape[2] > 4):
        extents = "x".join(str(extent) for extent in shape) or "that of a single number"
        possible = "HxW, HxWxC and, of videos, TxHxWxC with 1 to 4 channels"
        raise unreadable(path, f"its shape is {extents}; {possible} can be compared")
    check_pixel_count(path, shape[1], shape[0])
    expected_bytes = dtype.itemsize * math.prod(shape)
    if stored_bytes != expected_bytes:
        raise unreadable(path, f"its header promises {expected_bytes:,} bytes of values, it has {stored_bytes:,}")


def _from_image(path: Path, content: bytes) -> Picture:
    reason = stranger_in(content)
    if reason == "video":
        raise _video(path)
    if reason is not None:
        raise unreadable(path, reason)
    try:
        # Pillow warns about sizes and odd metadata; the size is checked below, and stderr belongs to the command.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _decode(path, content)
    except UnidentifiedImageError as error:
        formats = ", ".join(READABLE_FORMATS)
        raise unreadable(path, f"it is not, or no longer, one of {formats} or .npy") from error
    except Image.DecompressionBombError as error:
        raise too_large(path, str(error)) from error
    except _DECODER_ERRORS as error:
        raise unreadable(path, f"it is truncated or damaged ({one_line(error)})") from error


def _decode(path: Path, content: bytes) -> Picture:
    with Image.open(io.BytesIO(content), formats=READABLE_FORMATS) as probe:
        check_pixel_count(path, probe.width, probe.height)
        frames = int(getattr(probe, "n_frames", 1))
        if frames != 1:
            raise unreadable(
                path,
                f"it holds {frames} frames, and animations and multi-page files are not compared",
                next_step="compare videos (.mp4) or folders of single pictures",
            )
        # Decoding alone accepts a PNG without its last chunk or with a wrong checksum; verify() does not.
        probe.verify()
    with Image.open(io.BytesIO(content), formats=READABLE_FORMATS) as image:
        raw_modes = _raw_modes(image)
        image.load()
        pixels, mode, notes = _native_pixels(path, image, raw_modes, content)
        return Picture(
            path=path,
            pixels=pixels,
            mode=mode,
            file_sha256=_sha256(content),
            pixels_sha256=array_sha256(pixels),
            container=str(image.format),
            lossy=_lossy_reason(image, content),
            notes=notes,
            rendering=_rendering(image),
        )


def _native_pixels(
    path: Path, image: Image.Image, raw_modes: tuple[str, ...], content: bytes
) -> tuple[Array, str, tuple[str, ...]]:
    is_transparent = "transparency" in image.info
    if any(raw.endswith(_DEEP_RAW_ENDINGS) for raw in raw_modes) and not image.mode.startswith("I"):
        return _sixteen_bit_colour(path, image, raw_modes, content), image.mode, ()
    if image.mode in ("P", "PA"):
        mode = "RGBA" if is_transparent or image.mode == "PA" else "RGB"
        return np.array(image.convert(mode)), mode, (f"its palette was expanded to {mode}",)
    if is_transparent and image.mode in ("1", "L", "RGB"):
        mode = "RGBA" if image.mode == "RGB" else "LA"
        return np.array(image.convert(mode)), mode, ("its transparent colour was expanded to an alpha channel",)
    if image.mode not in _NATIVE_MODES or is_transparent or any(raw.endswith(";12") for raw in raw_modes):
        detail = " with a transparent colour" if is_transparent else ""
        raise unreadable(path, f"its pixel format {'/'.join(raw_modes)}{detail} is not supported")
    stored = np.array(image)
    return stored.astype(stored.dtype.newbyteorder("=")), "I;16" if image.mode.startswith("I;16") else image.mode, ()


def _sixteen_bit_colour(path: Path, image: Image.Image, raw_modes: tuple[str, ...], content: bytes) -> Array:
    """16-bit RGB or RGBA of a PNG; Pillow only has 8-bit colour and would drop the low byte of every value."""
    import av

    known = {"RGB;16B": "rgb48be", "RGBA;16B": "rgba64be"}
    if image.format != "PNG" or raw_modes[0] not in known or "transparency" in image.info:
        raise unreadable(path, f"16-bit colour stored as {raw_modes[0]} in {image.format} cannot be read unrounded")
    with av.open(io.BytesIO(content), format="png_pipe") as stream:
        frame = next(stream.decode(video=0))
    if frame.format.name != known[raw_modes[0]]:
        raise unreadable(path, f"its 16-bit pixels were decoded as {frame.format.name}")
    decoded: Array = frame.to_ndarray()
    return decoded


def _raw_modes(image: Image.Image) -> tuple[str, ...]:
    """How the values lie in the file, such as ``RGB;16B``; only known before the pixels are loaded."""
    arguments = [tile[3] for tile in getattr(image, "tile", [])]
    return tuple(str(argument[0] if isinstance(argument, tuple) and argument else argument) for argument in arguments)


def _lossy_reason(image: Image.Image, content: bytes) -> str | None:
    if image.format in ("JPEG", "MPO"):
        return "JPEG is a lossy container"
    if image.format == "GIF":
        return "GIF holds at most 256 colours, so it is a lossy container"
    if image.format == "WEBP" and not _is_lossless_webp(content):
        return "this WEBP is lossy"
    if image.format == "TIFF" and image.info.get("compression") in _TIFF_LOSSY_COMPRESSIONS:
        return f"this TIFF holds lossy {image.info['compression']} data"
    return None


def _is_lossless_webp(content: bytes) -> bool:
    """True when the picture's chunk is ``VP8L``; the container is RIFF: chunks of name, little-endian size, data."""
    offset = 12
    while offset + 8 <= len(content):
        name, size = struct.unpack_from("<4sI", content, offset)
        if name in (b"VP8L", b"VP8 "):
            return bool(name == b"VP8L")
        offset += 8 + size + size % 2
    return False


def _rendering(image: Image.Image) -> tuple[tuple[str, str], ...]:
    facts = {}
    if profile := image.info.get("icc_profile"):
        facts["colour profile"] = f"SHA-256 {_sha256(profile)[:12]}"
    if gamma := image.info.get("gamma"):
        facts["gamma"] = f"{gamma:g}"
    orientation = image.getexif().get(274, 1)
    if orientation != 1:
        facts["orientation"] = str(orientation)
    return tuple(facts.items())


def stranger_in(content: bytes) -> str | None:
    """Name the usual strangers that sit under a picture's name; ``"video"`` for a video, None when it may be one."""
    head = content[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "it is an HTML page"
    if head.startswith(b"version https://git-lfs"):
        return "it is a git-LFS pointer, the picture itself was not fetched"
    is_mp4 = content[4:8] == b"ftyp" and content[8:12] not in (b"avif", b"avis", b"heic", b"mif1")
    is_avi = content[:4] == b"RIFF" and content[8:12] == b"AVI "
    return "video" if is_mp4 or is_avi or content.startswith(b"\x1aE\xdf\xa3") else None


def _video(path: Path) -> FuseproofError:
    return unreadable(path, "it is a video, and a picture was expected", "compare videos under names such as clip.mp4")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
