from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from fuseproof.cli.main import main
from fuseproof.pipelines import embedded, model_cache
from fuseproof.pipelines.checkpoint_marker import MARKER, Marker
from fuseproof.pipelines.packaged_models import INDEX, SCHEMA, index_packaged
from tests.pipelines.fake_checkpoints import write_fake_checkpoint
from tests.pipelines.fake_recipe import RECIPE
from tests.pipelines.packaged_stand_in import BASE, PART, WEIGHTS, write_none, write_packaged
from tests.pipelines.test_packaged_models import close_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, nothing packaged, and a builder that needs no torch."""
    monkeypatch.setattr(embedded, "PACKAGED_MODELS", write_none(tmp_path / "nothing" / "embedded_models"))
    monkeypatch.setenv(model_cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    recipes = MappingProxyType({"longcat-image": RECIPE})
    monkeypatch.setattr(embedded, "RECIPES", recipes)
    monkeypatch.setattr(model_cache, "RECIPES", recipes)
    return tmp_path / "cache"


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["models", *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def test_list_names_families_models_and_the_offline_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    captured = capsys.readouterr()
    assert "longcat-image  LongCat-Image, text to image" in captured.out
    assert "meituan-longcat/LongCat-Image" in captured.out
    assert "embedded:longcat-image (not built yet), random weights" in captured.out
    assert "--load-format dummy --model-path longcat-image, 27.3 GiB in bfloat16" in captured.out
    assert captured.err == ""


def test_list_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    listed = run_json(capsys, "list")
    assert listed["schema"] == "fuseproof.models/1"
    assert [family["name"] for family in listed["families"]] == [
        "longcat-image",
        "longcat-image-edit",
        "longcat-image-edit-turbo",
        "ernie-image",
        "ernie-image-turbo",
        "wan2.2-ti2v-5b",
        "wan2.1-t2v-1.3b",
        "longlive2",
    ]
    assert listed["families"][0]["embedded"]["state"] == "not built yet"


@pytest.mark.parametrize("name", ["longcat-image", "embedded:longcat-image"])
def test_show_describes_a_family_without_building_anything(
    name: str, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "show", name]) == 0
    output = capsys.readouterr().out
    for expected in (
        "LongCatImagePipeline",
        "6.27 billion transformer parameters (published)",
        "1024x1024, 50 steps",
        "256x256, 8 steps",
        "multiples of 16",
        "14,646,655,203 parameters, 27.3 GiB in bfloat16 (54.6 GiB in float32)",
        "transformer     6,270,668,864 parameters, joint blocks 10, single blocks 20, attention heads 24, head dim 128",
        "text_encoder    8,292,166,656 parameters, layers 28, hidden size 3584, heads 28, key value heads 4",
        "vae             83,819,683 parameters, latent channels 16, widths [128, 256, 512, 512]",
    ):
        assert expected in output
    assert not own_cache.exists()


def test_show_as_json_says_what_dummy_weights_need(capsys: pytest.CaptureFixture[str]) -> None:
    dummy = run_json(capsys, "show", "longcat-image")["dummy"]
    assert (14_646_655_203, "longcat-image") == (dummy["parameters"], dummy["model_path"])
    assert {"bfloat16": 29_293_310_406, "float16": 29_293_310_406, "float32": 58_586_620_812} == dummy["weight_bytes"]
    assert 6_270_668_864 == dummy["components"]["transformer"]["parameters"]


def test_an_editing_family_has_no_default_size(capsys: pytest.CaptureFixture[str]) -> None:
    family = run_json(capsys, "show", "longcat-image-edit")["family"]
    assert "6.27 billion" == family["published_transformer_parameters"]
    for defaults, area in ((family["defaults"], 1024 * 1024), (family["embedded_defaults"], 256 * 256)):
        assert (None, None, area) == (defaults["width"], defaults["height"], defaults["canvas_pixels"])
    rule = "the input image's aspect, each side rounded up to a multiple of 16"
    assert rule == family["sizes"]["canvas_rule"]
    assert main(["models", "show", "longcat-image-edit"]) == 0
    assert f"sizes         {rule}" in capsys.readouterr().out
    assert run_json(capsys, "show", "longcat-image")["family"]["sizes"]["canvas_rule"] is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("longcat-imag", "longcat-image"),
        ("LongCat_Image_Edit", "longcat-image-edit"),
        ("meituan/LongCat-Image-Edit", "meituan-longcat/LongCat-Image-Edit"),
        ("embedded:longcat-imgae", "longcat-image"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_closest(
    name: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "show", name]) == 2
    assert f"next: Did you mean {meant!r}? " in capsys.readouterr().err


def test_show_as_json_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_fake_checkpoint(tmp_path / "my model")
    shown = run_json(capsys, "show", str(folder))
    assert shown["schema"] == "fuseproof.model/1"
    assert shown["family"]["sizes"]["multiple_of"] == 16
    assert shown["checkpoint"]["geometry"] == {
        "joint_blocks": 2,
        "single_blocks": 4,
        "attention_heads": 2,
        "head_dim": 128,
        "text_hidden_size": 64,
        "hidden_size": 256,
        "latent_channels": 16,
        "vae_scale": 8,
    }
    assert shown["checkpoint"]["components"]["transformer"]["parameters"] == 17
    assert shown["checkpoint"]["components"]["transformer"]["dtypes"] == ["F16", "F32"]
    assert shown["checkpoint"]["prompt_rewriting"] is False


def test_show_as_text_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_fake_checkpoint(tmp_path)
    assert main(["models", "show", str(folder)]) == 0
    output = capsys.readouterr().out
    assert f"checkpoint {folder}" in output
    assert "joint blocks 2, single blocks 4" in output
    assert "not possible: no text_processor" in output


def test_make_tiny_writes_a_folder_and_prints_its_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = run_json(capsys, "make-tiny", "longcat-image", str(tmp_path / "a"))
    assert main(["models", "make-tiny", "longcat-image", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'b'}  content sha256 {made['content_sha256']}\n"
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["model_index.json", "vae"]


REFUSED = {
    "show-unknown": (
        2,
        ["show", "flux"],
        "'flux' is neither a family (longcat-image, longcat-image-edit, ",
    ),
    "show-unknown-embedded": (2, ["show", "embedded:flux"], "no model family 'flux'"),
    "show-not-a-model": (1, ["show", "EMPTY"], "has no model_index.json"),
    "make-unknown": (2, ["make-tiny", "flux", "NEW"], "no embedded checkpoint 'flux'"),
    "make-in-use": (2, ["make-tiny", "longcat-image", "USED"], "is not empty"),
    "make-on-a-file": (2, ["make-tiny", "longcat-image", "USED/mine"], "is a file"),
    "make-under-a-file": (1, ["make-tiny", "longcat-image", "USED/mine/new"], "cannot be written"),
}


@pytest.mark.parametrize(("exit_code", "arguments", "expected"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_one_sentence_and_an_exit_code(
    exit_code: int, arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("EMPTY", "USED"):
        (tmp_path / name).mkdir()
    (tmp_path / "USED" / "mine").write_bytes(b"")
    placed = [str(tmp_path / text) if text.startswith(("EMPTY", "USED", "NEW")) else text for text in arguments]
    assert main(["models", *placed]) == exit_code
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.out == ""
    assert captured.err.startswith("fuseproof: error: ")
    assert captured.err.count("\n") == 2
    assert not (tmp_path / "NEW").exists()


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", "longcat-image"], ["--help"], ["make-tiny", "--help"]], ids=" ".join
)
def test_listing_and_showing_load_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys; from fuseproof.cli.main import main; main(sys.argv[1:]);"
        "print(sorted({'torch', 'diffusers', 'transformers', 'huggingface_hub'} & set(sys.modules)), file=sys.stderr)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, "models", *arguments], capture_output=True, text=True, check=True
    )
    assert process.stderr.strip() == "[]"


# Packaged weights


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A packaged longcat-image of a few bytes."""
    models = write_packaged(tmp_path / "embedded_models")
    monkeypatch.setattr(embedded, "PACKAGED_MODELS", models)
    return models


def test_packaged_weights_are_called_trained(packaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 0 == main(["models", "list"])
    assert "embedded:longcat-image (packaged), trained weights" in capsys.readouterr().out
    shown = run_json(capsys, "show", "longcat-image")["embedded"]
    assert ("packaged", "trained") == (shown["state"], shown["weights_kind"])


@pytest.mark.parametrize("command", ["models", "doctor"])
def test_damaged_packages_are_told_and_nothing_is_called_trained(
    command: str, packaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (packaged / BASE / WEIGHTS).unlink()
    assert 0 == main(["models", "list"] if command == "models" else ["doctor"])
    out = capsys.readouterr().out
    assert f"{WEIGHTS}, a part of embedded:longcat-image, is missing" in out
    assert "trained" not in out
    assert command == "models" or "next: Install fuseproof again" in out


@pytest.mark.parametrize("command", ["models list", "models show longcat-image", "doctor"])
def test_a_packaged_folder_that_cannot_be_read_is_told(
    command: str, packaged: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    close_folder(packaged / BASE, monkeypatch)
    assert 0 == main(command.split())
    out = capsys.readouterr().out
    assert "README.md, a part of embedded:longcat-image, cannot be read (Permission denied)" in out
    assert "trained" not in out


def test_make_tiny_does_not_blame_its_folder_for_the_packaged_ones(
    packaged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = MappingProxyType({"wan2.1-t2v-1.3b": RECIPE})
    monkeypatch.setattr(embedded, "RECIPES", recipes)
    close_folder(packaged, monkeypatch)
    assert 1 == main(["models", "make-tiny", "wan2.1-t2v-1.3b", str(tmp_path / "new")])
    err = capsys.readouterr().err
    assert f"{packaged / 'wan2.1-t2v-1.3b'}, where packaged weights " in err and "(Permission denied)" in err
    assert str(tmp_path / "new") not in err and not (tmp_path / "new").exists()


def lose_a_file(packaged: Path) -> None:
    (packaged / BASE / WEIGHTS).unlink()


def change_a_file(packaged: Path) -> None:
    (packaged / BASE / WEIGHTS).write_bytes(b"x")


def lose_the_list(packaged: Path) -> None:
    packaged.with_name(INDEX).unlink()


def list_nothing(packaged: Path) -> None:
    packaged.with_name(INDEX).write_text(json.dumps({"schema": SCHEMA, "checkpoints": {}}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lose_a_file, "is missing"),
        (change_a_file, "has SHA-256 2d711642b726"),
        (lose_the_list, "cannot be read: No such file or directory"),
        (list_nothing, f"{INDEX} does not list it"),
    ],
)
def test_showing_a_damaged_checkpoint_fails_and_showing_its_family_tells(
    change: Callable[[Path], None], said: str, packaged: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(packaged)
    state = run_json(capsys, "show", BASE)["embedded"]
    assert state["state"].startswith("damaged: ") and said in state["state"]
    assert (f"embedded:{BASE}", None, None) == (state["model_path"], state["weights_kind"], state["folder"])
    assert 0 == main(["models", "show", BASE])
    assert f"offline       embedded:{BASE} ({state['state']})\n" in capsys.readouterr().out
    for flags in ([], ["--json"]):
        assert 1 == main(["models", "show", f"embedded:{BASE}", *flags])
        shown = capsys.readouterr()
        assert "" == shown.out and said in shown.err and "next: Install fuseproof again" in shown.err


def test_parts_are_damaged_with_what_they_share_until_they_are_cached(
    packaged: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = MappingProxyType({BASE: RECIPE, PART: RECIPE})
    for module in (embedded, model_cache):
        monkeypatch.setattr(module, "RECIPES", recipes)
    assert "packaged, put together on first use" == run_json(capsys, "show", PART)["embedded"]["state"]
    lose_a_file(packaged)
    assert run_json(capsys, "show", PART)["embedded"]["state"].startswith("damaged: ")
    assert 1 == main(["models", "show", f"embedded:{PART}"])
    assert f"{WEIGHTS}, a part of embedded:{BASE}, is missing" in capsys.readouterr().err


def test_a_whole_embedded_checkpoint_has_the_line_of_its_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "embedded_models"
    folder = write_fake_checkpoint(models / BASE)
    (folder / MARKER).write_text(Marker(weights="trained").to_json())
    index_packaged(models)
    monkeypatch.setattr(embedded, "PACKAGED_MODELS", models)
    outputs = []
    for name in (BASE, f"embedded:{BASE}"):
        assert 0 == main(["models", "show", name])
        outputs.append(capsys.readouterr().out)
    assert all(f"offline       embedded:{BASE} (packaged), trained weights" in output for output in outputs)
    assert outputs[1].startswith(outputs[0]) and f"checkpoint {folder}" in outputs[1]


def test_a_checkpoint_says_what_its_weights_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_fake_checkpoint(tmp_path / "model")
    assert "given" == run_json(capsys, "show", str(folder))["checkpoint"]["weights_kind"]
    (folder / MARKER).write_text(Marker(weights="trained").to_json())
    assert 0 == main(["models", "show", str(folder)])
    assert "  weights       trained, " in capsys.readouterr().out
