"""The size of a clip that begins with an image, and the image cut to it."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fuseproof.pipelines.clip_canvas import clip_canvas, covering_crop
from fuseproof.pipelines.families import LONGLIVE2
from fuseproof.pipelines.picture_sizes import refuse_size

AREA = 1280 * 704
SIZES = [(1264, 848), (1536, 1024), (1, 16), (16, 1), (777, 776), (4000, 3000), (1080, 1920), (33, 31)]


@pytest.mark.parametrize(
    ("expected", "size"),
    [
        ((1152, 768), (1264, 848)),
        ((1152, 768), (1536, 1024)),
        ((960, 928), (1000, 1000)),
        ((1248, 704), (1920, 1080)),
        ((704, 1248), (1080, 1920)),
        ((1088, 800), (4000, 3000)),
    ],
)
def test_the_canvas_has_the_images_aspect_at_a_fixed_area(expected: tuple[int, int], size: tuple[int, int]) -> None:
    """A request for 960x928, which is what a square gives, comes out at 1152x768 with a picture of 3 to 2."""
    assert expected == clip_canvas(*size, AREA, 32)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_canvas_is_a_size_that_the_model_makes(size: tuple[int, int]) -> None:
    canvas = clip_canvas(*size, LONGLIVE2.clip_canvas_pixels or 0, LONGLIVE2.size_multiple)
    assert canvas[0] * canvas[1] <= AREA
    if max(canvas) <= LONGLIVE2.maximum_side:
        refuse_size(*canvas, LONGLIVE2)


def test_no_canvas_is_thinner_than_a_patch() -> None:
    assert (32, 32) == clip_canvas(1, 1, 100, 32)
    assert 32 == clip_canvas(3000, 1, 4096, 32)[1]


@pytest.mark.parametrize(
    ("expected", "size"),
    [((0, 0, 40, 20), (40, 20)), ((10, 0, 30, 20), (20, 20)), ((0, 5, 40, 15), (40, 10))],
    ids=["all", "sides-cut", "top-and-bottom-cut"],
)
def test_what_stands_out_is_cut_off_alike(expected: tuple[int, int, int, int], size: tuple[int, int]) -> None:
    values = np.arange(20 * 40 * 3, dtype=np.uint64).reshape(20, 40, 3) % 251
    image = Image.fromarray(values.astype(np.uint8))
    left, top, right, bottom = expected
    cut = covering_crop(image, *size)
    assert size == cut.size
    assert (values[top:bottom, left:right] == np.asarray(cut)).all()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_the_cut_covers_the_whole_canvas(size: tuple[int, int]) -> None:
    image = Image.new("RGB", size, (255, 255, 255))
    assert 255 == np.asarray(covering_crop(image, 96, 64)).min(), "no border of another image shows"
