"""``fuseproof compare-media`` with videos: what is printed, the JSON, folders, contracts, exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fuseproof.cli.main import main
from fuseproof.cli.video_file import frame_pixels
from tests.harness.clip_samples import darkened, encoded, one_bit_changed, raw_clip, saved

RAW = raw_clip()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, raw in {"a": RAW, "same": RAW, "one_bit": one_bit_changed(RAW, 3), "dark": darkened(RAW, 2)}.items():
        np.save(tmp_path / f"{name}.npy", raw)
        saved(tmp_path / f"{name}.mp4", raw)
    saved(tmp_path / "long.mp4", raw_clip(5))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["compare-media", *arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("expected", "arguments", "named"),
    [
        (0, "a.npy same.npy --contract exact", "4 of 4 identical"),
        (4, "a.npy one_bit.npy --contract exact --data-range 1", "1 of 4 frames differ (number 3), in 1 of 3,072"),
        (4, "a.mp4 one_bit.mp4 --contract exact", "so exactness cannot be shown"),
        (4, "a.mp4 dark.mp4 --contract close:ssim>=0.92,psnr>=24", "is below 24 dB"),
        (0, "a.mp4 same.mp4 --contract close:ssim>=0.92,psnr>=24", "holds"),
        (1, "a.mp4 long.mp4", "frame count: A has 4, B has 5"),
        (4, "a.mp4 long.mp4 --contract close:psnr>=1", "frame count: A has 4, B has 5"),
        (0, "a.mp4 dark.mp4", "usual floors    NOT met"),
    ],
)
def test_exit_codes_and_words(
    expected: int, arguments: str, named: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, *arguments.split())
    assert expected == code
    assert named in out


def test_the_json_lists_every_frame(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "a.npy", "dark.npy", "--data-range", "1", "--json")
    document: Any = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    comparison = document["pairs"][0]["comparison"]
    assert 0 == code
    assert ("video", 4, 3, [2]) == tuple(
        comparison[key] for key in ("kind", "frames", "identical_frames", "changed_frames")
    )
    assert [True, False, True, True] == [frame["identical"] for frame in comparison["distances"]]
    assert (2, 2, False) == (
        comparison["ssim_frame"],
        comparison["psnr_frame"],
        comparison["usual_floors"]["met"],
    )


def test_the_diff_image_is_of_the_worst_frame(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "a.mp4", "dark.mp4", "--diff-image", "d.png")
    assert 0 == code
    assert "diff image of frame 2: d.png" in out
    assert (16 * 3 + 16, 16) == Image.open(place / "d.png").size


def test_folders_of_videos_and_pictures_are_compared_name_by_name(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, second in (("x", RAW), ("y", darkened(RAW, 2))):
        (place / name).mkdir()
        saved(place / name / "one.mp4", RAW)
        saved(place / name / "two.mp4", second)
        Image.fromarray(frame_pixels(RAW[0])).save(place / name / "still.png")
    code, out, _ = run(capsys, "x", "y")
    assert 0 == code
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert "identical" in lines["one.mp4"] and "identical" in lines["still.png"]
    assert "different" in lines["two.mp4"]
    assert "Worst pair: two.mp4" in out


def test_a_truncated_video_is_one_sentence(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "cut.mp4").write_bytes((place / "a.mp4").read_bytes()[:-200])
    code, _, err = run(capsys, "a.mp4", "cut.mp4")
    assert 1 == code
    assert err.startswith("fuseproof: error: cut.mp4 cannot be compared: it is truncated")


@pytest.mark.parametrize(
    ("named", "changes"),
    [("display matrix 0 1 -1 0", {"degrees": -90}), ("shown from 0.25 s", {"times": [4, 5, 6, 7]})],
    ids=["turned", "late"],
)
def test_equal_frames_that_players_show_otherwise_are_said(
    named: str, changes: dict[str, Any], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoded(place / "plain.mp4", frame_pixels(RAW))
    encoded(place / "other.mp4", frame_pixels(RAW), **changes)
    code, out, said = run(capsys, "plain.mp4", "other.mp4", "--contract", "close:psnr>=1")
    assert (0, True) == (code, "frame-identical" in out)
    assert "players are told differently" in said and named in said
