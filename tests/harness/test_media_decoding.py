"""Reading pictures: native depth and mode, and a sentence instead of a traceback for everything else."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fuseproof.errors import FuseproofError
from fuseproof.harness.media.comparison import load_image
from fuseproof.harness.media.refusals import MAX_PIXELS
from tests.harness.media_samples import png_file, png_of_depth_16, save, smooth_picture

RGB = smooth_picture(12, 10)


def as_file(image: Image.Image, file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


PNG = as_file(Image.fromarray(RGB), "PNG")


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npy_with_header(header: str) -> bytes:
    padded = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA"])
def test_plain_modes_are_read_as_stored(mode: str, tmp_path: Path) -> None:
    stored = Image.fromarray(RGB).convert(mode)
    stored.save(tmp_path / "x.png")
    picture = load_image(tmp_path / "x.png")
    assert mode == picture.mode
    assert np.array_equal(np.asarray(stored), picture.pixels)
    assert np.asarray(stored).dtype == picture.pixels.dtype


def test_cmyk_is_never_converted(tmp_path: Path) -> None:
    stored = Image.fromarray(RGB).convert("CMYK")
    stored.save(tmp_path / "x.tif")
    picture = load_image(tmp_path / "x.tif")
    assert "CMYK" == picture.mode
    assert np.array_equal(np.asarray(stored), picture.pixels)


def test_a_palette_is_expanded_to_the_colours_it_shows(tmp_path: Path) -> None:
    stored = Image.fromarray(RGB).convert("P")
    stored.save(tmp_path / "x.png")
    picture = load_image(tmp_path / "x.png")
    assert "RGB" == picture.mode
    assert np.array_equal(np.asarray(stored.convert("RGB")), picture.pixels)
    assert ("its palette was expanded to RGB",) == picture.notes


def test_one_transparent_colour_becomes_alpha(tmp_path: Path) -> None:
    pixels = RGB.copy()
    pixels[0, 0] = (1, 2, 3)
    save(tmp_path / "x.png", pixels, transparency=(1, 2, 3))
    picture = load_image(tmp_path / "x.png")
    assert "RGBA" == picture.mode
    assert 0 == picture.pixels[0, 0, 3]
    assert 255 == picture.pixels[5, 5, 3]


def test_16_bit_grey_keeps_its_depth(tmp_path: Path) -> None:
    values = np.array([[0, 255, 256], [1000, 60000, 65535]], dtype=np.uint16)
    for name in ("x.png", "x.tif"):
        picture = load_image(save(tmp_path / name, values))
        assert "I;16" == picture.mode
        assert np.uint16 == picture.pixels.dtype
        assert np.array_equal(values, picture.pixels)


@pytest.mark.parametrize(("colour_type", "mode"), [(2, "RGB"), (6, "RGBA")])
def test_16_bit_colour_keeps_its_low_bytes(colour_type: int, mode: str, tmp_path: Path) -> None:
    values = np.random.default_rng(3).integers(0, 65536, (5, 7, len(mode)), dtype=np.uint16)
    (tmp_path / "x.png").write_bytes(png_of_depth_16(values, colour_type))
    picture = load_image(tmp_path / "x.png")
    assert mode == picture.mode
    assert 16 == picture.bits
    assert np.array_equal(values, picture.pixels)


def test_16_bit_grey_with_alpha_is_refused_not_rounded(tmp_path: Path) -> None:
    values = np.full((4, 4, 2), 300, dtype=np.uint16)
    (tmp_path / "x.png").write_bytes(png_of_depth_16(values, 4))
    with pytest.raises(FuseproofError, match=r"LA;16B in PNG cannot be read unrounded"):
        load_image(tmp_path / "x.png")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "uint16", "int32", "bool", ">f4"])
def test_npy_arrays_are_read_as_stored(dtype: str, tmp_path: Path) -> None:
    values = (RGB > 100).astype(dtype)
    picture = load_image(save(tmp_path / "x.npy", np.asfortranarray(values)))
    assert "array" == picture.mode
    assert np.dtype(dtype).newbyteorder("=") == picture.pixels.dtype
    assert np.array_equal(values, picture.pixels)


@pytest.mark.parametrize(
    ("expected", "name", "options"),
    [
        ("JPEG is a lossy container", "x.jpg", {}),
        ("GIF holds at most 256 colours, so it is a lossy container", "x.gif", {}),
        ("this WEBP is lossy", "x.webp", {}),
        ("this TIFF holds lossy jpeg data", "x.tif", {"compression": "jpeg"}),
        (None, "x.webp", {"lossless": True}),
        (None, "x.webp", {"lossless": True, "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}),
        (None, "x.tif", {"compression": "tiff_lzw"}),
        (None, "x.png", {}),
        (None, "x.bmp", {}),
    ],
)
def test_lossy_containers_are_named(
    expected: str | None, name: str, options: dict[str, object], tmp_path: Path
) -> None:
    picture = load_image(save(tmp_path / name, RGB, **options))
    assert expected == picture.lossy
    if expected is None:
        assert np.array_equal(RGB, picture.pixels)


@pytest.mark.parametrize(
    ("expected", "name", "content"),
    [
        pytest.param("empty (0 bytes)", "x.png", b"", id="0 bytes"),
        pytest.param("HTML page", "x.png", b"\n<!DOCTYPE html><html>404</html>", id="HTML"),
        pytest.param("HTML page", "x.npy", b"<html>404</html>", id="HTML as npy"),
        pytest.param("git-LFS pointer", "x.png", b"version https://git-lfs.github.com/spec/v1\n", id="LFS pointer"),
        pytest.param("not, or no longer, one of PNG", "x.png", b"GARBAGE" * 50, id="garbage"),
        pytest.param("not, or no longer, one of PNG", "x.png", PNG[:8], id="PNG signature only"),
        pytest.param("truncated or damaged", "x.png", PNG[: len(PNG) // 2], id="half a PNG"),
        pytest.param("truncated or damaged", "x.png", PNG[:-12], id="PNG without its last chunk"),
        pytest.param("truncated or damaged", "x.png", PNG[:60] + b"\xaa" + PNG[61:], id="flipped byte"),
        pytest.param("truncated or damaged", "x.jpg", as_file(Image.fromarray(RGB), "JPEG")[:500], id="half a JPEG"),
        pytest.param("truncated or damaged", "x.bmp", as_file(Image.fromarray(RGB), "BMP")[:200], id="half a BMP"),
        pytest.param("no .npy array", "x.npy", b"\x93NUMPY\x01\x00\x10", id="cut npy header"),
        pytest.param("no .npy array", "x.npy", PNG, id="PNG named npy"),
        pytest.param("header promises 1,440 bytes", "x.npy", npy(RGB.astype(np.float32))[:-10], id="cut npy values"),
        pytest.param("never unpickled|dtype is object", "x.npy", npy(np.array([[{}]], dtype=object)), id="pickle"),
        pytest.param("dtype is complex64", "x.npy", npy(np.zeros((4, 4), np.complex64)), id="complex"),
        pytest.param("shape is 1x64x8", "x.npy", npy(np.zeros((1, 64, 8), np.float32)), id="latents"),
        pytest.param("shape is that of a single number", "x.npy", npy(np.array(1.0)), id="scalar"),
        pytest.param("shape is 0x4x3", "x.npy", npy(np.zeros((0, 4, 3))), id="empty array"),
        pytest.param("a picture was expected", "x.mp4", b"anything", id="video by name"),
        pytest.param("a picture was expected", "x.png", b"\0\0\0\x18ftypisom" + bytes(99), id="video by content"),
    ],
)
def test_what_is_no_picture_is_named_with_its_reason(expected: str, name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FuseproofError, match=expected.replace("(", r"\(").replace(")", r"\)")) as caught:
        load_image(path)
    assert 1 == caught.value.exit_code
    assert str(path) in caught.value.message
    assert caught.value.next_step


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_file(30_000, 30_000, depth=8, colour_type=2, packed_rows=b"\0"))
    with pytest.raises(FuseproofError, match=r"decompression bomb .*900[, ]?000[, ]?000") as caught:
        load_image(path)
    assert f"{MAX_PIXELS:,}" in caught.value.message


@pytest.mark.parametrize("shape", ["(100000, 100000, 3)", "(4, -1)"])
def test_an_npy_header_that_promises_too_much_allocates_nothing(shape: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.npy"
    path.write_bytes(npy_with_header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"))
    with pytest.raises(FuseproofError, match=r"decompression bomb|shape is 4x-1"):
        load_image(path)


def test_animations_are_refused_not_cut_to_their_first_frame(tmp_path: Path) -> None:
    frames = [Image.fromarray(RGB), Image.fromarray(RGB[::-1])]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(FuseproofError, match="holds 2 frames"):
        load_image(tmp_path / "x.gif")


@pytest.mark.parametrize("kind", ["missing", "folder", "dangling", "pipe", "too long"])
def test_paths_without_a_file_behind_them(kind: str, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300 if kind == "too long" else f"{kind}.png")
    if kind == "folder":
        path.mkdir()
    if kind == "dangling":
        path.symlink_to(tmp_path / "nowhere.png")
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(FuseproofError, match=r"No such file|it is a folder|not a regular file|name too long"):
        load_image(path)


def test_an_unreadable_file_gives_the_system_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "x.png", RGB)

    def deny(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", deny)
    with pytest.raises(FuseproofError, match=r"x\.png cannot be compared: Permission denied"):
        load_image(path)
