"""Conditioning images: read from a file or a URL, hashed, and known to decode before any weight is read."""

from __future__ import annotations

import hashlib
import io
import re
import struct
import warnings
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from fuseproof.cli.image_fetch import fetch
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.conditioning import IMAGE_FORMATS
from fuseproof.pipelines.regular_files import open_regular

LARGEST_IMAGE_BYTES = 64 * 1024 * 1024
LARGEST_IMAGE_PIXELS = 64_000_000
DECODER_ERRORS = (OSError, EOFError, ValueError, SyntaxError, TypeError, LookupError, ArithmeticError, struct.error)
"""What Pillow's decoders were seen to raise, or may, on damaged files."""

PATH_STEP = "Check the path; it must name an image file, or be an http(s) URL."
IMAGE_STEP = f"Give a whole image ({', '.join(IMAGE_FORMATS)}) as a file, or its http(s) address."


@dataclass(frozen=True)
class ImageInput:
    """One conditioning image as it was found. ``source`` holds no credentials; ``sha256`` is over the file's bytes."""

    source: str
    content: bytes
    sha256: str
    width: int
    height: int
    mode: str
    """Pillow's mode, such as ``RGB``, ``RGBA`` or ``P``; nothing is converted here."""


def read_image_input(source: str) -> ImageInput:
    """Read, or fetch over http(s), one image and decode it once to see that it is whole.

    Raises :class:`FuseproofError` saying what is wrong: missing, unreachable, too large, an HTML page, truncated.
    """
    if not source.strip():
        raise UsageError(f"--image-path is {source!r}; it must name a file or an http(s) URL.", next_step=IMAGE_STEP)
    shown = without_credentials(source)
    content = _fetch(source, shown) if "://" in source else _read(Path(source), shown)
    if len(content) > LARGEST_IMAGE_BYTES:
        raise FuseproofError(
            f"--image-path {shown} is larger than {LARGEST_IMAGE_BYTES // 2**20} MiB.",
            next_step="Give a smaller image.",
        )
    width, height, mode = _decode(content, shown)
    return ImageInput(shown, content, hashlib.sha256(content).hexdigest(), width, height, mode)


def without_credentials(source: str) -> str:
    """A URL without user, password, query and fragment; a path as it is."""
    if "://" not in source:
        return source
    try:
        parts = urlsplit(source)
    except ValueError:  # such as http://[::1, whose parts cannot be told
        scheme, _, rest = source.partition("://")
        return f"{scheme}://{re.split('[?#]', rest)[0].rpartition('@')[2]}"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _read(path: Path, shown: str) -> bytes:
    try:
        with open_regular(path.expanduser()) as stream:
            return stream.read(LARGEST_IMAGE_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuseproofError(f"--image-path {shown} cannot be read: {reason}.", next_step=PATH_STEP) from error


def _fetch(url: str, shown: str) -> bytes:
    if url.partition("://")[0].lower() not in ("http", "https"):
        raise UsageError(f"--image-path {shown} is neither a file nor an http(s) URL.", next_step=IMAGE_STEP)
    return fetch(url, shown, LARGEST_IMAGE_BYTES)


def _decode(content: bytes, shown: str) -> tuple[int, int, str]:
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise FuseproofError(f"--image-path {shown} is empty.", next_step=IMAGE_STEP)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=list(IMAGE_FORMATS.values())) as image:
                if image.width * image.height > LARGEST_IMAGE_PIXELS:
                    raise FuseproofError(
                        f"--image-path {shown} is {image.width}x{image.height}, more than "
                        f"{LARGEST_IMAGE_PIXELS // 10**6} megapixels.",
                        next_step="Give a smaller image.",
                    )
                image.load()
                return image.width, image.height, image.mode
    except UnidentifiedImageError as error:
        is_html = content.lstrip()[:1] == b"<" and b"svg" not in content[:512]
        kind = "an HTML page, not an image" if is_html else "not an image that can be decoded"
        raise FuseproofError(f"--image-path {shown} is {kind}.", next_step=IMAGE_STEP) from error
    except (*DECODER_ERRORS, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise FuseproofError(f"--image-path {shown} is a broken image: {reason}.", next_step=IMAGE_STEP) from error
