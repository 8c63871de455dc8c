"""Comparing pictures: equality by values and never by SSIM, and numbers that cannot flatter."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, PngImagePlugin

from fuseproof.errors import UsageError
from fuseproof.harness.analysis.output_pairs import ComparedPair
from fuseproof.harness.analysis.sentences import pair_text
from fuseproof.harness.media.comparison import (
    MediaComparison,
    compare_pictures,
    degenerate_reason,
    distance_text,
    load_image,
    share_text,
)
from fuseproof.harness.media.folders import compare_paths
from fuseproof.schedules.contracts import parse_contract
from tests.harness.media_samples import png_of_depth_16, save, smooth_picture

PICTURE = smooth_picture()


def compare(
    folder: Path, a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], data_range: float | None = None
) -> MediaComparison:
    """Save both arrays losslessly, load and compare them; any warning of a library fails the test."""
    suffix = ".png" if a.dtype in (np.uint8, np.bool_) or (a.dtype == np.uint16 and a.ndim == 2) else ".npy"
    paths = save(folder / f"a{suffix}", a), save(folder / f"b{suffix}", b)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        comparison = compare_pictures(*(load_image(path) for path in paths), data_range=data_range)
    json.dumps(comparison.to_json(), allow_nan=False)
    return comparison


def with_alpha(colours: npt.NDArray[np.uint8], alpha: int) -> npt.NDArray[np.uint8]:
    return np.dstack([colours, np.full(colours.shape[:2], alpha, np.uint8)])


# Equality


@pytest.mark.parametrize("data_range", [None, 1.0])
def test_identical_float_arrays_have_ssim_exactly_1(data_range: float | None, tmp_path: Path) -> None:
    values = (PICTURE / 255).astype(np.float32)
    result = compare(tmp_path, values, values, data_range)
    assert ("file", 1.0, None, True) == (result.equality, result.ssim, result.psnr_db, result.psnr_is_infinite)
    assert (0.0, 0.0, 0.0) == (result.max_abs, result.mean_abs, result.differing_share)
    assert [] == parse_contract("exact").violations(result)
    assert [] == parse_contract("close:ssim>=1,psnr>=100").violations(result)


@pytest.mark.parametrize("side", [1, 2, 5])
def test_identical_tiny_pictures_have_ssim_exactly_1(side: int, tmp_path: Path) -> None:
    assert 1.0 == compare(tmp_path, PICTURE[:side, :9], PICTURE[:side, :9]).ssim


def test_one_changed_bit_is_never_ssim_1(tmp_path: Path) -> None:
    changed = PICTURE.copy()
    changed[40, 40, 1] ^= 1
    result = compare(tmp_path, PICTURE, changed)
    assert "different" == result.equality
    assert 1 == result.difference.differing_values  # type: ignore[union-attr]
    assert 1.0 == result.max_abs
    assert result.ssim is not None
    assert 0.99999 < result.ssim < 1.0
    assert ["1 of 36,864 values differ (0.00271 %), the largest by 1"] == parse_contract("exact").violations(result)


def test_metadata_and_compression_change_the_file_but_not_the_pixels(tmp_path: Path) -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("workflow", "{}")
    paths = [
        save(tmp_path / "a.png", PICTURE),
        save(tmp_path / "b.png", PICTURE, pnginfo=text),
        save(tmp_path / "c.png", PICTURE, compress_level=0),
    ]
    a, b, c = (load_image(path) for path in paths)
    assert 3 == len({picture.file_sha256 for picture in (a, b, c)})
    assert ["pixels", "pixels"] == [compare_pictures(a, other).equality for other in (b, c)]
    assert [] == parse_contract("exact").violations(compare_pictures(a, b))


def test_signed_zeros_differ_in_bits_only(tmp_path: Path) -> None:
    a = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    b = a.copy()
    b[0, 0] = -0.0
    result = compare(tmp_path, a, b, 1.0)
    assert ("different", 0.0, None, True) == (
        result.equality,
        result.max_abs,
        result.psnr_db,
        result.psnr_is_infinite,
    )
    assert result.ssim is not None
    assert result.ssim < 1.0
    assert ["1 of 64 values differ (1.56 %), in their bits only (signed zeros)"] == parse_contract("exact").violations(
        result
    )
    assert [] == parse_contract("close:psnr>=100").violations(result)


def test_a_difference_in_alpha_alone_is_a_difference(tmp_path: Path) -> None:
    result = compare(tmp_path, with_alpha(PICTURE, 255), with_alpha(PICTURE, 254))
    assert "different" == result.equality
    assert 0.25 == result.differing_share


def test_an_untouched_alpha_channel_does_not_hide_damaged_colours(tmp_path: Path) -> None:
    noise = np.random.default_rng(1).integers(0, 40, PICTURE.shape, dtype=np.uint8)
    damaged = PICTURE + noise
    colours = compare(tmp_path, PICTURE, damaged)
    result = compare(tmp_path, with_alpha(PICTURE, 255), with_alpha(damaged, 255))
    assert (colours.ssim, colours.psnr_db) == (result.ssim, result.psnr_db)
    assert "lower of colour and alpha" in result.ssim_variant


# Mismatches


@pytest.mark.parametrize(
    ("expected", "a", "b"),
    [
        pytest.param(
            "geometry: A is 115x76 px, B is 96x92 px",
            smooth_picture(76, 115),
            smooth_picture(92, 96),
            id="size, never resized",
        ),
        pytest.param("geometry: A is 9x8 px, B is 8x9 px", PICTURE[:8, :9], PICTURE[:9, :8], id="transposed"),
        pytest.param("channels: A has 4 (RGBA), B has 3 (RGB)", with_alpha(PICTURE, 255), PICTURE, id="RGBA and RGB"),
        pytest.param("channels: A has 3 (RGB), B has 1 (L)", PICTURE, PICTURE[..., 0], id="RGB and L"),
        pytest.param(
            "bit depth: A has 8 bits (uint8), B has 1 bits (bool)",
            PICTURE[..., 0],
            PICTURE[..., 0] > 99,
            id="L and 1",
        ),
    ],
)
def test_a_mismatch_names_both_values(
    expected: str, a: npt.NDArray[np.generic], b: npt.NDArray[np.generic], tmp_path: Path
) -> None:
    result = compare(tmp_path, a, b)
    assert result.mismatch is not None
    assert expected in result.mismatch
    assert ("different", None, None, None) == (result.equality, result.ssim, result.psnr_db, result.max_abs)
    for contract in ("exact", "close:ssim>=0"):
        assert [result.mismatch] == parse_contract(contract).violations(result)


def test_cmyk_and_rgba_have_four_channels_but_mismatch(tmp_path: Path) -> None:
    Image.fromarray(PICTURE).convert("CMYK").save(tmp_path / "a.tif")
    save(tmp_path / "b.tif", with_alpha(PICTURE, 255))
    result = compare_pictures(load_image(tmp_path / "a.tif"), load_image(tmp_path / "b.tif"))
    assert "channels: A has 4 (CMYK), B has 4 (RGBA)" == result.mismatch


def test_a_palette_picture_equals_the_rgb_picture_it_shows(tmp_path: Path) -> None:
    palette = Image.fromarray(PICTURE).convert("P")
    palette.save(tmp_path / "a.png")
    palette.convert("RGB").save(tmp_path / "b.png")
    result = compare_pictures(load_image(tmp_path / "a.png"), load_image(tmp_path / "b.png"))
    assert "pixels" == result.equality
    assert "A: its palette was expanded to RGB" in result.warnings


# Depth and data range


def test_16_bit_pictures_are_compared_in_16_bits(tmp_path: Path) -> None:
    result = compare(tmp_path, np.full((40, 40), 1000, np.uint16), np.full((40, 40), 60000, np.uint16))
    assert ("different", 65535.0, 59000.0) == (result.equality, result.data_range, result.max_abs)
    assert result.psnr_db == pytest.approx(20 * np.log10(65535 / 59000))
    assert result.ssim_variant.endswith("data range 65535")


def test_16_bit_colours_that_share_their_high_bytes_differ(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (16, 16, 3), dtype=np.uint16)
    for name, change in (("a.png", 0), ("b.png", 1)):
        (tmp_path / name).write_bytes(png_of_depth_16(values ^ change, 2))
    result = compare_pictures(load_image(tmp_path / "a.png"), load_image(tmp_path / "b.png"))
    assert ("different", 1.0, 1.0) == (result.equality, result.max_abs, result.differing_share)


def test_float_values_are_not_measured_without_a_data_range(tmp_path: Path) -> None:
    values = (PICTURE / 255).astype(np.float32)
    result = compare(tmp_path, values, values * np.float32(0.5))
    assert (None, None, False) == (result.ssim, result.psnr_db, result.psnr_is_infinite)
    assert "data range" in str(result.ssim_unavailable)
    assert 2 == len(parse_contract("close:ssim>=0,psnr>=0").violations(result))


def test_float_and_uint8_of_the_same_picture_measure_alike(tmp_path: Path) -> None:
    other = smooth_picture(seed=1)
    as_bytes = compare(tmp_path, PICTURE, other)
    as_floats = compare(tmp_path, PICTURE / 255, other / 255, 1.0)
    assert as_bytes.ssim == pytest.approx(as_floats.ssim, abs=1e-9)
    assert as_bytes.psnr_db == pytest.approx(as_floats.psnr_db, abs=1e-9)


@pytest.mark.parametrize(("data_range", "expected"), [(255.0, "span only"), (0.5, "more than the data range")])
def test_a_data_range_that_does_not_fit_is_flagged(data_range: float, expected: str, tmp_path: Path) -> None:
    values = (PICTURE / 255).astype(np.float32)
    result = compare(tmp_path, values, values * np.float32(0.9), data_range)
    assert any(expected in warning for warning in result.warnings)


@pytest.mark.parametrize("data_range", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_data_range_is_a_usage_error(data_range: float, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a finite number above 0"):
        compare(tmp_path, PICTURE, PICTURE, data_range)


@pytest.mark.parametrize(
    ("expected", "side"), [("uniform 7x7", 7), ("uniform 5x5", 6), ("uniform 5x5", 5), ("uniform 3x3", 3), (None, 2)]
)
def test_small_pictures_use_the_largest_odd_window(expected: str | None, side: int, tmp_path: Path) -> None:
    result = compare(tmp_path, PICTURE[:side, :20], 200 - PICTURE[:side, :20])
    if expected is None:
        assert result.ssim is None
        assert "a side of 2 px is below the smallest window, 3 px" == result.ssim_unavailable
        assert result.psnr_db is not None
    else:
        assert result.ssim is not None
        assert expected in result.ssim_variant


# Non-finite and degenerate


@pytest.mark.parametrize("both", [False, True], ids=["one NaN", "the same NaN in both"])
def test_nan_breaks_every_contract(both: bool, tmp_path: Path) -> None:
    damaged = (PICTURE / 255).astype(np.float32)
    damaged[3, 3, 0], damaged[4, 4, 1] = np.nan, np.inf
    clean = damaged if both else (PICTURE / 255).astype(np.float32)
    result = compare(tmp_path, clean, damaged, 1.0)
    assert ("file" if both else "different") == result.equality
    assert (2, None, None, None) == (result.b.nonfinite, result.ssim, result.psnr_db, result.max_abs)
    for contract in ("exact", "close:ssim>=0", "close:psnr>=0"):
        assert any("2 non-finite values" in text for text in parse_contract(contract).violations(result))


def test_two_identical_black_pictures_prove_nothing(tmp_path: Path) -> None:
    black = np.zeros((32, 32, 3), np.uint8)
    result = compare(tmp_path, black, black)
    assert ("file", 1.0) == (result.equality, result.ssim)
    for contract in ("exact", "close:ssim>=0.9"):
        assert 2 == len(parse_contract(contract).violations(result))


@pytest.mark.parametrize(
    ("expected", "array"),
    [
        ("constant", np.full((4, 4, 3), (1, 2, 3), np.uint8)),
        ("constant", np.ones((3, 5), np.float32)),
        ("non-finite", np.full((2, 2, 3), np.nan, np.float32)),
        ("non-finite", np.array([[0.0, np.inf]])),
        (None, np.array([[[1, 1, 1], [1, 1, 2]]], np.uint8)),
        (None, PICTURE),
    ],
)
def test_degenerate_reason(expected: str | None, array: npt.NDArray[np.generic]) -> None:
    assert expected == degenerate_reason(array)


# Where the difference is


def one_level_at_scattered_pixels(count: int) -> npt.NDArray[np.uint8]:
    changed = smooth_picture(256, 256).reshape(-1, 3)
    changed[np.random.default_rng(5).choice(len(changed), count, replace=False)] += 1
    return changed.reshape(256, 256, 3)


def block_of_50(base: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    changed = base.copy()
    changed[64:96, 128:160] += 50
    return changed


def test_scattered_rounding_and_a_local_regression_are_told_apart(tmp_path: Path) -> None:
    base = smooth_picture(256, 256)
    scattered = compare(tmp_path, base, one_level_at_scattered_pixels(1024)).difference
    local = compare(tmp_path, base, block_of_50(base)).difference
    assert scattered is not None
    assert local is not None
    assert 1024 == scattered.differing_pixels == local.differing_pixels
    assert ("scattered", 1.0) == (scattered.pattern, scattered.max_abs)
    assert ("local", 50.0) == (local.pattern, local.max_abs)
    assert scattered.densest_window.differing_share < 0.1
    assert (64, 128, 1.0) == (local.worst_window.row, local.worst_window.column, local.worst_window.differing_share)
    assert 50.0 == local.worst_window.mean_abs


def test_a_handful_of_pixels_is_scattered_although_it_is_concentrated(tmp_path: Path) -> None:
    base = smooth_picture(256, 256)
    assert "scattered" == compare(tmp_path, base, one_level_at_scattered_pixels(3)).difference.pattern  # type: ignore[union-attr]


def test_a_local_regression_shows_under_rounding_noise_everywhere(tmp_path: Path) -> None:
    base = smooth_picture(256, 256)
    noise = np.random.default_rng(2).integers(0, 2, base.shape, dtype=np.uint8)
    assert "widespread" == compare(tmp_path, base, base + noise).difference.pattern  # type: ignore[union-attr]
    result = compare(tmp_path, base, block_of_50(base + noise)).difference
    assert result is not None
    assert ("local", 64, 128) == (result.pattern, result.worst_window.row, result.worst_window.column)


def test_distances(tmp_path: Path) -> None:
    a = np.zeros((10, 10), np.uint8)
    a[0, 0] = 9
    b = a.copy()
    b[9, 5:] = (1, 2, 3, 4, 100)
    result = compare(tmp_path, a, b).difference
    assert result is not None
    assert (100, 5, 100, 5) == (result.values, result.differing_values, result.pixels, result.differing_pixels)
    assert (100.0, 1.1) == (result.max_abs, result.mean_abs)
    assert result.p99_abs == pytest.approx(np.percentile(np.abs(b.astype(int) - a), 99))


# Containers and files


def test_png_against_jpeg_refuses_exactness_and_says_why(tmp_path: Path) -> None:
    pictures = [load_image(save(tmp_path / name, PICTURE)) for name in ("a.png", "b.jpg")]
    result = compare_pictures(*pictures)
    assert any("B: JPEG is a lossy container" in text for text in parse_contract("exact").violations(result))
    assert any("include the codec's loss" in warning for warning in result.warnings)
    assert "the containers differ: A is PNG, B is JPEG" in result.warnings


def test_two_equal_jpeg_files_are_not_exact(tmp_path: Path) -> None:
    result = compare_pictures(*[load_image(save(tmp_path / name, PICTURE)) for name in ("a.jpg", "b.jpg")])
    assert "file" == result.equality
    assert 2 == len(parse_contract("exact").violations(result))
    assert [] == parse_contract("close:ssim>=0.99").violations(result)


def test_a_profile_that_only_one_side_has_is_flagged(tmp_path: Path) -> None:
    save(tmp_path / "a.png", PICTURE)
    save(tmp_path / "b.png", PICTURE, icc_profile=b"a profile")
    result = compare_pictures(load_image(tmp_path / "a.png"), load_image(tmp_path / "b.png"))
    assert "pixels" == result.equality
    assert any("viewers are told differently" in warning for warning in result.warnings)


def test_a_file_compared_with_itself_is_flagged(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", PICTURE)
    (tmp_path / "link.png").symlink_to(path)
    result = compare_pictures(load_image(path), load_image(tmp_path / "link.png"))
    assert "A and B are the same file; a file always equals itself" in result.warnings


def test_in_folders_the_worst_pair_is_named(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for seed in range(4):
            save(tmp_path / folder / f"prompt-{seed}.png", smooth_picture(seed=seed))
    save(tmp_path / "b" / "prompt-2.png", smooth_picture(seed=2) // 2)
    report = compare_paths(tmp_path / "a", tmp_path / "b")
    assert "prompt-2.png" == report.worst().name
    violations = report.violations(parse_contract("close:psnr>=28"))
    assert 1 == len(violations)
    assert violations[0].startswith("prompt-2.png: PSNR ")


def test_outputs_that_do_not_depend_on_their_prompt_are_flagged(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for prompt in range(2):
            save(tmp_path / folder / f"{prompt}.png", smooth_picture(seed=prompt if folder == "a" else 0))
    report = compare_paths(tmp_path / "a", tmp_path / "b")
    assert ("all 2 pictures of B are the same picture: does it depend on its prompt?",) == report.warnings


@pytest.mark.parametrize(
    ("expected", "share"), [("0 %", 0.0), ("100 %", 1.0), ("just under 100 %", 0.99999), ("1e-05 %", 1e-7)]
)
def test_share_text_rounds_neither_to_none_nor_to_all(expected: str, share: float) -> None:
    assert expected == share_text(share)


def test_comparing_loads_no_torch() -> None:
    code = "import sys, fuseproof.harness.media.folders, fuseproof.harness.media.diff; sys.exit('torch' in sys.modules)"
    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


@pytest.mark.parametrize(
    ("expected", "distance"),
    [("n/a", None), ("0", 0.0), ("255", 255.0), ("9.537e-07", 2.0**-20), ("0.5", 0.5), ("1001", 1000.6)],
)
def test_a_distance_reads_0_only_when_it_is(expected: str, distance: float | None) -> None:
    assert expected == distance_text(distance)


def test_a_report_says_how_far_floats_are_apart(tmp_path: Path) -> None:
    a = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    for name, pixels in (("a.npy", a), ("b.npy", a + np.float32(1e-3))):
        np.save(tmp_path / name, pixels)
    compared = compare_pictures(load_image(tmp_path / "a.npy"), load_image(tmp_path / "b.npy"))
    pair = ComparedPair(0, None, "slots/c/01-1-A/outputs/a.npy", "slots/c/01-2-B/outputs/b.npy", compared, None, ())
    assert "max |Δ| 0.001, 100 % of values differ" in pair_text(pair)
