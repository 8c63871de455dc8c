"""The small ERNIE-Image checkpoints: real layout, the same bytes each time, pictures that depend on the request."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.families import ERNIE_IMAGE, ERNIE_IMAGE_TURBO
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.requests import GenerationRequest, validate_request
from fuseproof.pipelines.tiny import ernie_image, ernie_image_turbo
from tests.pipelines.test_parity_ernie import BASE

FILES = [
    "fuseproof.json",
    "model_index.json",
    "pe/config.json",
    "pe/generation_config.json",
    "pe/model.safetensors",
    "pe_tokenizer/chat_template.jinja",
    "pe_tokenizer/tokenizer.json",
    "pe_tokenizer/tokenizer_config.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "text_encoder/model.safetensors",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
    "transformer/config.json",
    "transformer/diffusion_pytorch_model.safetensors",
    "vae/config.json",
    "vae/diffusion_pytorch_model.safetensors",
]


@pytest.fixture(scope="module")
def turbo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("turbo")
    state = torch.random.get_rng_state()
    ernie_image_turbo.build(folder)
    assert torch.equal(state, torch.random.get_rng_state())
    return folder


def test_the_folder_has_the_real_layout(tiny_ernie_folder: Path) -> None:
    found = sorted(path.relative_to(tiny_ernie_folder).as_posix() for path in tiny_ernie_folder.rglob("*.*"))
    assert FILES == found
    index = json.loads((tiny_ernie_folder / "model_index.json").read_text())
    assert ["transformers", "TokenizersBackend"] == index["tokenizer"] == index["pe_tokenizer"]


def test_the_geometry_is_narrow_but_real(tiny_ernie_folder: Path) -> None:
    checkpoint = check_checkpoint(tiny_ernie_folder)
    transformer, vae, scheduler = (checkpoint.config(name) for name in ("transformer", "vae", "scheduler"))
    assert (2, 256, [32, 48, 48]) == tuple(
        transformer[key] for key in ("num_attention_heads", "hidden_size", "rope_axes_dim")
    )
    assert (128, 128, 32, 4) == (
        transformer["in_channels"], transformer["out_channels"], vae["latent_channels"], len(vae["block_out_channels"])
    )  # fmt: skip
    assert (3.0, False) == (scheduler["shift"], scheduler["use_dynamic_shifting"])
    assert checkpoint.weight_bytes < 20e6


@pytest.mark.parametrize("family", [ERNIE_IMAGE, ERNIE_IMAGE_TURBO], ids=lambda family: family.name)
def test_the_folder_says_which_of_the_two_it_is(family: Family, tiny_ernie_folder: Path, turbo_folder: Path) -> None:
    folder = {ERNIE_IMAGE.name: tiny_ernie_folder, ERNIE_IMAGE_TURBO.name: turbo_folder}[family.name]
    assert family is check_checkpoint(folder).family
    with pytest.raises(UsageError, match="was expected"):
        check_checkpoint(folder, ERNIE_IMAGE_TURBO if family is ERNIE_IMAGE else ERNIE_IMAGE)


def test_both_hold_the_same_weights(tiny_ernie_folder: Path, turbo_folder: Path, tmp_path: Path) -> None:
    ernie_image.build(tmp_path)
    assert folder_sha256(tiny_ernie_folder) == folder_sha256(tmp_path)
    for component in ("transformer", "text_encoder", "vae", "pe"):
        assert folder_sha256(tmp_path / component) == folder_sha256(turbo_folder / component)


def test_no_weight_is_left_at_zero(tiny_ernie_folder: Path) -> None:
    pipe = load_pipeline(
        check_checkpoint(tiny_ernie_folder),
        dtype=torch.float32,
        device=torch.device("cpu"),
        with_prompt_enhancer=True,
    )
    models = {name: getattr(pipe, name) for name in ("transformer", "text_encoder", "vae", "pe")}
    empty = [
        f"{name}.{parameter_name}"
        for name, model in models.items()
        for parameter_name, parameter in model.named_parameters()
        if not bool(parameter.any())
    ]
    assert [] == empty, "the class starts its modulation and output at zero"
    assert float(pipe.vae.bn.running_mean.abs().min()) > 0
    assert float(pipe.vae.bn.running_var.min()) > 1


@pytest.mark.parametrize(
    ("expected", "emptied"), [("no pe and no pe_tokenizer", ("pe", "pe_tokenizer")), ("it has no pe.", ("pe",))]
)
def test_a_checkpoint_without_its_enhancer_refuses_it_in_one_sentence(
    expected: str, emptied: tuple[str, ...], turbo_folder: Path, tmp_path: Path
) -> None:
    for path in turbo_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    index = json.loads((turbo_folder / "model_index.json").read_text()) | {name: [None, None] for name in emptied}
    (tmp_path / "model_index.json").unlink()
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    checkpoint = check_checkpoint(tmp_path)
    request = GenerationRequest(**{**vars(BASE), "use_pe": True})
    validate_request(request, ERNIE_IMAGE)
    with pytest.raises(UsageError, match=expected):
        validate_request(request, ERNIE_IMAGE, checkpoint)
    load_pipeline(checkpoint, dtype=torch.float32, device=torch.device("cpu"))


def test_the_batch_norms_counter_is_the_one_integer_a_checkpoint_may_hold(turbo_folder: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    for path in turbo_folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "vae").unlink()
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "config.json").symlink_to(turbo_folder / "vae" / "config.json")
    weights = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(turbo_folder / "vae" / weights.name)
    assert "int64" == tensors["bn.num_batches_tracked"].dtype
    save_file(tensors | {"bn.running_mean": np.zeros(128, np.int64)}, weights)
    with pytest.raises(FuseproofError, match=r"'bn.running_mean' as I64"):
        check_checkpoint(tmp_path)


# What it draws


@pytest.fixture(scope="module")
def pipeline(tiny_ernie_folder: Path) -> Any:
    return load_pipeline(check_checkpoint(tiny_ernie_folder), dtype=torch.float32, device=torch.device("cpu"))


def picture(pipeline: Any, prompt: str = "a red panda", *, scale: float = 4.0, seed: int = 42) -> Any:
    """128x128 pixels after 4 steps, as uint8 [128, 128, 3]."""
    images = pipeline(
        prompt,
        height=128,
        width=128,
        num_inference_steps=4,
        guidance_scale=scale,
        generator=torch.Generator("cpu").manual_seed(seed),
        use_pe=False,
        output_type="np",
    ).images
    return (images[0] * 255).round().astype(np.uint8)


@pytest.fixture(scope="module")
def panda(pipeline: Any) -> Any:
    return picture(pipeline)


@pytest.mark.parametrize(
    ("expected", "change"),
    [(0.5, {"prompt": "a red pandb"}), (0.9, {"seed": 43}), (0.5, {"scale": 1.0}), (0.3, {"scale": 4.05})],
    ids=["prompt", "seed", "guidance", "a little guidance"],
)
def test_the_picture_depends_on_the_request(expected: float, change: dict[str, Any], pipeline: Any, panda: Any) -> None:
    assert expected < np.mean(picture(pipeline, **change) != panda)


def test_the_picture_has_structure(panda: Any) -> None:
    values = panda.astype(np.float64)
    spread = values.std(axis=(0, 1))
    steps_to_neighbour = np.abs(np.diff(values, axis=1)).mean(axis=(0, 1))
    assert np.mean((panda == 0) | (panda == 255)) < 0.15  # hardly clipped
    assert spread.min() > 15  # not flat
    assert (steps_to_neighbour / spread).max() < 0.25  # smooth: white noise has 1.13
