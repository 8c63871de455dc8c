"""``fuseproof generate`` with editing models: the image, its canvas, what is recorded, and what is refused at once."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from fuseproof.cli import generation
from fuseproof.pipelines.checkpoint_marker import Marker
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.embedded import ResolvedModel
from fuseproof.pipelines.families import LONGCAT_IMAGE_EDIT, LONGCAT_IMAGE_EDIT_TURBO
from fuseproof.pipelines.family import Family
from tests.cli.desk import Desk
from tests.pipelines.input_pictures import encoded, picture, with_orientation

EDIT = ("--model-path=embedded:longcat-image-edit", "--prompt=Make the cat wear a red hat.")
DUMP = "--perf-dump-path=p.json"


@pytest.fixture
def edit_desk(real_models: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """An editing model that is found and whole; canvas of 256 x 256; an input of 96 x 64, so 320 x 224."""

    def resolve(model_path: str, revision: str | None) -> ResolvedModel:
        return ResolvedModel(Path("/models/fake"), "embedded", model_path, revision, "a" * 64, "cached")

    def check(folder: Path, expected: Family | None = None) -> Checkpoint:
        return Checkpoint(folder, expected or LONGCAT_IMAGE_EDIT, {}, {}, Marker(None, 256 * 256))

    monkeypatch.setattr(generation, "resolve_model", resolve)
    monkeypatch.setattr(generation, "check_checkpoint", check)
    (real_models.folder / "cat.png").write_bytes(encoded(picture()))
    return real_models


def test_the_canvas_follows_the_image_and_both_are_recorded(edit_desk: Desk) -> None:
    assert 0 == edit_desk.run(*EDIT, "--image-path=cat.png", DUMP)
    request = edit_desk.session.requests[0]
    assert (320, 224, 8, 2.5, False, 65536) == (
        request.width, request.height, request.num_inference_steps, request.guidance_scale, request.enable_cfg_renorm,
        request.canvas_pixels,
    )  # fmt: skip
    assert picture().tobytes() == request.image.pixels.tobytes()
    config = edit_desk.dump()["config"]
    expected = {
        "family": "longcat-image-edit",
        "width": 320,
        "height": 224,
        "canvas_pixels": 65536,
        "requested_size": None,
        "image_path": ["cat.png"],
        "image_sha256": [request.image.sha256],
        "image_conversions": [],
        "enable_cfg_renorm": False,
    }
    assert expected == {name: config[name] for name in expected}
    assert [] == edit_desk.dump()["warnings"]
    assert (320, 224) == tuple(edit_desk.dump()["outputs"][0][side] for side in ("width", "height"))


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ("1024x1024 was requested and 320x224 is produced", ["--width=1024", "--height=1024"]),
        ("width 500 was requested and 320x224 is produced", ["--width=500"]),
        ("height 427 was requested and 320x224 is produced", ["--height=427"]),
        (None, ["--width=320", "--height=224"]),
        (None, ["--height=224"]),
    ],
)
def test_another_size_than_the_canvas_is_a_warning_that_names_both(
    edit_desk: Desk, expected: str | None, arguments: list[str]
) -> None:
    assert 0 == edit_desk.run(*EDIT, "--image-path=cat.png", DUMP, *arguments)
    warnings = edit_desk.dump()["warnings"]
    assert ([] if expected is None else [expected]) == [warning.partition(":")[0] for warning in warnings]
    assert (expected or "") in edit_desk.err
    assert (320, 224) == (edit_desk.session.requests[0].width, edit_desk.session.requests[0].height)


@pytest.mark.parametrize(
    ("expected", "size", "content"),
    [
        (["RGBA laid over white"], (320, 224), encoded(picture().convert("RGBA"))),
        (["turned upright from EXIF orientation 6"], (224, 320), with_orientation(picture(), 6, "JPEG")),
        (["L made RGB"], (320, 224), encoded(picture().convert("L"))),
        (["CMYK made RGB"], (320, 224), encoded(picture().convert("CMYK"), "JPEG")),
    ],
    ids=["rgba", "exif", "grey", "cmyk"],
)
def test_conversions_are_recorded(edit_desk: Desk, expected: list[str], size: tuple[int, int], content: bytes) -> None:
    (edit_desk.folder / "in").write_bytes(content)
    assert 0 == edit_desk.run(*EDIT, "--image-path=in", DUMP)
    request = edit_desk.session.requests[0]
    assert (size, "RGB") == ((request.width, request.height), request.image.pixels.mode)
    assert expected == edit_desk.dump()["config"]["image_conversions"]


def test_every_prompt_edits_the_same_image(edit_desk: Desk) -> None:
    assert 0 == edit_desk.run(*EDIT, "--prompt=b", "--image-path=cat.png", "--no-save-output")
    first, second = edit_desk.session.requests
    assert first.image is second.image
    assert ("Make the cat wear a red hat.", "b") == (first.prompt, second.prompt)


@pytest.mark.parametrize(
    ("expected", "arguments"),
    [
        ([(320, 224, 96, 64)], ["--warmup"]),
        ([(320, 224, 96, 64)], ["--warmup-resolutions=320x224"]),
        ([(256, 256, 256, 256), (320, 224, 96, 64)], ["--warmup-resolutions=256x256,320x224"]),
    ],
)
def test_warm_ups_edit_the_image_too(edit_desk: Desk, expected: list[Any], arguments: list[str]) -> None:
    assert 0 == edit_desk.run(*EDIT, "--image-path=cat.png", "--no-save-output", *arguments)
    asked = [(r.width, r.height, r.image.width, r.image.height) for r, _ in edit_desk.session.warmups]
    assert expected == asked


def test_turbo_has_its_own_defaults(edit_desk: Desk) -> None:
    model = "--model-path=embedded:longcat-image-edit-turbo"
    assert 0 == edit_desk.run(model, "--prompt=a", "--image-path=cat.png", DUMP)
    request = edit_desk.session.requests[0]
    assert (8, 1.0) == (request.num_inference_steps, request.guidance_scale)
    assert "longcat-image-edit-turbo" == edit_desk.dump()["config"]["family"]


@pytest.mark.parametrize("model_id", ["meituan-longcat/LongCat-Image-Edit-Turbo", "LongCat-Image-Edit-Turbo"])
def test_a_local_folder_is_the_model_that_it_is_said_to_be(edit_desk: Desk, model_id: str) -> None:
    (edit_desk.folder / "weights").mkdir()
    arguments = ("--model-path=weights", "--prompt=a", "--image-path=cat.png", "--no-save-output", DUMP)
    assert 0 == edit_desk.run(*arguments, f"--model-id={model_id}")
    assert (8, 1.0) == (
        edit_desk.session.requests[0].num_inference_steps,
        edit_desk.session.requests[0].guidance_scale,
    )
    assert (LONGCAT_IMAGE_EDIT_TURBO.name, model_id) == tuple(
        edit_desk.dump()["config"][name] for name in ("family", "model_id")
    )
    assert "" == edit_desk.err


@pytest.mark.parametrize(
    ("is_warned", "folder"), [(True, "my-Turbo-weights"), (False, "weights")], ids=["called-turbo", "another-name"]
)
def test_a_folder_called_turbo_that_runs_as_the_slow_one_is_said_to(
    edit_desk: Desk, is_warned: bool, folder: str
) -> None:
    assert 0 == edit_desk.run(f"--model-path={folder}", "--prompt=a", "--image-path=cat.png", "--no-save-output")
    assert is_warned == ("--model-id meituan-longcat/LongCat-Image-Edit-Turbo would run it" in edit_desk.err)
    assert 50 == edit_desk.session.requests[0].num_inference_steps


REFUSED = {
    "no-image": (2, [], "LongCat-Image-Edit edits one image, but --image-path was not given"),
    "two-images": (2, ["--image-path=cat.png", "--image-path=cat.png"], "--image-path was given 2 times"),
    "missing": (1, ["--image-path=none.png"], "No such file"),
    "html": (1, ["--image-path=page.png"], "an HTML page"),
    "truncated": (1, ["--image-path=cut.png"], "broken image"),
    "empty": (1, ["--image-path=empty.png"], "is empty"),
    "floats": (1, ["--image-path=float.tiff"], "pixels of mode F"),
    "extreme": (2, ["--image-path=strip.png"], "1000x10; one side may be at most 16 times"),
    "unreachable": (1, ["--image-path=http://127.0.0.1:1/a.png"], "cannot be fetched"),
    "other-scheme": (2, ["--image-path=ftp://127.0.0.1/a.png"], "neither a file nor an http(s) URL"),
    "renorm": (2, ["--image-path=cat.png", "--enable-cfg-renorm"], "does not renormalise"),
    "renorm-min": (2, ["--image-path=cat.png", "--cfg-renorm-min=0.5"], "does not renormalise"),
    "rewrite": (2, ["--image-path=cat.png", "--enable-prompt-rewrite"], "does not rewrite prompts"),
    "warm-up-size": (2, ["--image-path=cat.png", "--warmup-resolutions=300x200"], "320x224"),
    "model-id": (2, ["--image-path=cat.png", "--model-id=LongCat-Image-Edit"], "--model-id says what a local folder"),
    "frames": (2, ["--image-path=cat.png", "--num-frames=5"], "--num-frames is 5"),
}


@pytest.mark.parametrize(("code", "arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_every_mistake_is_a_sentence_before_anything_is_loaded(
    edit_desk: Desk, code: int, arguments: list[str], said: str
) -> None:
    content = encoded(picture())
    for name, data in (("page.png", b"<html>"), ("cut.png", content[: len(content) // 2]), ("empty.png", b"")):
        (edit_desk.folder / name).write_bytes(data)
    (edit_desk.folder / "strip.png").write_bytes(encoded(Image.new("RGB", (1000, 10))))
    (edit_desk.folder / "float.tiff").write_bytes(encoded(Image.new("F", (16, 16)), "TIFF"))
    before = edit_desk.files()
    assert code == edit_desk.run(*EDIT, DUMP, *arguments)
    assert said in edit_desk.err
    assert edit_desk.err.startswith("fuseproof: error: ")
    assert 2 == edit_desk.err.count("\n")
    assert before == edit_desk.files()
    assert edit_desk.session.opened_with is None


def test_a_published_editing_model_is_judged_before_it_is_downloaded(
    real_models: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "resolve_model", lambda *_: pytest.fail("downloaded"))
    for model_id in ("meituan-longcat/LongCat-Image-Edit", "meituan-longcat/LongCat-Image-Edit-Turbo"):
        assert 2 == real_models.run("--prompt=a", f"--model-path={model_id}")
        assert "edits one image, but --image-path was not given" in real_models.err


def test_an_unknown_model_id_lists_the_published_ones(edit_desk: Desk) -> None:
    assert 2 == edit_desk.run("--model-path=weights", "--prompt=a", "--image-path=cat.png", "--model-id=Turbo")
    assert "'Turbo', which is no published model" in edit_desk.err
    assert "meituan-longcat/LongCat-Image-Edit-Turbo" in edit_desk.err


def test_a_text_to_image_model_takes_no_image(edit_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2 == edit_desk.run("--prompt=a", "--image-path=cat.png")
    assert "LongCat-Image makes images from text alone" in edit_desk.err
    assert edit_desk.session.opened_with is None


@pytest.mark.parametrize("model_path", ["longcat-image-edit", "meituan-longcat/LongCat-Image-Edit-Turbo"])
def test_dummy_weights_draw_on_the_published_canvas(edit_desk: Desk, model_path: str) -> None:
    arguments = ("--load-format=dummy", f"--model-path={model_path}", "--prompt=a", "--no-save-output")
    assert 0 == edit_desk.run(*arguments, "--image-path=cat.png")
    request = edit_desk.session.requests[0]
    assert (1264, 848, 1024 * 1024) == tuple(
        dataclasses.asdict(dataclasses.replace(request, image=None))[name]
        for name in ("width", "height", "canvas_pixels")
    )
    assert 2 == edit_desk.run(*arguments)
    assert "--image-path was not given" in edit_desk.err
    assert 2 == edit_desk.run(*arguments, "--image-path=cat.png", "--model-id=LongCat-Image-Edit")


@pytest.mark.slow_process
@pytest.mark.timeout(600)
def test_both_backends_edit_alike_in_fresh_processes(tiny_edit_model_folder: Path, tmp_path: Path) -> None:
    """The whole way, as a user types it: the shipped image, one step, native and reference."""
    import json

    from fuseproof.pipelines.embedded import embedded_weights
    from fuseproof.schedules.plan import PLANS_FOLDER

    hashes = []
    for backend in ("native", "diffusers"):
        command = [
            sys.executable, "-m", "fuseproof", "generate", f"--model-path={tiny_edit_model_folder}",
            "--prompt=Make the cat wear a red hat.", f"--image-path={PLANS_FOLDER / 'assets' / 'window-cat.jpg'}",
            "--num-inference-steps=1", f"--backend={backend}", "--fastpaths=off", "--no-save-output", "--width=256",
            "--perf-dump-path=p.json",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stderr
        dump = json.loads((tmp_path / "p.json").read_text())
        told = ["width 256 was requested and 320x224 is produced"]
        told += ["random weights"] if embedded_weights("longcat-image-edit") == "random" else []
        assert told == [text.split(":")[0] for text in dump["warnings"]]
        assert "ImageVAEEncodingStage" in [step["name"] for step in dump["steps"]]
        hashes.append(dump["outputs"][0]["raw_sha256"])
    assert hashes[0] == hashes[1]


@pytest.fixture
def tiny_edit_model_folder(tmp_path: Path) -> Path:
    """A copy of ``embedded:longcat-image-edit``, as ``models make-tiny`` writes it."""
    from fuseproof.cli.main import main

    folder = tmp_path / "model"
    assert 0 == main(["models", "make-tiny", "longcat-image-edit", str(folder)])
    return folder
