"""Input images: every kind of file becomes upright 8-bit RGB in one documented way, and gives diffusers' canvas."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps, UnidentifiedImageError

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.conditioning import as_rgb, canvas_size, read_conditioning_image
from tests.pipelines.input_pictures import as_input, encoded, picture, with_orientation

MEGAPIXEL = 1024 * 1024


def one_pixel(mode: str, value: Any) -> tuple[int, int, int]:
    """What a 2 x 2 image of one value becomes."""
    converted, _ = as_rgb(Image.new(mode, (2, 2), value))
    assert "RGB" == converted.mode
    colour = converted.getpixel((1, 1))
    assert isinstance(colour, tuple)
    return colour[0], colour[1], colour[2]


@pytest.mark.parametrize(
    ("expected", "mode", "value"),
    [
        pytest.param((10, 20, 30), "RGB", (10, 20, 30), id="rgb"),
        pytest.param((77, 77, 77), "L", 77, id="grey"),
        pytest.param((255, 255, 255), "1", 1, id="one-bit"),
        pytest.param((10, 20, 30), "RGBA", (10, 20, 30, 255), id="opaque"),
        pytest.param((255, 255, 255), "RGBA", (10, 20, 30, 0), id="clear-is-white"),
        pytest.param((127, 127, 127), "RGBA", (0, 0, 0, 128), id="half-black-over-white"),
        pytest.param((191, 127, 127), "RGBa", (64, 0, 0, 128), id="premultiplied"),
        pytest.param((255, 255, 255), "LA", (9, 0), id="clear-grey"),
        pytest.param((9, 9, 9), "LA", (9, 255), id="opaque-grey"),
        pytest.param((127, 127, 127), "La", (0, 128), id="premultiplied-grey"),
        pytest.param((0, 255, 255), "CMYK", (255, 0, 0, 0), id="cyan"),
        pytest.param((0, 0, 0), "I;16", 0, id="16-bit-black"),
        pytest.param((255, 255, 255), "I;16", 65535, id="16-bit-white"),
        pytest.param((4, 4, 4), "I;16", 1000, id="16-bit-dark"),
        pytest.param((233, 233, 233), "I;16", 60000, id="16-bit-bright"),
        pytest.param((128, 128, 128), "I;16B", 32896, id="16-bit-other-order"),
        pytest.param((4, 4, 4), "I", 1000, id="32-bit-integers"),
    ],
)
def test_each_mode_has_one_reading(expected: tuple[int, int, int], mode: str, value: Any) -> None:
    assert expected == one_pixel(mode, value)


def test_no_two_16_bit_greys_of_one_step_collapse_or_swap() -> None:
    levels = Image.fromarray(np.arange(65536, dtype=np.uint16).reshape(256, 256))
    grey = np.asarray(as_rgb(levels)[0])[..., 0].ravel().astype(int)
    assert list(range(256)) == sorted(set(grey))
    assert (np.diff(grey) >= 0).all()


@pytest.mark.parametrize(
    ("image", "said"),
    [
        pytest.param(Image.new("F", (2, 2)), "mode F", id="floats"),
        pytest.param(Image.new("LAB", (2, 2)), "mode LAB", id="lab"),
        pytest.param(Image.new("I", (2, 2), 65536), "from 65536 to 65536", id="too-wide"),
        pytest.param(Image.new("I", (2, 2), -1), "from -1 to -1", id="negative"),
    ],
)
def test_pixels_without_one_reading_are_refused(image: Image.Image, said: str) -> None:
    with pytest.raises(FuseproofError, match=said) as caught:
        as_rgb(image)
    assert caught.value.next_step


def palette_picture(**options: Any) -> bytes:
    """A PNG of two colours by palette: index 0 red, index 1 blue."""
    image = Image.new("P", (4, 4), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.paste(1, (0, 0, 2, 4))
    return encoded(image, **options)


@pytest.mark.parametrize(
    ("expected", "conversions", "content"),
    [
        pytest.param([(0, 0, 255), (255, 0, 0)], ("P made RGB",), palette_picture(), id="palette"),
        pytest.param(
            [(255, 255, 255), (255, 0, 0)], ("P laid over white",), palette_picture(transparency=1), id="clear-index"
        ),
        pytest.param(
            [(127, 127, 255), (255, 0, 0)],
            ("P laid over white",),
            palette_picture(transparency=bytes([255, 128])),
            id="half-clear-index",
        ),
        pytest.param(
            [(255, 255, 255)] * 2,
            ("RGB laid over white",),
            encoded(Image.new("RGB", (4, 4), (9, 8, 7)), transparency=(9, 8, 7)),
            id="clear-colour",
        ),
        pytest.param(
            [(255, 255, 255)] * 2,
            ("L laid over white",),
            encoded(Image.new("L", (4, 4), 9), transparency=9),
            id="clear-grey",
        ),
    ],
)
def test_palettes_and_single_clear_colours(
    expected: list[tuple[int, int, int]], conversions: tuple[str, ...], content: bytes
) -> None:
    image = as_input(content)
    assert conversions == image.conversions
    assert expected == [image.pixels.getpixel((0, 0)), image.pixels.getpixel((3, 3))]


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_is_turned_upright(orientation: int, file_format: str) -> None:
    content = with_orientation(picture(24, 16), orientation, file_format)
    image = as_input(content)
    assert ((16, 24) if orientation > 4 else (24, 16)) == (image.width, image.height)
    with Image.open(io.BytesIO(content)) as opened:
        expected = ImageOps.exif_transpose(opened).convert("RGB")
    assert expected.tobytes() == image.pixels.tobytes()
    assert dict(image.pixels.getexif()) == {}
    if file_format != "TIFF":
        assert (orientation > 1) == any(f"orientation {orientation}" in text for text in image.conversions)


def test_damaged_exif_data_leave_the_image_as_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(self: Image.Image) -> Image.Exif:
        raise SyntaxError("not a TIFF file")

    monkeypatch.setattr(Image.Image, "getexif", damaged)
    image = as_input(encoded(picture(24, 16)))
    assert ("taken as upright, its EXIF data being damaged",) == image.conversions
    assert picture(24, 16).tobytes() == image.pixels.tobytes()


def test_an_upright_rgb_image_is_handed_on_as_it_is() -> None:
    image = as_input(encoded(picture()))
    assert () == image.conversions
    assert picture().tobytes() == image.pixels.tobytes()


def test_of_an_animation_the_first_frame_is_taken() -> None:
    frames = [picture(16, 16, seed) for seed in range(3)]
    image = as_input(encoded(frames[0], save_all=True, append_images=frames[1:]))
    assert "first of 3 frames" in image.conversions
    assert frames[0].tobytes() == image.pixels.tobytes()


def test_no_other_format_is_opened() -> None:
    buffer = io.BytesIO()
    picture(16, 16).save(buffer, "EPS")
    with pytest.raises(UnidentifiedImageError):
        as_input(buffer.getvalue())


@pytest.mark.parametrize("size", [(161, 10), (10, 161), (1000, 3)])
def test_an_extreme_aspect_is_refused_with_its_size(size: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match=f"{size[0]}x{size[1]}; one side may be at most 16 times"):
        as_input(encoded(Image.new("RGB", size)))


@pytest.mark.parametrize("size", [(160, 10), (10, 160), (1, 1), (3, 7)])
def test_the_last_aspect_that_is_taken(size: tuple[int, int]) -> None:
    image = as_input(encoded(Image.new("RGB", size)))
    width, height = canvas_size(image.width, image.height, MEGAPIXEL)
    assert max(width, height) <= 4096


@pytest.mark.parametrize(
    ("expected", "size", "area"),
    [
        pytest.param((1264, 848), (1264, 848), MEGAPIXEL, id="the-shipped-image"),
        pytest.param((1264, 848), (3000, 2013), MEGAPIXEL, id="a-camera"),
        pytest.param((1024, 1024), (5, 5), MEGAPIXEL, id="square"),
        pytest.param((1376, 768), (1920, 1080), MEGAPIXEL, id="16-to-9"),
        pytest.param((768, 1376), (1080, 1920), MEGAPIXEL, id="9-to-16"),
        pytest.param((320, 224), (1264, 848), 256 * 256, id="embedded"),
    ],
)
def test_canvases(expected: tuple[int, int], size: tuple[int, int], area: int) -> None:
    assert expected == canvas_size(*size, area)


def test_the_canvas_is_the_librarys_for_every_aspect() -> None:
    from diffusers.pipelines.longcat_image.pipeline_longcat_image_edit import calculate_dimensions

    random = np.random.RandomState(7)
    sizes = [tuple(map(int, random.randint(1, 6000, 2))) for _ in range(3000)]
    sizes += [(width, height) for width in range(1, 40) for height in range(1, 40)]
    for width, height in sizes:
        for area in (MEGAPIXEL, 256 * 256, 112 * 112):
            expected = calculate_dimensions(area, width * 1.0 / height)
            assert expected == canvas_size(width, height, area), (width, height, area)


def test_a_canvas_has_about_the_area_that_was_asked_for() -> None:
    for width, height in ((1264, 848), (900, 1600), (1000, 100)):
        produced = canvas_size(width, height, MEGAPIXEL)
        assert math.isclose(MEGAPIXEL, produced[0] * produced[1], rel_tol=0.06)
        assert all(side % 16 == 0 for side in produced)


def test_two_inputs_are_equal_when_their_files_are_and_repr_holds_no_address() -> None:
    content = encoded(picture(8, 8))
    first, again, other = as_input(content), as_input(content), as_input(encoded(picture(8, 8, seed=1)))
    assert first == again
    assert first != other
    assert "0x" not in repr(first)
    assert hash(first) == hash(again)


def test_reading_does_not_depend_on_the_libraries_of_models() -> None:
    import subprocess
    import sys

    code = (
        "import sys, fuseproof.pipelines.conditioning, fuseproof.pipelines.checkpoint_marker;"
        "print(sorted({'torch', 'numpy', 'PIL'} & set(sys.modules)))"
    )
    assert (
        "[]" == subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    )


def test_read_keeps_the_hash_it_was_given() -> None:
    assert "abc" == read_conditioning_image(encoded(picture(8, 8)), "abc").sha256
