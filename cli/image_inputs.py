"""Conditioning images: read from a file or a URL, hashed, and known to decode before any weight is read."""

from __future__ import annotations

import hashlib
import io
import struct
import time
import urllib.error
import urllib.request
import warnings
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from fuseproof.errors import FuseproofError, UsageError

LARGEST_IMAGE_BYTES = 64 * 1024 * 1024
LARGEST_IMAGE_PIXELS = 64_000_000
SILENCE_LIMIT_S = 15.0
FETCH_LIMIT_S = 60.0
CHUNK_BYTES = 1 << 16
DECODER_ERRORS = (OSError, EOFError, ValueError, SyntaxError, TypeError, LookupError, ArithmeticError, struct.error)
"""What Pillow's decoders were seen to raise, or may, on damaged files."""

IMAGE_STEP = "Give a whole PNG, JPEG or WebP file, or its http(s) address."


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
    shown = without_credentials(source)
    content = _fetch(source, shown) if "://" in source else _read(Path(source), shown)
    width, height, mode = _decode(content, shown)
    return ImageInput(shown, content, hashlib.sha256(content).hexdigest(), width, height, mode)


def without_credentials(source: str) -> str:
    """A URL without user, password, query and fragment; a path as it is."""
    if "://" not in source:
        return source
    parts = urlsplit(source)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _read(path: Path, shown: str) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(LARGEST_IMAGE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FuseproofError(f"--image-path {shown} cannot be read: {reason}.", next_step=IMAGE_STEP) from error
    if len(content) > LARGEST_IMAGE_BYTES:
        raise _too_large(shown)
    return content


def _fetch(url: str, shown: str) -> bytes:
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--image-path {shown} is neither a file nor an http(s) URL.", next_step=IMAGE_STEP)
    deadline = time.monotonic() + FETCH_LIMIT_S
    chunks: list[bytes] = []
    size = 0
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "fuseproof"})
        with urllib.request.urlopen(request, timeout=SILENCE_LIMIT_S) as response:
            while chunk := response.read(CHUNK_BYTES):
                chunks.append(chunk)
                size += len(chunk)
                if size > LARGEST_IMAGE_BYTES:
                    raise _too_large(shown)
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not finished after {FETCH_LIMIT_S:g} s")
    except urllib.error.HTTPError as error:
        raise FuseproofError(
            f"--image-path {shown} answered {error.code} {error.reason}.", next_step="Check the address."
        ) from error
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "reason", None) or error
        raise FuseproofError(
            f"--image-path {shown} cannot be fetched: {reason}.", next_step="Download it and pass the file."
        ) from error
    return b"".join(chunks)


def _decode(content: bytes, shown: str) -> tuple[int, int, str]:
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise FuseproofError(f"--image-path {shown} is empty.", next_step=IMAGE_STEP)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content)) as image:
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


def _too_large(shown: str) -> FuseproofError:
    return FuseproofError(
        f"--image-path {shown} is larger than {LARGEST_IMAGE_BYTES // 2**20} MiB.", next_step="Give a smaller image."
    )
