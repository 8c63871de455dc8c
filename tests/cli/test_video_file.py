"""The MP4 that ``generate`` writes: its size, rate, frames, and what is refused before anything is computed."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fuseproof.cli.main import main
from fuseproof.cli.video_file import RATE_FACTORS, check_video_size, frame_pixels, frame_rate, write_video
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.media.clips import load_clip
from tests.harness.clip_samples import raw_clip

PIXELS = frame_pixels(raw_clip())


@pytest.mark.parametrize("fps", [16, 24, 23.976, 1])
def test_what_is_written_is_read_back(fps: float, tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", PIXELS, fps)
    clip = load_clip(tmp_path / "a.mp4")
    assert (16, 16, 4, "yuv420p", ()) == (clip.width, clip.height, clip.frames, clip.pixel_format, clip.audio)
    assert clip.fps is not None and abs(float(clip.fps) - fps) < 1e-3


def test_a_better_quality_is_closer_and_no_temporary_file_is_left(tmp_path: Path) -> None:
    """Nothing here asks the encoder for equal files of equal frames: it makes others now and then (docs/videos.md)."""
    distances = []
    for quality in (*RATE_FACTORS, None):
        write_video(tmp_path / "a.mp4", PIXELS, 16, quality)
        frames = np.stack([frame.pixels for frame in load_clip(tmp_path / "a.mp4").read()])
        distances.append(np.abs(frames.astype(int) - PIXELS).mean())
    assert min(distances) == distances[0], "maximum is the closest"
    assert distances[2] == pytest.approx(distances[-1], rel=0.05), "None is the default"
    assert ["a.mp4"] == [path.name for path in tmp_path.iterdir()]


def test_values_are_cut_as_the_export_of_diffusers_cuts_them() -> None:
    raw = np.array([[[[0.0, 0.5, 0.999]]], [[[1.0, -0.1, np.nan]]]], np.float32)
    assert [[[[0, 127, 254]]], [[[255, 0, 0]]]] == frame_pixels(raw).tolist()
    ordinary = np.random.default_rng(3).random((2, 5, 7, 3), dtype=np.float32)
    assert ((ordinary * 255).astype(np.uint8) == frame_pixels(ordinary)).all()


@pytest.mark.parametrize(
    ("expected", "size"),
    [("832x480 or 834x480", (833, 480)), ("16x14 or 16x16", (16, 15)), ("14x2 or 16x2", (15, 1))],
)
def test_an_odd_size_is_refused_with_the_nearest_ones(expected: str, size: tuple[int, int], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"{size[0]}x{size[1]} px cannot be written") as caught:
        check_video_size(*size)
    assert f"The nearest sizes are {expected}." == caught.value.next_step
    with pytest.raises(UsageError):
        write_video(tmp_path / "odd.mp4", np.zeros((1, size[1], size[0], 3), np.uint8), 16)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("expected", "fps"), [(Fraction(24), 24), (Fraction(24000, 1001), 24000 / 1001), (Fraction(1, 2), 0.5)]
)
def test_rates_are_fractions(expected: Fraction, fps: float) -> None:
    assert expected == frame_rate(fps)


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf"), 0.0001, 1e9])
def test_impossible_rates_are_refused(fps: float) -> None:
    with pytest.raises(UsageError, match="--fps is"):
        frame_rate(fps)


def test_a_folder_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FuseproofError, match="could not be written") as caught:
        write_video(tmp_path / "missing" / "a.mp4", PIXELS, 16)
    assert caught.value.next_step
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("shape", [(4, 16, 16), (0, 16, 16, 3), (4, 16, 16, 4)])
def test_only_frames_of_rgb_are_written(shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="write_video takes"):
        write_video(tmp_path / "a.mp4", np.zeros(shape, np.uint8), 16)


@pytest.mark.parametrize(
    ("fake", "expected"),
    [
        ("raise ModuleNotFoundError('av', name='av')", "(PyAV), which cannot be loaded here"),
        ("", "has no encoder libx264"),
    ],
    ids=["no-av", "no-encoder"],
)
def test_what_encodes_is_looked_for_before_anything_is_computed(
    fake: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codec = "class codec:\n    def Codec(name, mode): raise ValueError(name)\n"
    (tmp_path / "av.py").write_text(fake or codec)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "av", raising=False)
    code = main(["generate", "--model-path", "embedded:longlive2", "--prompt", "x", "--output-path", str(tmp_path)])
    said = capsys.readouterr().err
    assert (1, True) == (code, expected in said)
    assert "--no-save-output" in said and "loading" not in said
