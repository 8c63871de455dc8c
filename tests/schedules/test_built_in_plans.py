"""The plans that come with fuseproof: published requests, one mode a cell, flags that generate takes, whole files."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from PIL import Image

from fuseproof.cli.abba_arms import check_plan
from fuseproof.cli.main import main
from fuseproof.harness.campaign.arms import slot_command
from fuseproof.pipelines.clip_canvas import clip_canvas
from fuseproof.pipelines.conditioning import canvas_size, read_conditioning_image
from fuseproof.pipelines.families import family_of_model_id
from fuseproof.schedules.plan import PLANS_FOLDER, Plan, built_in_plans, load_plan

LONGCAT = ("longcat-image", "longcat-image-edit", "longcat-image-edit-turbo")
ERNIE = ("ernie-image", "ernie-image-turbo")
THREE_MODES = (*ERNIE, *LONGCAT)
INPUT_IMAGE = PLANS_FOLDER / "assets" / "window-cat.jpg"
NEON = "A futuristic cyberpunk city at night, neon lights reflecting on wet streets"
REQUESTS = {
    "ernie-image": {
        "--prompt": NEON,
        "--width": "1024",
        "--height": "1024",
        "--num-inference-steps": "50",
        "--guidance-scale": "4",
    },
    "ernie-image-turbo": {
        "--prompt": NEON,
        "--width": "1024",
        "--height": "1024",
        "--num-inference-steps": "8",
        "--guidance-scale": "1",
    },
    "longcat-image": {
        "--prompt": "A red panda reading a book beside a sunlit window.",
        "--width": "1024",
        "--height": "1024",
        "--num-inference-steps": "50",
        "--guidance-scale": "4.5",
    },
    "longcat-image-edit": {
        "--prompt": "Make the cat wear a red hat.",
        "--image-path": "{plan_dir}/assets/window-cat.jpg",
        "--num-inference-steps": "50",
        "--guidance-scale": "4.5",
    },
    "longcat-image-edit-turbo": {
        "--prompt": "Make the cat wear a red hat.",
        "--image-path": "{plan_dir}/assets/window-cat.jpg",
        "--num-inference-steps": "8",
        "--guidance-scale": "1",
    },
}
SHARED = {
    "--load-format": "dummy",
    "--seed": "42",
    "--performance-mode": "manual",
    "--warmup-mode": "request",
    "--warmup-steps": "2",
}


def flags_of(text: str) -> dict[str, str]:
    """The flags of a command line; a lone one is ``true``."""
    words = shlex.split(text)
    found: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            name, separator, value = word.partition("=")
            found[name] = value if separator else "true" if following.startswith("--") else following
    return found


def test_these_plans_come_with_fuseproof() -> None:
    ernie = ["ernie-image", "ernie-image-compile", "ernie-image-turbo"]
    longlive2 = ["longlive2-i2v", "longlive2-t2v"]
    assert [
        "embedded",
        "embedded-high",
        *ernie,
        *LONGCAT,
        *longlive2,
        "sglang-pr",
        "wan2.2-ti2v-5b",
    ] == built_in_plans()


def test_help_names_them_all() -> None:
    from fuseproof.cli.abba import abba

    assert [] == [name for name in built_in_plans() if name not in (abba.help or "")]


def test_the_arms_of_sglang_pr_differ_in_their_refs_alone() -> None:
    plan = load_plan("sglang-pr")
    assert plan.arms.baseline == plan.arms.candidate.model_copy(update={"name": "baseline"})
    qualities = {cell.name: flags_of(cell.flags)["--quality"] for cell in plan.cells}
    assert {"lossless"} == {qualities.pop("flux1-dev-default")}, "sglang's default, which is not its exact level"
    assert {"exact"} == set(qualities.values())
    contracts = {cell.name for cell in plan.cells if cell.contract != "exact"}
    assert {"flux1-dev-default"} == contracts


ONE_BLOCK_OF = {"ernie-image-turbo": {"extra-high": 1}}
"""Only where the tier changes something: with guidance the prompts of ERNIE-Image differ in length, and keep masks."""


@pytest.mark.parametrize("name", THREE_MODES)
def test_a_plan_runs_the_published_request_in_three_modes(name: str) -> None:
    plan = load_plan(name)
    assert name == plan.name
    assert ("--fastpaths=off", "--fastpaths=auto") == (plan.arms.baseline.flags, plan.arms.candidate.flags)
    assert {"lossless": 2, **ONE_BLOCK_OF.get(name, {}), "graph": 1, "high": 1} == {
        cell.name: plan.blocks_of(cell.name) for cell in plan.cells
    }
    modes = {
        "lossless": ("exact", {"--quality": "lossless"}),
        "graph": ("exact", {"--quality": "lossless", "--enable-breakable-cuda-graph": "true"}),
        "extra-high": ("close:ssim>=0.95,psnr>=28", {"--quality": "extra-high"}),
        "high": ("close:ssim>=0.95,psnr>=28", {"--quality": "high"}),
    }
    for cell in plan.cells:
        contract, mode = modes[cell.name]
        found = flags_of(cell.flags)
        model = found.pop("--model-path")
        assert contract == cell.contract
        rewriting = "--use-pe" if name in ERNIE else "--enable-prompt-rewrite"
        assert {**REQUESTS[name], **SHARED, **mode, rewriting: "false"} == found
        family = family_of_model_id(model)
        assert family is not None
        assert name == family.name
        assert str(family.default_steps) == found["--num-inference-steps"]
        assert family.default_guidance_scale == float(found["--guidance-scale"])


def test_the_plan_against_torch_compile_judges_no_closeness_and_runs_both_published_requests() -> None:
    plan = load_plan("ernie-image-compile")
    baseline, candidate = flags_of(plan.arms.baseline.flags), flags_of(plan.arms.candidate.flags)
    assert {"--fastpaths": "off", "--enable-torch-compile": "true"} == baseline
    assert {"--fastpaths": "auto", "--enable-breakable-cuda-graph": "true"} == candidate
    for cell, name in zip(plan.cells, reversed(ERNIE), strict=True):
        assert "close:psnr>=0" == cell.contract, "the two arms round differently, and neither is wrong"
        eager = next(one for one in load_plan(name).cells if one.name == "lossless")
        assert flags_of(eager.flags) == flags_of(cell.flags)


def test_wans_clip_is_made_from_text_and_from_an_image() -> None:
    plan = load_plan("wan2.2-ti2v-5b")
    cells = {cell.name: flags_of(cell.flags) for cell in plan.cells}
    assert {"t2v": None, "i2v": "{plan_dir}/assets/window-cat.jpg"} == {
        name: flags.get("--image-path") for name, flags in cells.items()
    }
    for flags in cells.values():
        assert ("832", "480", "61") == tuple(flags[name] for name in ("--width", "--height", "--num-frames"))
    assert {"exact"} == {cell.contract for cell in plan.cells}


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (
            "longlive2-t2v",
            {"--prompt": "A curious raccoon", "--width": "832", "--height": "480"},
        ),
        (
            "longlive2-i2v",
            {
                "--prompt": "The cat starts walking slowly towards the camera",
                "--width": "960",
                "--height": "928",
                "--image-path": "{plan_dir}/assets/window-cat.jpg",
            },
        ),
    ],
)
def test_longlive_2_runs_the_published_request_lossless_and_high(name: str, asked: dict[str, str]) -> None:
    plan = load_plan(name)
    assert ("--fastpaths=off", "--fastpaths=auto") == (plan.arms.baseline.flags, plan.arms.candidate.flags)
    contracts = {"lossless": ("exact", None), "high": ("close:ssim>=0.92,psnr>=24", "lossless")}
    assert contracts == {cell.name: (cell.contract, cell.reference) for cell in plan.cells}
    assert {2} == {plan.blocks_of(cell.name) for cell in plan.cells}
    shared = {
        **SHARED,
        "--model-path": "Rabinovich/LongLive-2.0-5B-Diffusers",
        "--num-frames": "61",
        "--num-inference-steps": "4",
        "--guidance-scale": "1",
        "--warmup-steps": "full",
    }
    for cell in plan.cells:
        assert {**shared, **asked, "--quality": cell.name} == flags_of(cell.flags)


def test_the_shipped_cat_makes_a_clip_of_1152x768() -> None:
    image = read_conditioning_image(INPUT_IMAGE.read_bytes(), "")
    assert (1152, 768) == clip_canvas(image.width, image.height, 1280 * 704, 32)


@pytest.mark.parametrize(
    "name",
    [
        "embedded",
        "embedded-high",
        "ernie-image-compile",
        "wan2.2-ti2v-5b",
        "longlive2-t2v",
        "longlive2-i2v",
        *THREE_MODES,
    ],
)
def test_a_plan_can_start(name: str) -> None:
    check_plan(load_plan(name))


@pytest.mark.parametrize("name", THREE_MODES)
def test_the_dry_run_lists_every_slot(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert 0 == main(["abba", name, "--dry-run", "--json"])
    slots = json.loads(capsys.readouterr().out)["slots"]
    timed = [slot["id"].split("/")[0] for slot in slots if slot["kind"] == "timed"]
    more = {cell: 4 * blocks for cell, blocks in ONE_BLOCK_OF.get(name, {}).items()}
    assert {"lossless": 8, "graph": 4, **more, "high": 4} == {cell: timed.count(cell) for cell in timed}
    for slot in slots:
        images = [word for word in slot["command"] if word.endswith(".jpg")]
        assert all(Path(image).is_file() for image in images)
        assert ("edit" in name) == bool(images)


def test_one_number_of_blocks_on_the_command_line_is_for_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert 0 == main(["abba", "longcat-image", "--blocks=3", "--dry-run", "--json"])
    slots = json.loads(capsys.readouterr().out)["slots"]
    assert 3 * 3 * 4 == sum(slot["kind"] == "timed" for slot in slots)


def test_the_plan_of_the_embedded_models_quality_differs_in_quality_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = load_plan("embedded-high")
    assert ("--quality lossless", "--quality high") == (plan.arms.baseline.flags, plan.arms.candidate.flags)
    (cell,) = plan.cells
    sizes = {"--width": "256", "--height": "256", "--num-inference-steps": "20", "--guidance-scale": "4.5"}
    assert sizes.items() <= flags_of(cell.flags).items()
    assert (2, True) == (cell.flags.count("--prompt"), cell.contract.startswith("close:ssim"))
    monkeypatch.chdir(tmp_path)
    assert 0 == main(["abba", "embedded-high", "--dry-run", "--json"])
    slots = json.loads(capsys.readouterr().out)["slots"]
    assert 8 == sum(slot["kind"] == "timed" for slot in slots)


# {plan_dir}


PLAN = """
name = "tiny"
[arms.baseline]
name = "off"
flags = "--fastpaths=off"
[arms.candidate]
name = "on"
flags = "--config={plan_dir}/on.toml"
[[cells]]
name = "one"
flags = "--prompt 'a {b} c' --image-path '{plan_dir}/cat.jpg'"
[[cells]]
name = "two"
flags = "--prompt 'as   it is'"
"""


def words(plan: Plan, cell: str, letter: str) -> list[str]:
    command = slot_command(plan.arm(letter), plan.cell(cell), Path("p.json"), Path("o"))
    return list(command.argv[command.argv.index("generate") + 1 :])


def test_files_are_found_beside_a_plan_of_ones_own(tmp_path: Path) -> None:
    folder = tmp_path / "my plans"
    folder.mkdir()
    (folder / "tiny.toml").write_text(PLAN)
    plan = load_plan(folder / "tiny.toml")
    expected = ["--prompt", "a {b} c", "--image-path", f"{folder}/cat.jpg", f"--config={folder}/on.toml"]
    assert expected == words(plan, "one", "B")[:5]
    assert "--prompt 'as   it is'" == plan.cell("two").flags, "what does not name the folder keeps its spelling"
    again = Plan.model_validate(json.loads(json.dumps(plan.to_json())))
    assert plan == again


def test_a_built_in_plan_keeps_the_word_and_finds_its_files_where_it_runs() -> None:
    plan = load_plan("longcat-image-edit")
    assert "{plan_dir}/assets/window-cat.jpg" in plan.cells[0].flags
    found = words(plan, "lossless", "A")
    assert str(INPUT_IMAGE) == found[found.index("--image-path") + 1]


# The shipped image


def test_the_input_image_is_small_and_has_the_shape_of_its_canvas() -> None:
    assert INPUT_IMAGE.stat().st_size < 120_000
    image = read_conditioning_image(INPUT_IMAGE.read_bytes(), "")
    assert ((1264, 848), ()) == ((image.width, image.height), image.conversions)
    assert (1264, 848) == canvas_size(image.width, image.height, 1024 * 1024)


def test_the_input_image_is_what_its_script_draws(tmp_path: Path) -> None:
    """Close, not equal: another Pillow may encode other bytes."""
    import subprocess
    import sys

    import numpy as np

    script = Path(__file__).resolve().parents[2] / "docs" / "input-image" / "make_input_image.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "again.jpg")], check=True, timeout=240)
    with Image.open(tmp_path / "again.jpg") as drawn, Image.open(INPUT_IMAGE) as shipped:
        difference = np.asarray(drawn, np.float64) - np.asarray(shipped, np.float64)
    assert np.sqrt(np.mean(difference**2)) < 2.0


def test_the_input_image_carries_no_metadata() -> None:
    with Image.open(INPUT_IMAGE) as image:
        assert {} == dict(image.getexif())
        assert {"jfif", "jfif_version", "jfif_unit", "jfif_density"} >= set(image.info)
