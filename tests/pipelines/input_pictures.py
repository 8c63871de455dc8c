"""Small pictures to edit: gradients with a disc, as files of every kind that people hand in."""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np
from PIL import Image

from fuseproof.pipelines.conditioning import ConditioningImage, read_conditioning_image


def picture(width: int = 96, height: int = 64, seed: int = 0) -> Image.Image:
    """Two gradients, a disc and a little grain: nothing in it is constant, mirrored or square."""
    down, across = np.mgrid[0:height, 0:width].astype(np.float64)
    disc = (down - 0.4 * height) ** 2 + (across - 0.3 * width) ** 2 < (0.25 * min(width, height)) ** 2
    planes = np.stack([255 * across / width, 255 * down / height, np.where(disc, 220.0, 60.0)], axis=-1)
    grain = np.random.RandomState(seed).normal(0, 12, planes.shape)
    return Image.fromarray(np.clip(planes + grain + 40 * (seed % 5), 0, 255).astype(np.uint8))


def encoded(image: Image.Image, file_format: str = "PNG", **options: Any) -> bytes:
    """The image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def with_orientation(image: Image.Image, orientation: int, file_format: str = "PNG") -> bytes:
    """A file whose EXIF data say how the camera was held."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(image, file_format, exif=exif)


def as_input(content: bytes) -> ConditioningImage:
    """What a pipeline is handed for a file."""
    return read_conditioning_image(content, hashlib.sha256(content).hexdigest())
