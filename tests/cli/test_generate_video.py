"""``fuseproof generate`` with a model that makes clips: the file, the hash of every raw frame, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fuseproof.cli.clip_outputs import pixels_of
from fuseproof.harness.media.clips import load_clip
from fuseproof.harness.media.files import array_sha256, file_sha256
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.families import WAN21_T2V_1_3B, WAN22_TI2V_5B
from fuseproof.pipelines.family import Family
from tests.cli.desk import Desk
from tests.cli.fake_session import picture

SMALL = ("--width=64", "--height=32", "--num-inference-steps=2")
WAN = ("--model-path=embedded:wan2.2-ti2v-5b", "--prompt=a red panda", *SMALL)
DUMP = "--perf-dump-path=p.json"


@pytest.fixture
def video_desk(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A Wan that is always found and whole, and a picture of a cat."""
    from fuseproof.cli import generation

    def check(folder: Path, expected: Family | None = None) -> Checkpoint:
        return Checkpoint(folder, expected or WAN22_TI2V_5B, {}, {})

    monkeypatch.setattr(generation, "check_checkpoint", check)
    Image.new("RGB", (90, 60), (200, 120, 40)).save(desk.folder / "cat.png")
    return desk


def test_a_clip_is_an_mp4_whose_raw_frames_are_hashed_before_it(video_desk: Desk) -> None:
    assert 0 == video_desk.run(*WAN, "--num-frames=5", "--fps=12", "--keep-raw", DUMP)
    request, output = video_desk.session.requests[0], video_desk.dump()["outputs"][0]
    raw = picture(request)
    assert ((5, 32, 64, 3), array_sha256(raw)) == (raw.shape, output["raw_sha256"])
    assert [array_sha256(frame) for frame in raw] == output["frames_sha256"]
    assert array_sha256(pixels_of(raw)) == output["pixels_sha256"]
    assert (5, 12.0, 64, 32) == tuple(output[key] for key in ("frames", "fps", "width", "height"))
    path = video_desk.folder / output["path"]
    clip = load_clip(path)
    assert (".mp4", 5, 12.0, (64, 32)) == (path.suffix, clip.frames, float(clip.fps or 0), (clip.width, clip.height))
    assert output["file_sha256"] == file_sha256(path)
    assert array_sha256(raw) == array_sha256(np.load(video_desk.folder / "raw" / f"{path.stem}.npy"))
    assert f"Output saved to {output['path']}" in video_desk.out


@pytest.mark.parametrize(
    ("expected", "model", "arguments"),
    [
        ((9, 24.0, 128, 96, 8), "embedded:wan2.2-ti2v-5b", ()),
        ((9, 16.0, 128, 96, 8), "embedded:wan2.1-t2v-1.3b", ()),
        ((121, 24.0, 1280, 704, 50), "wan2.2-ti2v-5b", ("--load-format=dummy",)),
        ((81, 16.0, 832, 480, 50), "wan2.1-t2v-1.3b", ("--load-format=dummy",)),
    ],
    ids=["embedded-2.2", "embedded-2.1", "released-2.2", "released-2.1"],
)
def test_what_is_not_said_is_the_models(
    expected: tuple[Any, ...], model: str, arguments: tuple[str, ...], video_desk: Desk
) -> None:
    still = np.zeros((1, 2, 2, 3), np.float32)
    video_desk.session.outcomes[0] = still
    assert 0 == video_desk.run(f"--model-path={model}", "--prompt=a", "--no-save-output", DUMP, *arguments)
    config = video_desk.dump()["config"]
    assert expected == tuple(config[key] for key in ("num_frames", "fps", "width", "height", "num_inference_steps"))


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ("outputs/clip.mp4", ["--output-file-name=clip"]),
        ("outputs/clip.MP4", ["--output-file-name=clip.MP4"]),
        ("here/v1.2.mp4", ["--output-file-path=here/v1.2"]),
    ],
)
def test_a_file_name_gets_the_ending_of_a_video(expected: str, arguments: list[str], video_desk: Desk) -> None:
    assert 0 == video_desk.run(*WAN, "--num-frames=1", *arguments)
    assert expected in video_desk.files()


def test_the_output_quality_is_the_encoders(video_desk: Desk) -> None:
    sizes = []
    for quality in ("low", "maximum"):
        name = f"--output-file-name={quality}"
        assert 0 == video_desk.run(*WAN, "--num-frames=5", f"--output-quality={quality}", name, DUMP)
        assert (quality, []) == (video_desk.dump()["config"]["output_quality"], video_desk.dump()["warnings"])
        sizes.append((video_desk.folder / "outputs" / f"{quality}.mp4").stat().st_size)
    assert 2 * sizes[0] < sizes[1]


def test_an_image_begins_the_clip_at_the_size_that_was_asked_for(video_desk: Desk) -> None:
    assert 0 == video_desk.run(*WAN, "--num-frames=5", "--image-path=cat.png", "--warmup", DUMP)
    request = video_desk.session.requests[0]
    assert ((90, 60), 64, 32, None) == (request.image.pixels.size, request.width, request.height, request.canvas_pixels)
    assert [(64, 32, 5, (90, 60))] == [
        (one.width, one.height, one.num_frames, one.image.pixels.size) for one, _ in video_desk.session.warmups
    ]
    config = video_desk.dump()["config"]
    assert (["cat.png"], None, 64, 5) == tuple(
        config[key] for key in ("image_path", "canvas_pixels", "width", "warmup_num_frames")
    )


def test_a_warm_up_may_be_shorter_and_of_another_size(video_desk: Desk) -> None:
    flags = ("--num-frames=9", "--warmup-num-frames=5", "--warmup-resolutions=96x64", "--image-path=cat.png")
    assert 0 == video_desk.run(*WAN, *flags, DUMP)
    assert [(96, 64, 5)] == [(one.width, one.height, one.num_frames) for one, _ in video_desk.session.warmups]
    assert 9 == video_desk.session.requests[0].num_frames


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("cannot make 6 frames: they must be a multiple of 4 and one", ["--num-frames=6"]),
        ("next: Use --num-frames 5.", ["--num-frames=6"]),
        ("--warmup-num-frames is 6, and Wan 2.2 TI2V 5B makes a multiple of 4 and one", ["--warmup-num-frames=6"]),
        (
            "so --enable-torch-compile would compile inside the timed request",
            ["--enable-torch-compile", "--warmup-num-frames=5"],
        ),
        ("cannot make height 48", ["--height=48"]),
        ("'x.png' ends in .png, and Wan 2.2 TI2V 5B makes a video", ["--output-file-name=x.png"]),
        ("'x.webm' does not end in .png or .mp4", ["--output-file-name=x.webm"]),
        ("--fps is 70000", ["--fps=70000"]),
        ("begins a clip with one image, but --image-path was given 2 times", 2 * ["--image-path=cat.png"]),
        ("does not renormalise", ["--enable-cfg-renorm"]),
        ("has no prompt enhancer", ["--use-pe"]),
    ],
)
def test_a_mistake_is_a_sentence_before_anything_is_loaded(said: str, arguments: list[str], video_desk: Desk) -> None:
    before = video_desk.files()
    assert 2 == video_desk.run(*WAN, DUMP, *arguments)
    assert said in video_desk.err
    assert (before, None) == (video_desk.files(), video_desk.session.opened_with)


def test_a_text_model_takes_no_image_and_a_picture_model_no_clip_name(video_desk: Desk) -> None:
    text = f"--model-path=embedded:{WAN21_T2V_1_3B.name}"
    assert 2 == video_desk.run(text, "--prompt=a", "--image-path=cat.png")
    assert "Wan 2.1 T2V 1.3B makes clips from text alone" in video_desk.err
    assert 2 == video_desk.run("--model-path=embedded:longcat-image", "--prompt=a", "--output-file-name=x.mp4")
    assert "'x.mp4' ends in .mp4, and LongCat-Image makes an image" in video_desk.err


def test_a_frame_that_is_not_finite_fails_and_one_picture_over_and_over_is_said(video_desk: Desk) -> None:
    broken = np.zeros((5, 32, 64, 3), np.float32)
    video_desk.session.outcomes[0] = broken
    assert 0 == video_desk.run(*WAN, "--num-frames=5")
    assert "constant" in video_desk.err
    broken[3, 0, 0, 0] = np.nan
    video_desk.session.outcomes[1] = broken
    assert 1 == video_desk.run(*WAN, "--num-frames=5", "--output-path=none")
    assert "1 of 30,720 raw values of image 0 are NaN or infinite" in video_desk.err
    assert not (video_desk.folder / "none").exists() or [] == list((video_desk.folder / "none").iterdir())
