"""Editing checkpoints: which family a folder is, what its marker may say, and the small ones that are built offline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoint_marker import MARKER, SCHEMA, Marker
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.edit_guards import count_tokens, refuse_prompts_before_loading
from fuseproof.pipelines.families import FAMILIES, LONGCAT_IMAGE, LONGCAT_IMAGE_EDIT, LONGCAT_IMAGE_EDIT_TURBO
from fuseproof.pipelines.loading import load_pipeline, load_tokenizer
from fuseproof.pipelines.model_cache import RECIPES
from fuseproof.pipelines.vision_processor import released_text_processor
from tests.pipelines.fake_checkpoints import MODEL_INDEX, write_fake_checkpoint, write_json
from tests.pipelines.input_pictures import picture
from tests.pipelines.test_parity_edit import DIFFUSERS, edit_request, run

CPU = torch.device("cpu")
PROCESSOR = ["transformers", "Qwen2VLProcessor"]


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """An editing folder that is right in everything that is checked before loading."""
    folder = write_fake_checkpoint(tmp_path / "fake")
    write_json(
        folder / "model_index.json",
        MODEL_INDEX | {"_class_name": "LongCatImageEditPipeline", "text_processor": PROCESSOR},
    )
    write_json(folder / "text_processor" / "preprocessor_config.json", {"patch_size": 14})
    return folder


def mark(folder: Path, **values: Any) -> None:
    write_json(folder / MARKER, {"schema": SCHEMA, **values})


# Which family


def test_a_folder_without_a_word_of_its_own_is_the_first_family_of_its_class(fake: Path) -> None:
    checkpoint = check_checkpoint(fake)
    assert (LONGCAT_IMAGE_EDIT, 1024 * 1024) == (checkpoint.family, checkpoint.canvas_pixels)


@pytest.mark.parametrize("family", [LONGCAT_IMAGE_EDIT, LONGCAT_IMAGE_EDIT_TURBO], ids=lambda family: family.name)
def test_the_request_or_the_marker_names_the_family(fake: Path, family: Any) -> None:
    assert family is check_checkpoint(fake, family).family
    mark(fake, family=family.name, canvas_pixels=6400)
    checkpoint = check_checkpoint(fake)
    assert (family, 6400) == (checkpoint.family, checkpoint.canvas_pixels)
    assert family is check_checkpoint(fake, family).family


def test_a_request_and_a_marker_may_not_contradict_each_other(fake: Path) -> None:
    mark(fake, family="longcat-image-edit")
    with pytest.raises(UsageError, match="has family 'longcat-image-edit'; longcat-image-edit-turbo was expected"):
        check_checkpoint(fake, LONGCAT_IMAGE_EDIT_TURBO)


def test_another_pipeline_class_than_the_request_names_is_refused(fake: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a LongCatImageEditPipeline, .*; longcat-image was expected"):
        check_checkpoint(fake, LONGCAT_IMAGE)
    other = write_fake_checkpoint(tmp_path / "other")
    with pytest.raises(UsageError, match="which is longcat-image; longcat-image-edit-turbo was expected"):
        check_checkpoint(other, LONGCAT_IMAGE_EDIT_TURBO)
    assert check_checkpoint(other).canvas_pixels is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param({}, "is an empty object", id="empty"),
        pytest.param({"family": "longcat-image-edit"}, 'has schema null; "fuseproof.checkpoint/1"', id="no-schema"),
        pytest.param({"schema": SCHEMA, "familly": "x"}, "a key 'familly'; it may hold schema, family", id="typo"),
        pytest.param({"schema": SCHEMA, "family": "flux"}, "family 'flux', but LongCatImageEditPipeline", id="unknown"),
        pytest.param({"schema": SCHEMA, "family": "longcat-image"}, "family 'longcat-image', but", id="other-class"),
        pytest.param({"schema": SCHEMA, "family": 3}, "has family 3", id="family-a-number"),
        pytest.param(
            {"schema": SCHEMA, "canvas_pixels": 100}, "canvas_pixels 100; a whole number from 4096", id="tiny"
        ),
        pytest.param({"schema": SCHEMA, "weights": "good"}, 'weights "good"; random or trained', id="weights"),
        pytest.param({"schema": SCHEMA, "canvas_pixels": True}, "canvas_pixels true", id="canvas-a-truth"),
        pytest.param({"schema": SCHEMA, "canvas_pixels": "1e6"}, 'canvas_pixels "1e6"', id="canvas-a-text"),
    ],
)
def test_a_wrong_marker_names_the_file_and_the_key(fake: Path, values: dict[str, Any], said: str) -> None:
    write_json(fake / MARKER, values)
    with pytest.raises(FuseproofError) as caught:
        check_checkpoint(fake)
    assert MARKER in caught.value.message
    assert said in caught.value.message


@pytest.mark.parametrize("content", [b"", b"<html>", b"{"], ids=["empty", "html", "cut"])
def test_a_marker_that_is_no_json_is_refused(fake: Path, content: bytes) -> None:
    (fake / MARKER).write_bytes(content)
    with pytest.raises(FuseproofError, match=MARKER):
        check_checkpoint(fake)


def test_the_image_processor_must_be_there(fake: Path) -> None:
    (fake / "text_processor" / "preprocessor_config.json").unlink()
    with pytest.raises(FuseproofError, match=r"text_processor/preprocessor_config\.json or .* is missing"):
        check_checkpoint(fake)
    write_json(fake / "text_processor" / "processor_config.json", {"image_processor": {"patch_size": 14}})
    check_checkpoint(fake)


def test_an_empty_processor_slot_is_refused(fake: Path) -> None:
    index = json.loads((fake / "model_index.json").read_text())
    write_json(fake / "model_index.json", index | {"text_processor": [None, None]})
    with pytest.raises(FuseproofError, match=r"has \[null, null\] for 'text_processor'"):
        check_checkpoint(fake)


# The small checkpoints


def test_the_folder_has_the_published_layout_and_a_marker(tiny_edit_folder: Path) -> None:
    files = sorted(path.relative_to(tiny_edit_folder).as_posix() for path in tiny_edit_folder.rglob("*.*"))
    assert {"fuseproof.json", "model_index.json", "text_processor/preprocessor_config.json"} <= set(files)
    assert ["text_processor/preprocessor_config.json"] == [name for name in files if name.startswith("text_processor")]
    index = json.loads((tiny_edit_folder / "model_index.json").read_text())
    assert PROCESSOR == index["text_processor"]
    assert "LongCatImageEditPipeline" == index["_class_name"]
    assert Marker("longcat-image-edit", 256 * 256, "random").to_json() == (tiny_edit_folder / MARKER).read_text()


def test_the_two_small_checkpoints_differ_in_their_marker_alone(tiny_edit_folder: Path, tmp_path: Path) -> None:
    RECIPES["longcat-image-edit-turbo"].build(tmp_path / "turbo")
    contents = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tiny_edit_folder, tmp_path / "turbo")
    ]
    assert contents[0].keys() == contents[1].keys()
    assert [MARKER] == [str(name) for name in contents[0] if contents[0][name] != contents[1][name]]
    checkpoint = check_checkpoint(tmp_path / "turbo")
    assert (LONGCAT_IMAGE_EDIT_TURBO, 256 * 256) == (checkpoint.family, checkpoint.canvas_pixels)


@pytest.mark.parametrize("family", [family for family in FAMILIES.values() if family.takes_image], ids=lambda f: f.name)
def test_an_embedded_canvas_is_what_the_family_promises_before_it_is_built(family: Any) -> None:
    from fuseproof.pipelines.tiny.longcat_image_edit import CANVAS_PIXELS

    assert CANVAS_PIXELS == family.embedded_width * family.embedded_height
    assert family.name in RECIPES


# Loading


@pytest.fixture(scope="module")
def pipe(tiny_edit_folder: Path) -> Any:
    return load_pipeline(check_checkpoint(tiny_edit_folder), dtype=torch.float32, device=CPU)


def test_the_pipeline_has_a_processor_without_torchvision(pipe: Any) -> None:
    from transformers import Qwen2VLImageProcessorPil, Qwen2VLProcessor

    assert "LongCatImageEditPipeline" == type(pipe).__name__
    assert isinstance(pipe.text_processor, Qwen2VLProcessor)
    assert type(pipe.image_processor_vl) is Qwen2VLImageProcessorPil
    assert pipe.image_processor_vl is pipe.text_processor.image_processor
    assert pipe.tokenizer is pipe.text_processor.tokenizer


def test_the_checkpoint_configures_the_image_processor(tiny_edit_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_edit_folder, tmp_path / "model"))
    path = folder / "text_processor" / "preprocessor_config.json"
    config = json.loads(path.read_text())
    write_json(path, config | {"image_mean": [0.5, 0.5, 0.5]})
    changed = load_pipeline(check_checkpoint(folder), dtype=torch.float32, device=CPU)
    assert [0.5, 0.5, 0.5] == list(changed.image_processor_vl.image_mean)


def test_a_config_as_it_was_published_sets_the_same_limits(tiny_edit_folder: Path, tmp_path: Path) -> None:
    """Older files name the limits in pixels, and the class of another backend."""
    from fuseproof.pipelines.vision_processor import load_text_processor

    published = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "min_pixels": 3136,
        "max_pixels": 12845056,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
    }
    write_json(tmp_path / "preprocessor_config.json", published)
    tokenizer = load_tokenizer(check_checkpoint(tiny_edit_folder))
    processors = [load_text_processor(tmp_path, tokenizer), released_text_processor(tokenizer)]
    seen = [processor.image_processor(images=picture(632, 424), return_tensors="pt") for processor in processors]
    assert torch.equal(seen[0]["pixel_values"], seen[1]["pixel_values"])


def test_the_pipeline_is_the_one_that_diffusers_loads(
    pipe: Any, tiny_edit_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the reference backend is its plain call; only the canvas is small here, for both."""
    from diffusers import DiffusionPipeline
    from diffusers.pipelines.longcat_image import pipeline_longcat_image_edit

    request = edit_request(num_inference_steps=1)
    theirs = DiffusionPipeline.from_pretrained(
        tiny_edit_folder, dtype=torch.float32, text_processor=pipe.text_processor, local_files_only=True
    )
    theirs.set_progress_bar_config(disable=True)
    eager = pipeline_longcat_image_edit.calculate_dimensions
    with monkeypatch.context() as patch:
        patch.setattr(
            pipeline_longcat_image_edit, "calculate_dimensions", lambda _, ratio: eager(request.canvas_pixels, ratio)
        )
        image = theirs(
            image=picture(),
            prompt=request.prompt,
            num_inference_steps=1,
            generator=torch.Generator("cpu").manual_seed(request.seed),
            output_type="np",
        ).images[0]
    ours, _ = run(pipe, DIFFUSERS, request)
    assert image.tobytes() == ours.image.tobytes()


def test_a_broken_processor_config_is_a_sentence_that_names_it(tiny_edit_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_edit_folder, tmp_path / "model"))
    (folder / "text_processor" / "preprocessor_config.json").write_text("[1]")
    with pytest.raises(FuseproofError, match=r"The text_processor of .* cannot be loaded"):
        load_pipeline(check_checkpoint(folder), dtype=torch.float32, device=CPU)


def test_the_released_processor_only_rounds_a_half_canvas_to_patches(pipe: Any) -> None:
    """632 x 424 is half of 1264 x 848: 46 x 30 patches, 345 merged ones, 347 tokens with the marks around them."""
    processor = released_text_processor(pipe.tokenizer).image_processor
    inputs = processor(images=picture(632, 424), return_tensors="pt")
    assert [[1, 30, 46]] == inputs["image_grid_thw"].tolist()
    assert 345 == int(inputs["image_grid_thw"].prod()) // processor.merge_size**2
    assert any("347 for a canvas of 1264x848" in note for note in LONGCAT_IMAGE_EDIT.notes)


def test_the_processor_that_was_saved_is_the_released_one(pipe: Any) -> None:
    released = released_text_processor(pipe.tokenizer).image_processor
    assert released.to_dict() == pipe.image_processor_vl.to_dict()


# Prompts


@pytest.mark.parametrize(
    ("expected", "prompt"),
    [(0, ""), (3, "cat"), (3, "\u732b"), (5, "'cat'"), (11, "it's a 'sign'"[:11])],
    ids=["empty", "letters", "three-bytes", "quoted", "contraction"],
)
def test_tokens_are_counted_as_the_pipeline_makes_them(pipe: Any, expected: int, prompt: str) -> None:
    assert expected == count_tokens(pipe.tokenizer, prompt)


def test_long_prompts_are_refused_before_weights_are_read(tiny_edit_folder: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_edit_folder, tmp_path / "model"))
    checkpoint = check_checkpoint(folder)
    for component in ("transformer", "vae", "text_encoder"):
        shutil.rmtree(folder / component)
    refuse_prompts_before_loading(checkpoint, [edit_request(), edit_request(prompt="\u732b" * 170)])
    with pytest.raises(UsageError, match="The prompt has 600 tokens"):
        refuse_prompts_before_loading(checkpoint, [edit_request(), edit_request(prompt="x" * 600)])
    with pytest.raises(UsageError, match="The negative prompt has 513 tokens"):
        refuse_prompts_before_loading(checkpoint, [edit_request(negative_prompt="\u732b" * 171)])


def test_short_prompts_load_no_tokenizer(tiny_edit_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuseproof.pipelines import loading

    monkeypatch.setattr(loading, "load_tokenizer", lambda _: pytest.fail("loaded"))
    refuse_prompts_before_loading(check_checkpoint(tiny_edit_folder), [edit_request(prompt="x" * 512)])


def test_the_tokenizer_can_be_loaded_alone(tiny_edit_folder: Path) -> None:
    assert "Qwen2Tokenizer" in type(load_tokenizer(check_checkpoint(tiny_edit_folder))).__name__
