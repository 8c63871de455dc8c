"""The input image of a request: how many there must be, which canvas it gives or is scaled to, what is said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fuseproof.errors import UsageError
from fuseproof.pipelines.clip_canvas import clip_canvas
from fuseproof.pipelines.conditioning import ConditioningImage, canvas_size, read_conditioning_image
from fuseproof.pipelines.embedded import PREFIX
from fuseproof.pipelines.family import Family

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.cli.image_inputs import ImageInput
    from fuseproof.pipelines.checkpoints import Checkpoint


@dataclasses.dataclass(frozen=True)
class Canvas:
    """An input image and the ``width`` x ``height`` that it is edited at, about ``area`` pixels.

    ``area`` is None where a clip begins with the image: what is warmed may then have any size, the image scaled or cut
    to it.
    """

    image: ConditioningImage
    area: int | None
    width: int
    height: int


def refuse_image_count(options: GenerateOptions, family: Family) -> None:
    """An editing family takes one image, one that may begin with an image one or none, a text family none.

    Anything else is a UsageError.
    """
    count = len(options.image_path)
    if count and not (family.takes_image or family.accepts_image):
        raise UsageError(
            f"--image-path was given, but {family.title} makes {'clips' if family.makes_video else 'images'} from text "
            "alone.",
            next_step="Drop --image-path, or choose a model that takes one; `fuseproof models list` shows them.",
        )
    if family.accepts_image and count > 1:
        raise UsageError(
            f"{family.title} begins a clip with one image, but --image-path was given {count} times.",
            next_step="Give one --image-path, or none.",
        )
    if family.takes_image and count != 1:
        given = "--image-path was not given" if count == 0 else f"--image-path was given {count} times"
        raise UsageError(
            f"{family.title} edits one image, but {given}.",
            next_step="Give one --image-path, a file or an http(s) URL.",
        )


def canvas_of(
    options: GenerateOptions, family: Family, images: Sequence[ImageInput], checkpoint: Checkpoint | None
) -> Canvas | None:
    """The canvas of the one image; None for a request without. Raises for an image that cannot be made RGB.

    Without a ``checkpoint`` yet, the area is the one that the model's name promises.
    """
    if family.accepts_image and images:
        image = read_conditioning_image(images[0].content, images[0].sha256)
        return Canvas(image, None, *_clip_size(options, family, image, checkpoint))
    area = family.canvas_pixels if checkpoint is None else checkpoint.canvas_pixels
    if area is None:
        return None
    if checkpoint is None and options.model_path.startswith(PREFIX):
        area = family.embedded_width * family.embedded_height
    image = read_conditioning_image(images[0].content, images[0].sha256)
    return Canvas(image, area, *canvas_size(image.width, image.height, area))


def _clip_size(
    options: GenerateOptions, family: Family, image: ConditioningImage, checkpoint: Checkpoint | None
) -> tuple[int, int]:
    """The size of a clip that begins with ``image``: what was asked for, or, by a family's rule, in its aspect."""
    area = family.clip_canvas_pixels
    if area is None:
        return _own_size(options, family)
    if checkpoint is not None and checkpoint.marker.canvas_pixels is not None:
        area = checkpoint.marker.canvas_pixels
    elif options.model_path.startswith(PREFIX):
        area = family.embedded_width * family.embedded_height
    return clip_canvas(image.width, image.height, area, family.size_multiple)


def _own_size(options: GenerateOptions, family: Family) -> tuple[int, int]:
    is_embedded = options.model_path.startswith(PREFIX)
    width = family.embedded_width if is_embedded else family.default_width
    height = family.embedded_height if is_embedded else family.default_height
    return options.width or width, options.height or height


def resized(canvas: Canvas, width: int, height: int) -> Canvas:
    """The image as an input of ``width`` x ``height``, to warm that size; a UsageError where it is no canvas."""
    if (width, height) == (canvas.width, canvas.height):
        return canvas
    if canvas.area is None:
        return dataclasses.replace(canvas, width=width, height=height)
    produced = canvas_size(width, height, canvas.area)
    if produced != (width, height):
        raise UsageError(
            f"--warmup-resolutions {width}x{height} is no canvas of this model: an input of that size is edited at "
            f"{produced[0]}x{produced[1]}.",
            next_step=f"Use {produced[0]}x{produced[1]}, or drop it to warm the request's own {canvas.width}x"
            f"{canvas.height}.",
        )
    pixels = canvas.image.pixels.resize((width, height))
    conversions = (*canvas.image.conversions, f"resized to {width}x{height}")
    image = dataclasses.replace(canvas.image, pixels=pixels, width=width, height=height, conversions=conversions)
    return Canvas(image, canvas.area, width, height)


def requested_size(options: GenerateOptions) -> str | None:
    """``--width`` and ``--height`` as a person wrote them; None where neither was given."""
    if options.width and options.height:
        return f"{options.width}x{options.height}"
    return f"width {options.width}" if options.width else f"height {options.height}" if options.height else None


def size_warning(options: GenerateOptions, family: Family, canvas: Canvas) -> str | None:
    """What to say where the canvas is not the size that was asked for."""
    if (options.width or canvas.width, options.height or canvas.height) == (canvas.width, canvas.height):
        return None
    return (
        f"{requested_size(options)} was requested and {canvas.width}x{canvas.height} is produced: {family.title} takes "
        f"its canvas from the input image, which is {canvas.image.width}x{canvas.image.height}."
    )


def unadvised_size_warning(options: GenerateOptions, family: Family) -> str | None:
    """What to say of a size that was asked for and that the model was not published for; it may run all the same."""
    if not family.advised_sizes or options.model_path.startswith(PREFIX):
        return None
    width, height = options.width or family.default_width, options.height or family.default_height
    if (width, height) in family.advised_sizes:
        return None
    advised = ", ".join(f"{wide}x{high}" for wide, high in family.advised_sizes)
    return f"{width}x{height} is none of the sizes that {family.title} was published for: {advised}."
