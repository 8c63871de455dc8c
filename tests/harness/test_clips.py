"""Reading and comparing videos: what is refused and in which words, which frame differs, what no frame shows."""

from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fuseproof.cli.video_file import frame_pixels
from fuseproof.errors import FuseproofError
from fuseproof.harness.media.clip_comparison import ClipComparison, compare_clips, numbers_text
from fuseproof.harness.media.clips import is_clip, load_clip
from fuseproof.harness.media.comparing import compare_files
from fuseproof.harness.media.files import array_sha256
from fuseproof.schedules.contracts import parse_contract
from tests.harness.clip_samples import darkened, encoded, one_bit_changed, raw_clip, saved

RAW = raw_clip()
PIXELS = frame_pixels(RAW)
SOUND = np.sin(np.arange(2000) / 5).astype(np.float32) / 2


def compared(a: Path, b: Path, data_range: float | None = None) -> ClipComparison:
    return compare_clips(load_clip(a), load_clip(b), data_range=data_range)


def array(path: Path, values: np.ndarray) -> Path:
    np.save(path, values)
    return path


def test_a_video_file_is_read_frame_by_frame(tmp_path: Path) -> None:
    clip = load_clip(saved(tmp_path / "a.mp4", RAW))
    assert (16, 16, 4, Fraction(16), "yuv420p", "h264") == (
        *(clip.width, clip.height, clip.frames, clip.fps),
        *(clip.pixel_format, clip.codec),
    )
    assert ((), None, 4) == (clip.audio, clip.degenerate, len(set(clip.frames_sha256)))
    frames = [frame.pixels for frame in clip.read()]
    assert [((16, 16, 3), "uint8")] * 4 == [(frame.shape, frame.dtype.name) for frame in frames]
    assert 12 > np.abs(np.stack(frames).astype(int) - PIXELS).mean(), "the colours are those that were written"


def test_an_array_of_four_dimensions_is_a_raw_video(tmp_path: Path) -> None:
    path = array(tmp_path / "raw.npy", RAW)
    clip = load_clip(path)
    assert is_clip(path) and not is_clip(array(tmp_path / "picture.npy", RAW[0]))
    assert (4, None, array_sha256(RAW)) == (clip.frames, clip.fps, clip.pixels_sha256)
    assert tuple(array_sha256(frame) for frame in RAW) == clip.frames_sha256


def test_one_least_bit_of_one_frame_is_reported_as_such(tmp_path: Path) -> None:
    a, b = array(tmp_path / "a.npy", RAW), array(tmp_path / "b.npy", one_bit_changed(RAW, 3))
    result = compared(a, b, data_range=1.0)
    assert ("different", (3,), 1, 3) == (
        result.equality,
        result.changed_frames,
        result.differing_values,
        result.worst_frame,
    )
    assert result.ssim is not None and result.ssim < 1
    assert result.frames_text.startswith("1 of 4 frames differ (number 3), in 1 of 3,072 values (0.0326 %)")
    assert [result.differing] == parse_contract("exact").violations(result)


def test_equal_bits_are_equal_whatever_the_file(tmp_path: Path) -> None:
    result = compared(array(tmp_path / "a.npy", RAW), array(tmp_path / "b.npy", np.asfortranarray(RAW)))
    assert ("pixels", 1.0, True, ()) == (result.equality, result.ssim, result.psnr_is_infinite, result.changed_frames)
    assert [] == parse_contract("exact").violations(result)


def test_equal_mp4_files_never_fulfil_exact(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a.mp4", RAW), saved(tmp_path / "b.mp4", one_bit_changed(RAW, 2))
    result = compared(a, b)
    assert ("file", True) == (result.equality, result.identical)
    assert ["A: h264 in mp4 is a lossy container, so exactness cannot be shown"] == parse_contract("exact").violations(
        result
    )[:1]


def test_other_bytes_around_equal_frames_are_told_apart(tmp_path: Path) -> None:
    a, b = saved(tmp_path / "a.mp4", RAW), tmp_path / "b.mp4"
    b.write_bytes(a.read_bytes() + (16).to_bytes(4, "big") + b"freecomments")
    result = compared(a, b)
    assert ("pixels", True, ()) == (result.equality, result.identical, result.changed_frames)
    assert result.a.file_sha256 != result.b.file_sha256
    assert result.a.pixels_sha256 == result.b.pixels_sha256


def test_another_encoder_is_said_and_its_loss_is_in_the_numbers(tmp_path: Path) -> None:
    result = compared(*(encoded(tmp_path / f"{codec}.mp4", PIXELS, codec=codec) for codec in ("libx264", "mpeg4")))
    assert "different" == result.equality
    assert any("the numbers include the codec's loss" in warning for warning in result.warnings)
    assert "the containers differ: A is h264 in mp4, B is mpeg4 in mp4" in result.warnings


def test_the_worst_frame_decides_and_the_mean_stands_beside_it(tmp_path: Path) -> None:
    a, b = array(tmp_path / "a.npy", PIXELS), array(tmp_path / "b.npy", frame_pixels(darkened(RAW, 2)))
    result = compared(a, b)
    assert ((2,), 2, 2, 2) == (
        result.changed_frames,
        result.worst_ssim_frame,
        result.worst_psnr_frame,
        result.worst_frame,
    )
    assert result.ssim is not None and result.mean_ssim is not None
    assert (3 + result.ssim) / 4 == pytest.approx(result.mean_ssim)
    assert result.psnr_db == result.mean_psnr_db, "an identical frame has no finite PSNR"
    assert result.meets_usual_floors is False
    assert ["SSIM", "PSNR"] == [
        text.split()[0] for text in parse_contract("close:ssim>=0.92,psnr>=24").violations(result)
    ]


def test_a_change_that_rgb_hides_is_still_a_changed_frame(tmp_path: Path) -> None:
    black = np.zeros((2, 16, 16, 3), np.uint8)
    black[:, :8] = 90
    files = []
    for name, blackest in (("a.mkv", 16), ("b.mkv", 10)):
        files.append(tmp_path / name)
        _write_luma(files[-1], blackest)
    result = compared(*files)
    assert ("different", (1, 2), 0.0, 0) == (
        result.equality,
        result.changed_frames,
        result.max_abs,
        result.differing_values,
    )
    assert "in their planes or bits only" in result.frames_text


def _write_luma(path: Path, value: int) -> None:
    """Two lossless frames whose lower half is this luma; everything up to 16 is shown black."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=Fraction(16))
        stream.width = stream.height = 16
        stream.pix_fmt = "yuv420p"
        for _ in range(2):
            luma = np.full((16, 16), 120, np.uint8)
            luma[8:] = value
            planes = np.concatenate([luma.ravel(), np.full(128, 128, np.uint8)]).reshape(24, 16)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))
        container.mux(stream.encode())


@pytest.mark.parametrize(
    ("expected", "other"),
    [
        ("frame count: A has 4, B has 5", raw_clip(5)),
        ("geometry: A is 16x16 px, B is 16x14 px", RAW[:, :14]),
        ("channels: A has 3, B has 1", RAW[..., :1]),
        ("bit depth: A has 32 bits (float32), B has 8 bits (uint8)", PIXELS),
    ],
)
def test_what_cannot_be_compared_is_a_mismatch_with_both_values(
    expected: str, other: np.ndarray, tmp_path: Path
) -> None:
    result = compared(array(tmp_path / "a.npy", RAW), array(tmp_path / "b.npy", other))
    assert (expected, None, ()) == (result.mismatch, result.ssim, result.distances)
    assert [expected] == parse_contract("close:psnr>=1").violations(result)


def test_another_pixel_format_is_a_mismatch(tmp_path: Path) -> None:
    result = compared(
        *(encoded(tmp_path / f"{name}.mp4", PIXELS, pixel_format=name) for name in ("yuv420p", "yuv444p"))
    )
    assert "pixel format: A is yuv420p, B is yuv444p" == result.mismatch


def test_odd_sizes_are_read_as_they_are(tmp_path: Path) -> None:
    clip = load_clip(encoded(tmp_path / "odd.mp4", PIXELS[:, :15, :13], pixel_format="yuv444p"))
    assert (13, 15) == (clip.width, clip.height)
    assert (15, 13, 3) == next(iter(clip.read())).pixels.shape


def test_another_frame_rate_breaks_every_contract(tmp_path: Path) -> None:
    a, b = encoded(tmp_path / "a.mkv", PIXELS, codec="ffv1"), tmp_path / "b.mkv"
    encoded(b, PIXELS, codec="ffv1", times=[0, 2, 4, 6])
    result = compared(a, b)
    assert ("different", (), ("frame rate: A has 16 fps, B has 8 fps",)) == (
        result.equality,
        result.changed_frames,
        result.unseen,
    )
    assert result.unseen == tuple(parse_contract("close:psnr>=1").violations(result))


@pytest.mark.parametrize(
    ("expected", "other"),
    [
        (None, SOUND),
        ("sound: A has 1 track, B has none", None),
        ("sound: 1 of 2,000 samples differ, the first is number 701, by 3200", SOUND + 0.1 * (np.arange(2000) == 700)),
        ("sound: A is flac, 8000 Hz, mono, 2000 samples; B is flac, 8000 Hz, mono, 1000 samples", SOUND[:1000]),
    ],
    ids=["equal", "missing", "one sample", "shorter"],
)
def test_sound_is_compared_sample_by_sample(expected: str | None, other: np.ndarray | None, tmp_path: Path) -> None:
    a = encoded(tmp_path / "a.mkv", PIXELS, codec="ffv1", sound=SOUND)
    result = compared(a, encoded(tmp_path / "b.mkv", PIXELS, codec="ffv1", sound=other))
    assert (() if expected is None else (expected,)) == result.unseen
    assert (expected is None) == result.identical
    assert (expected is None) == (parse_contract("exact").violations(result) == [])


def test_a_constant_video_proves_nothing_and_a_still_one_is_said(tmp_path: Path) -> None:
    black = array(tmp_path / "black.npy", np.zeros((3, 4, 4, 3), np.uint8))
    result = compared(black, array(tmp_path / "again.npy", np.zeros((3, 4, 4, 3), np.uint8)))
    assert "A is constant (one value everywhere), so it proves nothing" in parse_contract("exact").violations(result)
    assert "A: all 3 frames are the same picture" in result.warnings


def test_a_data_range_that_does_not_suit_the_values_is_said(tmp_path: Path) -> None:
    a, b = array(tmp_path / "a.npy", RAW), array(tmp_path / "b.npy", darkened(RAW, 2))
    assert any("SSIM and PSNR flatter" in warning for warning in compared(a, b, data_range=255.0).warnings)
    assert () == compared(a, b, data_range=1.0).warnings


def test_non_finite_frames_have_no_metrics(tmp_path: Path) -> None:
    broken = RAW.copy()
    broken[1, 0, 0, 0] = np.nan
    result = compared(array(tmp_path / "a.npy", RAW), array(tmp_path / "b.npy", broken), data_range=1.0)
    assert (None, "there are non-finite values", 2) == (result.ssim, result.ssim_unavailable, result.worst_frame)
    assert result.degenerate == ("B has 1 non-finite value, so it proves nothing",)


@pytest.mark.parametrize(
    ("expected", "make"),
    [
        ("no video stream", "sound only"),
        ("truncated", "half"),
        ("variable: frame 2 lasts 0.187 s, another one 0.063 s", "variable"),
        ("pixel format is yuv420p10le", "ten bit"),
        ("it is empty", "empty"),
        ("HTML page", "html"),
        ("git-LFS pointer", "pointer"),
        ("holds no frame|no video stream|truncated", "no frames"),
        ("not a regular file", "pipe"),
        ("No such file", "missing"),
    ],
)
def test_what_cannot_be_read_is_one_clear_sentence(expected: str, make: str, tmp_path: Path) -> None:
    path = tmp_path / "clip.mkv"
    _make_bad(make, path)
    with pytest.raises(FuseproofError, match=expected) as caught:
        load_clip(path)
    assert 1 == caught.value.exit_code
    assert f"{path} cannot be compared: " in caught.value.message and "\n" not in caught.value.message
    assert caught.value.next_step


def _make_bad(kind: str, path: Path) -> None:
    import av

    if kind in ("sound only", "no frames"):
        with av.open(str(path), "w") as container:
            if kind == "no frames":
                stream = container.add_stream("ffv1", rate=16)
                stream.width = stream.height = 16
                stream.pix_fmt = "yuv420p"
            track = container.add_stream("flac", rate=8000, layout="mono")
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
            frame.sample_rate, frame.pts = 8000, 0
            container.mux(track.encode(frame))
            container.mux(track.encode())
    elif kind == "half":
        encoded(path, PIXELS, codec="ffv1")
        path.write_bytes(path.read_bytes()[: -path.stat().st_size // 3])
    elif kind == "variable":
        encoded(path, PIXELS, times=[0, 1, 4, 5])
    elif kind == "ten bit":
        encoded(path, PIXELS, pixel_format="yuv420p10le")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "missing":
        texts = {"empty": "", "html": "<!DOCTYPE html>", "pointer": "version https://git-lfs.github.com/spec/v1\n"}
        path.write_text(texts[kind])


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_truncated_mp4_is_refused_wherever_it_ends(share: float, tmp_path: Path) -> None:
    path = saved(tmp_path / "clip.mp4", RAW)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(FuseproofError, match="it is truncated"):
        load_clip(path)


def test_more_pixels_than_the_limit_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npy"
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (200000, 900, 900, 3), }"
    with path.open("wb") as stream:
        stream.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
        stream.truncate(200000 * 900 * 900 * 3)
    with pytest.raises(FuseproofError, match=r"the limit is 17,179,869,184|decompression bomb"):
        load_clip(path)


def test_a_video_and_a_picture_are_not_compared(tmp_path: Path) -> None:
    with pytest.raises(FuseproofError, match=r"it is a video and b\.npy is a picture"):
        compare_files(saved(tmp_path / "a.mp4", RAW), array(tmp_path / "b.npy", RAW[0]))


@pytest.mark.parametrize(
    ("expected", "numbers"),
    [
        ("number 2", (2,)),
        ("numbers 1 to 3, 7, 9 to 10", (1, 2, 3, 7, 9, 10)),
        ("numbers 1, 3, 5, 7, 9, 11, 13, 15 and 1 more", tuple(range(1, 18, 2))),
    ],
)
def test_numbers_are_named_in_runs(expected: str, numbers: tuple[int, ...]) -> None:
    assert expected == numbers_text(numbers)
