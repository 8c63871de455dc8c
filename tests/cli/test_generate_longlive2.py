"""``fuseproof generate`` with LongLive 2: the size that an image gives, what is said of others, warm-ups, backends."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fuseproof.cli import generation
from fuseproof.cli.generate_summary import arrival_lines
from fuseproof.cli.perf_record import OutputRecord, RequestRecord, RunRecord, assemble
from fuseproof.errors import FuseproofError
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.families import LONGLIVE2
from fuseproof.pipelines.family import Family
from tests.cli.desk import Desk
from tests.cli.fake_session import picture

DUMMY = ("--model-path=Rabinovich/LongLive-2.0-5B-Diffusers", "--load-format=dummy", "--prompt=A curious raccoon")
EMBEDDED = ("--model-path=embedded:longlive2", "--prompt=A curious raccoon")
DUMP = "--perf-dump-path=p.json"
STILL = np.linspace(0, 1, 12, dtype=np.float32).reshape(1, 2, 2, 3)
"""What the stand-in makes of any request, so that no large clip is drawn."""


@pytest.fixture
def clip_desk(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A LongLive 2 that is always found and whole, and a picture of 3 to 2."""

    def check(folder: Path, expected: Family | None = None) -> Checkpoint:
        return Checkpoint(folder, expected or LONGLIVE2, {}, {})

    monkeypatch.setattr(generation, "check_checkpoint", check)
    Image.new("RGB", (90, 60), (200, 120, 40)).save(desk.folder / "cat.png")
    desk.session.outcomes[0] = STILL
    return desk


def shapes(desk: Desk) -> list[tuple[int, int, int]]:
    return [(one.width, one.height, one.num_frames) for one in desk.session.requests]


def test_the_defaults_are_the_published_ones(clip_desk: Desk) -> None:
    assert 0 == clip_desk.run(*DUMMY, "--no-save-output", DUMP)
    config = clip_desk.dump()["config"]
    keys = ("width", "height", "num_frames", "fps", "num_inference_steps", "guidance_scale", "seed", "family")
    assert (1280, 704, 61, 24.0, 4, 1.0, 42, "longlive2") == tuple(config[key] for key in keys)
    assert [] == clip_desk.dump()["warnings"]


def test_a_request_for_960x928_comes_out_in_the_images_aspect_and_both_are_recorded(clip_desk: Desk) -> None:
    flags = ("--image-path=cat.png", "--width=960", "--height=928", "--no-save-output", "--warmup", DUMP)
    assert 0 == clip_desk.run(*DUMMY, *flags)
    assert [(1152, 768, 61)] == shapes(clip_desk)
    assert [(1152, 768, 61)] == [(one.width, one.height, one.num_frames) for one, _ in clip_desk.session.warmups]
    config, warnings = clip_desk.dump()["config"], clip_desk.dump()["warnings"]
    assert ("960x928", 1152, 768, []) == tuple(
        config[key] for key in ("requested_size", "width", "height", "warmup_geometry")
    )
    assert [
        "960x928 is none of the sizes that LongLive 2 was published for: 1280x704, 704x1280, 832x480, 480x832.",
        "960x928 was requested and 1152x768 is produced: LongLive 2 takes its canvas from the input image, which is "
        "90x60.",
    ] == warnings
    assert all(text in clip_desk.err for text in warnings)


def test_what_is_known_before_the_work_is_said_before_it_and_once(clip_desk: Desk) -> None:
    flags = ("--image-path=cat.png", "--width=960", "--height=928", "--no-save-output")
    assert 0 == clip_desk.run(*DUMMY, *flags)
    assert 1 == clip_desk.err.count("1152x768 is produced")
    clip_desk.session.outcomes[1] = FuseproofError("no memory is left.")
    assert 1 == clip_desk.run(*DUMMY, *flags)
    assert clip_desk.err.index("1152x768 is produced") < clip_desk.err.index("no memory is left")


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        (True, ["--width=960", "--height=928"]),
        (True, ["--width=832"]),
        (False, ["--width=832", "--height=480"]),
        (False, ["--width=480", "--height=832"]),
    ],
)
def test_a_clip_from_text_has_the_size_that_was_asked_for(
    expected: bool, arguments: list[str], clip_desk: Desk
) -> None:
    assert 0 == clip_desk.run(*DUMMY, "--no-save-output", DUMP, *arguments)
    asked = dict(argument[2:].split("=") for argument in arguments)
    width, height, _ = shapes(clip_desk)[0]
    assert asked == {name: str(value) for name, value in (("width", width), ("height", height)) if name in asked}
    assert expected == any("none of the sizes" in text for text in clip_desk.dump()["warnings"])


def test_the_embedded_model_has_a_small_canvas_and_no_published_size(clip_desk: Desk) -> None:
    assert 0 == clip_desk.run(*EMBEDDED, "--image-path=cat.png", "--no-save-output", DUMP)
    assert [(128, 96, 61)] == shapes(clip_desk)
    assert [] == clip_desk.dump()["warnings"]


def test_a_warm_up_of_another_geometry_is_recorded_and_said(clip_desk: Desk) -> None:
    """sglang's helper warms 960x928 and 29 frames with two steps, whatever is measured."""
    warmup = ("--warmup-resolutions=960x928", "--warmup-num-frames=29", "--warmup-steps=2")
    assert 0 == clip_desk.run(*DUMMY, "--width=832", "--height=480", "--no-save-output", DUMP, *warmup)
    geometry = {"width": 960, "height": 928, "num_frames": 29, "num_inference_steps": 2}
    assert [geometry] == clip_desk.dump()["config"]["warmup_geometry"]
    assert [
        "the warm-up was 960x928 with 29 frames and 2 steps, and the request is 832x480 with 61 frames and 4 steps: "
        "what depends on the shape was cold when it was timed"
    ] == clip_desk.dump()["warnings"]


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [([], ["--warmup-steps=2"]), ([], ["--warmup-resolutions=960x928,832x480"]), ([], []),
     ([29], ["--warmup-num-frames=29"])],
)  # fmt: skip
def test_a_warm_up_of_the_requests_own_geometry_is_not(
    expected: list[int], arguments: list[str], clip_desk: Desk
) -> None:
    assert 0 == clip_desk.run(*DUMMY, "--width=832", "--height=480", "--no-save-output", DUMP, *arguments)
    assert expected == [one["num_frames"] for one in clip_desk.dump()["config"]["warmup_geometry"]]
    assert bool(expected) == any("was cold when it was timed" in text for text in clip_desk.dump()["warnings"])


def test_the_reference_is_named_and_mounts_nothing(clip_desk: Desk) -> None:
    assert 0 == clip_desk.run(*EMBEDDED, "--backend=reference", "--no-save-output", DUMP)
    assert ("reference", None) == (clip_desk.session.opened_with.backend, clip_desk.session.opened_with.fastpaths)
    assert "off" == clip_desk.dump()["config"]["fastpaths"]


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("which diffusers does not have; its eager reference is --backend reference", "--backend=diffusers"),
        ("--fastpaths auto and --backend reference cannot be combined", "--fastpaths=auto"),
        ("--quality high and --backend reference cannot be combined", "--quality=high"),
        ("--enable-torch-compile and --backend reference cannot", "--enable-torch-compile --warmup"),
        ("--enable-breakable-cuda-graph and --backend reference", "--enable-breakable-cuda-graph --warmup"),
        ("--gate observe and --backend reference cannot be combined: fast paths are off", "--gate=observe"),
        ("--require-fastpaths and --backend reference cannot", "--require-fastpaths"),
    ],
)
def test_a_reference_that_cannot_be_is_a_sentence(said: str, arguments: str, clip_desk: Desk) -> None:
    backend = () if "--backend" in arguments else ("--backend=reference",)
    assert 2 == clip_desk.run(*EMBEDDED, *backend, *arguments.split())
    assert said in clip_desk.err
    assert clip_desk.session.opened_with is None


@pytest.mark.parametrize("name", ["longcat-image", "ernie-image", "wan2.2-ti2v-5b"])
def test_models_that_diffusers_has_have_diffusers_as_their_reference(name: str, clip_desk: Desk) -> None:
    assert 2 == clip_desk.run(f"--model-path=embedded:{name}", "--prompt=a", "--backend=reference")
    assert "reference is diffusers' own pipeline.\n  next: Use --backend diffusers." in clip_desk.err


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ("was distilled to 4 steps, and 8 were asked for", ["--num-inference-steps=8"]),
        ("was distilled without guidance, and scale 5 was asked for", ["--guidance-scale=5"]),
        ("cannot make 60 frames: they must be 29 and a multiple of 32 more", ["--num-frames=60"]),
        ("--warmup-num-frames is 9, and LongLive 2 makes 29 and a multiple of 32 more", ["--warmup-num-frames=9"]),
        ("so nothing would be compiled", ["--enable-torch-compile", "--warmup"]),
        ("cannot make height 484 (the nearest are 480 and 512)", ["--height=484"]),
        ("begins a clip with one image", ["--image-path=cat.png", "--image-path=cat.png"]),
    ],
)
def test_a_mistake_is_a_sentence_before_anything_is_loaded(said: str, arguments: list[str], clip_desk: Desk) -> None:
    assert 2 == clip_desk.run(*DUMMY, DUMP, *arguments)
    assert said in clip_desk.err
    assert clip_desk.session.opened_with is None


def test_when_frames_came_stands_beside_the_request() -> None:
    output = OutputRecord(None, None, "p", "r", "l", 64, 32, 0, None, frames=61, fps=24.0)
    run = RunRecord("m", {}, {}, 0.0, 0.0, 0.0, {}, {}, {}, ())
    request = RequestRecord("a", None, 1, (), (), 900.0, 0.0, 950.0, {}, output, ((29, 400.0), (32, 880.0)))
    streamed, whole = (
        assemble([one], run, Path())["requests"][0]
        for one in (request, dataclasses.replace(request, frame_arrivals=()))
    )
    arrivals: list[dict[str, Any]] = [{"frames": 29, "at_ms": 400.0}, {"frames": 32, "at_ms": 880.0}]
    assert (400.0, arrivals) == (streamed["first_frame_ms"], streamed["frame_arrivals"])
    assert not {"first_frame_ms", "frame_arrivals"} & set(whole)
    assert ["frames 29 after 0.400 s, 32 after 0.880 s"] == list(arrival_lines([streamed, whole]))


def test_a_clip_is_written_as_one(clip_desk: Desk) -> None:
    clip_desk.session.outcomes.clear()
    assert 0 == clip_desk.run(*EMBEDDED, "--num-frames=29", "--width=64", "--height=32", DUMP)
    raw = picture(clip_desk.session.requests[0])
    assert (29, 29) == (len(raw), clip_desk.dump()["outputs"][0]["frames"])
