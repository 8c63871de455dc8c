from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.families import FAMILIES
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.own_classes import library_class
from tests.pipelines.fake_checkpoints import WEIGHTS

CPU = torch.device("cpu")
MODELS = tuple(WEIGHTS)
TENSORS = {
    "transformer": "transformer_blocks.1.attn.to_q.weight",
    "vae": "decoder.conv_in.weight",
    "text_encoder": "model.layers.1.mlp.up_proj.weight",
}
LM_HEAD = "lm_head.weight"

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tiny_longcat_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint that a test may spoil."""
    return Path(shutil.copytree(tiny_longcat_folder, tmp_path / "model"))


def change_tensors(folder: Path, component: str, change: Callable[[Tensors], object]) -> None:
    path = folder / component / WEIGHTS[component]
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def change_config(folder: Path, component: str, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / component / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return load_pipeline(check_checkpoint(folder), dtype=dtype, device=CPU)


def tie_embeddings(config: dict[str, Any]) -> None:
    config["tie_word_embeddings"] = True
    config["text_config"]["tie_word_embeddings"] = True


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_parameter_has_the_dtype_asked_for(dtype: torch.dtype, tiny_longcat_folder: Path) -> None:
    pipeline = load(tiny_longcat_folder, dtype)
    models = [pipeline.transformer, pipeline.vae, pipeline.text_encoder]
    assert type(pipeline).__name__ == "LongCatImagePipeline"
    assert {parameter.dtype for model in models for parameter in model.parameters()} == {dtype}
    assert {model.training for model in models} == {False}
    assert pipeline.text_processor is None


@pytest.mark.parametrize("component", MODELS)
def test_a_file_in_another_dtype_is_converted_whole(component: str, folder: Path) -> None:
    change_tensors(folder, component, lambda tensors: tensors.update({n: t.bfloat16() for n, t in tensors.items()}))
    model = getattr(load(folder), component)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_dtype_by_name_is_refused(tiny_longcat_folder: Path) -> None:
    checkpoint = check_checkpoint(tiny_longcat_folder)
    with pytest.raises(TypeError, match="bfloat16"):
        load_pipeline(checkpoint, dtype="bfloat16", device=CPU)  # type: ignore[arg-type]


FAULTS: dict[str, tuple[Callable[[str], Callable[[Tensors], object]], str]] = {
    "missing": (lambda name: lambda tensors: tensors.pop(name), "lacks 1 tensor"),
    "unexpected": (
        lambda name: lambda tensors: tensors.update(bogus=torch.zeros(2)),
        "has 1 unexpected tensor (bogus)",
    ),
    "misshapen": (lambda name: lambda tensors: tensors.update({name: torch.zeros(7, 3)}), "has 1 misshapen tensor"),
}


@pytest.mark.parametrize("component", MODELS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_tensor_at_fault_is_an_error_that_names_it(fault: str, component: str, folder: Path) -> None:
    change, expected = FAULTS[fault]
    change_tensors(folder, component, change(TENSORS[component]))
    with pytest.raises(FuseproofError) as caught:
        load(folder)
    assert f"The {component} of {folder} does not fit its config: it {expected}" in caught.value.message
    if fault != "unexpected":
        # transformers renames the layers of the text encoder while loading; the end of the name stays.
        assert TENSORS[component].removeprefix("model.") in caught.value.message


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    change_config(folder, "transformer", lambda config: config.update(num_single_layers=5))
    with pytest.raises(FuseproofError, match=r"The transformer .*lacks \d\d tensors .* more\)"):
        load(folder)


def test_a_config_that_cannot_be_built_names_the_component(folder: Path) -> None:
    change_config(folder, "transformer", lambda config: config.update(num_layers="two"))
    with pytest.raises(FuseproofError, match=r"^The transformer of .* cannot be loaded"):
        load(folder)


def test_a_tied_output_layer_may_be_absent(folder: Path) -> None:
    change_config(folder, "text_encoder", tie_embeddings)
    change_tensors(folder, "text_encoder", lambda tensors: tensors.pop(LM_HEAD))
    model = load(folder).text_encoder
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_an_output_layer_that_is_not_tied_must_be_there(folder: Path) -> None:
    change_tensors(folder, "text_encoder", lambda tensors: tensors.pop(LM_HEAD))
    with pytest.raises(FuseproofError, match=r"The text_encoder .*lacks 1 tensor \(lm_head\.weight\)"):
        load(folder)


def test_a_tied_model_without_its_embeddings_is_refused(folder: Path) -> None:
    change_config(folder, "text_encoder", tie_embeddings)
    change_tensors(
        folder, "text_encoder", lambda tensors: [tensors.pop(LM_HEAD), tensors.pop("model.embed_tokens.weight")]
    )
    with pytest.raises(FuseproofError, match=r"The text_encoder .*lacks 2 tensors"):
        load(folder)


def test_loading_opens_no_connection(tiny_longcat_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*positional: object, **named: object) -> NoReturn:
        raise AssertionError("loading tried to open a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load(tiny_longcat_folder)


def test_the_pipeline_is_the_one_that_diffusers_loads(tiny_longcat_folder: Path) -> None:
    from diffusers import DiffusionPipeline

    ours = load(tiny_longcat_folder)
    theirs = DiffusionPipeline.from_pretrained(
        tiny_longcat_folder, dtype=torch.float32, text_processor=None, local_files_only=True
    )
    theirs.set_progress_bar_config(disable=True)
    assert type(ours) is type(theirs)
    assert torch.equal(latents(theirs), latents(ours))


def latents(pipeline: Any) -> torch.Tensor:
    return pipeline(
        'a sign that says "hi"',
        height=64,
        width=64,
        num_inference_steps=2,
        generator=torch.Generator("cpu").manual_seed(1),
        enable_prompt_rewrite=False,
        output_type="latent",
    ).images


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_installed_libraries_have_every_class_of_the_family(family: Family) -> None:
    import diffusers

    assert family.is_in_diffusers == hasattr(diffusers, family.pipeline_class)
    assert family.pipeline_class == library_class("diffusers", family.pipeline_class, "pipeline").__name__
    for name, component in family.components.items():
        for class_name in component.classes:
            assert library_class(component.library, class_name, name) is not None


def test_a_class_that_nobody_has_is_named_with_its_component() -> None:
    with pytest.raises(FuseproofError, match="installed diffusers has no class Unet9, which the transformer needs"):
        library_class("diffusers", "Unet9", "transformer")
