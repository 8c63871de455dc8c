"""Input images: what is done to one before a pipeline sees it, and the canvas that it is edited on. Torch-free.

diffusers takes RGB alone and fails on everything else, some of it deep inside the text encoder; it ignores how a camera
was held; and Pillow's own conversion of 16-bit greys clips instead of scaling. So every image is turned upright and
made 8-bit RGB here, once, and both backends are handed the same pixels. docs/image-inputs.md says it to users.
"""

from __future__ import annotations

import io
import math
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fuseproof.errors import FuseproofError, UsageError

if TYPE_CHECKING:
    from PIL import Image

IMAGE_FORMATS = {
    "PNG": "PNG",
    "JPEG": "JPEG",
    "WebP": "WEBP",
    "GIF": "GIF",
    "BMP": "BMP",
    "TIFF": "TIFF",
    "AVIF": "AVIF",
    "JPEG 2000": "JPEG2000",
    "ICO": "ICO",
    "PPM": "PPM",
}
"""The formats that are decoded, by our name and by Pillow's. Pillow knows more, and runs a program for some (EPS)."""

LARGEST_ASPECT = 16
"""Longer side by shorter side. The text encoder's image processor fails from 200 on, and a canvas grows without end."""

SIDE_MULTIPLE = 16
BACKGROUND = (255, 255, 255)
ORIENTATION_TAG = 0x0112
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What turns an image of each EXIF orientation upright, by Pillow's names."""
LARGEST_16_BIT = 65535
DIRECT_MODES = ("1", "L", "P", "CMYK", "YCbCr", "HSV", "RGBX")
ALPHA_MODES = ("RGBA", "RGBa", "LA", "La", "PA")
DEEP_GREY_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I")
METADATA_ERRORS = (OSError, ValueError, SyntaxError, TypeError, LookupError, struct.error, EOFError)
"""What Pillow raises where the pixels are whole and what stands around them is not."""

CONVERT_STEP = "Convert it to an 8-bit RGB PNG or JPEG first."


@dataclass(frozen=True)
class ConditioningImage:
    """An input image as pipelines take it: upright, 8-bit RGB, ``width`` x ``height`` pixels.

    ``conversions`` says in order what was done to the file's own pixels; empty for an upright RGB image. Two images
    are the same request's when they are the same file: ``sha256`` is over its bytes.
    """

    pixels: Image.Image = field(repr=False, compare=False)
    sha256: str
    width: int
    height: int
    conversions: tuple[str, ...] = ()


def read_conditioning_image(content: bytes, sha256: str) -> ConditioningImage:
    """Decode ``content``, turn it upright and make it 8-bit RGB.

    Transparency is laid over white, 16-bit greys are scaled to 8 bit, of an animation the first frame is taken. Raises
    FuseproofError for pixels that have no such reading, and for a side more than 16 times the other.
    """
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=list(IMAGE_FORMATS.values())) as opened:
        frames = _frames(opened)
        opened.load()
        orientation = _orientation(opened)  # 1 for a TIFF: Pillow turned it while loading
        turn = TURNS.get(orientation or 1)
        upright = opened.copy() if turn is None else opened.transpose(Image.Transpose[turn])
    conversions = [f"first of {frames} frames"] if frames > 1 else []
    if orientation is None:
        conversions.append("taken as upright, its EXIF data being damaged")
    if turn is not None:
        conversions.append(f"turned upright from EXIF orientation {orientation}")
    _refuse_extreme_aspect(upright.width, upright.height)
    pixels, conversion = as_rgb(upright)
    if conversion is not None:
        conversions.append(conversion)
    return ConditioningImage(pixels, sha256, pixels.width, pixels.height, tuple(conversions))


def as_rgb(image: Image.Image) -> tuple[Image.Image, str | None]:
    """The image as 8-bit RGB without metadata, and what was done to it; None if nothing was."""
    from PIL import Image

    if image.mode in DEEP_GREY_MODES:
        return _eight_bit_grey(image).convert("RGB"), f"{image.mode} scaled to 8 bit and made RGB"
    if image.mode in ALPHA_MODES or image.has_transparency_data:
        # Pillow knows no way from some of these modes to RGBA in one step.
        straight = {"RGBa": "RGBA", "La": "LA"}.get(image.mode, image.mode)
        layered = image.convert(straight).convert("RGBA")
        ground = Image.new("RGBA", layered.size, (*BACKGROUND, 255))
        return Image.alpha_composite(ground, layered).convert("RGB"), f"{image.mode} laid over white"
    if image.mode == "RGB":
        return Image.frombytes("RGB", image.size, image.tobytes()), None
    if image.mode in DIRECT_MODES:
        return image.convert("RGB"), f"{image.mode} made RGB"
    raise FuseproofError(
        f"The input image has pixels of mode {image.mode}, which have no one reading as 8-bit RGB.",
        next_step=CONVERT_STEP,
    )


def canvas_size(width: int, height: int, canvas_pixels: int) -> tuple[int, int]:
    """Width and height of the canvas for an input image of ``width`` x ``height``.

    About ``canvas_pixels`` in the image's aspect, each side rounded up to a multiple of 16: the float arithmetic of
    ``calculate_dimensions`` in diffusers 0.42.1, operation by operation.
    """
    ratio = width * 1.0 / height
    canvas_width = math.sqrt(canvas_pixels * ratio)
    canvas_height = canvas_width / ratio
    return _up_to_multiple(canvas_width), _up_to_multiple(canvas_height)


def _frames(image: Image.Image) -> int:
    """How many frames the file holds; 1 where those behind the first cannot be counted."""
    try:
        return int(getattr(image, "n_frames", 1))
    except METADATA_ERRORS:
        image.seek(0)
        return 1


def _orientation(image: Image.Image) -> int | None:
    """The EXIF orientation, 1 to 8 where it says anything; None where the data cannot be read."""
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except METADATA_ERRORS:
        return None


def _up_to_multiple(side: float) -> int:
    return int(side if side % SIDE_MULTIPLE == 0 else (side // SIDE_MULTIPLE + 1) * SIDE_MULTIPLE)


def _refuse_extreme_aspect(width: int, height: int) -> None:
    if max(width, height) > LARGEST_ASPECT * min(width, height):
        raise UsageError(
            f"The input image is {width}x{height}; one side may be at most {LARGEST_ASPECT} times the other.",
            next_step="Crop it.",
        )


def _eight_bit_grey(image: Image.Image) -> Image.Image:
    """16-bit grey to 8 bit, 65535 to 255, rounded to nearest; wider values are refused."""
    import numpy as np
    from PIL import Image

    values = np.asarray(image).astype(np.int64)
    lowest, highest = int(values.min()), int(values.max())
    if lowest < 0 or highest > LARGEST_16_BIT:
        raise FuseproofError(
            f"The input image has grey values from {lowest} to {highest}; 0 to {LARGEST_16_BIT} can be scaled.",
            next_step=CONVERT_STEP,
        )
    return Image.fromarray(((values * 255 + LARGEST_16_BIT // 2) // LARGEST_16_BIT).astype(np.uint8))
