"""Hashes as documented, PNGs written whole or not at all, and pictures of a difference."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from fuseproof.errors import FuseproofError
from fuseproof.harness.media.comparison import array_sha256, file_sha256, load_image, write_png
from fuseproof.harness.media.diff import difference_image
from tests.harness.media_samples import save, smooth_picture

PICTURE = smooth_picture()


def test_array_sha256_is_the_documented_byte_string() -> None:
    array = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    expected = hashlib.sha256(b"float32|1x2x3|" + np.arange(6, dtype="<f4").tobytes()).hexdigest()
    assert expected == array_sha256(array)
    assert expected == array_sha256(array.astype(">f4"))
    assert expected == array_sha256(np.asfortranarray(array))
    assert expected == array_sha256(np.repeat(array, 2, axis=1)[:, ::2])


@pytest.mark.parametrize(
    "other", [np.zeros((3, 2), np.uint8), np.zeros((2, 3), np.int8), np.zeros((2, 3, 1), np.uint8)]
)
def test_array_sha256_depends_on_shape_and_dtype(other: npt.NDArray[np.generic]) -> None:
    assert array_sha256(np.zeros((2, 3), np.uint8)) != array_sha256(other)


def test_file_sha256(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc" * 1_000_000)
    assert hashlib.sha256(b"abc" * 1_000_000).hexdigest() == file_sha256(tmp_path / "x")
    with pytest.raises(FuseproofError, match="missing cannot be read: No such file"):
        file_sha256(tmp_path / "missing")


def test_write_png_round_trips_and_is_deterministic(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write_png(tmp_path / name, PICTURE)
    picture = load_image(tmp_path / "a.png")
    assert array_sha256(PICTURE) == picture.pixels_sha256
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert ["a.png", "b.png"] == sorted(path.name for path in tmp_path.iterdir())


def test_write_png_replaces_the_file_instead_of_writing_into_it(tmp_path: Path) -> None:
    write_png(tmp_path / "x.png", PICTURE)
    before = (tmp_path / "x.png").read_bytes()
    (tmp_path / "kept.png").hardlink_to(tmp_path / "x.png")
    write_png(tmp_path / "x.png", PICTURE[::-1])
    assert before == (tmp_path / "kept.png").read_bytes()
    assert before != (tmp_path / "x.png").read_bytes()


def test_a_full_disk_leaves_the_old_picture_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_png(tmp_path / "x.png", PICTURE)
    before = (tmp_path / "x.png").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(FuseproofError, match=r"x\.png could not be written: No space left on device"):
        write_png(tmp_path / "x.png", PICTURE[::-1])
    assert before == (tmp_path / "x.png").read_bytes()
    assert ["x.png"] == [path.name for path in tmp_path.iterdir()]


def test_write_png_into_a_missing_folder_or_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for parent in ("missing", "file"):
        with pytest.raises(FuseproofError, match="could not be written"):
            write_png(tmp_path / parent / "x.png", PICTURE)


@pytest.mark.parametrize(
    "pixels", [PICTURE.astype(np.float32), PICTURE[..., 0], np.dstack([PICTURE, PICTURE[..., :1]])]
)
def test_write_png_takes_uint8_rgb_only(pixels: npt.NDArray[np.generic], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="uint8 HxWx3"):
        write_png(tmp_path / "x.png", pixels)  # type: ignore[arg-type]


def test_the_difference_picture_amplifies_without_clipping(tmp_path: Path) -> None:
    changed = PICTURE.copy()
    changed[0, 0, 2] += 12
    changed[0, 1, 0] += 6
    pictures = [load_image(save(tmp_path / name, pixels)) for name, pixels in (("a.png", PICTURE), ("b.png", changed))]
    image, factor = difference_image(*pictures, data_range=255.0)
    assert 21 == factor
    assert (96, 3 * 128 + 16, 3) == image.shape
    assert np.array_equal(PICTURE, image[:, :128])
    assert np.array_equal(changed, image[:, 136:264])
    assert [252, 126, 0] == image[0, 272:275, 0].tolist()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGBA", "CMYK"])
def test_the_difference_picture_exists_for_every_mode(mode: str, tmp_path: Path) -> None:
    Image.fromarray(PICTURE).convert(mode).save(tmp_path / "a.tif")
    Image.fromarray(smooth_picture(seed=1)).convert(mode).save(tmp_path / "b.tif")
    pictures = [load_image(tmp_path / name) for name in ("a.tif", "b.tif")]
    image, _ = difference_image(*pictures, data_range=255.0 if mode != "1" else 1.0)
    assert (96, 3 * 128 + 16, 3) == image.shape
    assert image[:, 272:].any()


def test_non_finite_values_are_white_in_the_difference(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    damaged = values.copy()
    damaged[2, 3] = np.nan
    pictures = [load_image(save(tmp_path / name, v)) for name, v in (("a.npy", values), ("b.npy", damaged))]
    image, factor = difference_image(*pictures, data_range=None)
    assert 1 == factor
    assert (255, 0) == (image[2, 24 + 3 + 8, 0], image[2, 24 + 4 + 8, 0])


def test_a_linked_png_stays_a_link_and_a_pipe_is_refused(tmp_path: Path) -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    link, pipe = tmp_path / "link.png", tmp_path / "pipe.png"
    link.symlink_to(tmp_path / "real.png")
    write_png(link, pixels)
    assert link.is_symlink()
    assert (tmp_path / "real.png").read_bytes().startswith(b"\x89PNG")
    os.mkfifo(pipe)
    with pytest.raises(FuseproofError, match="it is a named pipe"):
        write_png(pipe, pixels)
