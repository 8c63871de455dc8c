"""LongLive 2's schedule, lengths and noise, without a model; and the small checkpoint and weights by their names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.longlive2_model import LongLive2Transformer3DModel
from fuseproof.pipelines.longlive2_steps import ChunkSteps, behind_image, draw_noise, flow_scheduler, frames_made
from fuseproof.pipelines.longlive2_weights import MODULES, MODULES_OF_A_BLOCK, diffusers_name, has_published_names
from fuseproof.pipelines.tiny import longlive2

CPU = torch.device("cpu")
WEIGHTS = "diffusion_pytorch_model.safetensors"
LOADING = {"dtype": torch.bfloat16, "output_loading_info": True, "local_files_only": True}


@pytest.mark.parametrize(
    ("asked", "made"), [(1, 29), (29, 29), (60, 29), (61, 61), (62, 61), (65, 61), (92, 61), (93, 93), (253, 253)]
)
def test_a_clip_has_whole_chunks(asked: int, made: int) -> None:
    assert made == frames_made(asked)


def test_timesteps_are_those_of_the_distilled_list_under_the_shift() -> None:
    steps = ChunkSteps(4, CPU, batch=2)
    told = [timestep.tolist() for timestep in steps.timesteps]
    assert [[[t] * 8] * 2 for t in (999.0, 937.0, 833.0, 624.0)] == told
    assert [[[0.0, *[t] * 7]] * 2 for t in (999.0, 937.0, 833.0, 624.0)] == [
        timestep.tolist() for timestep in steps.timesteps_behind_image
    ]
    assert [[0.0] * 8] * 2 == steps.clean.tolist()
    shifted = [5 * t / (1 + 4 * t / 1000) for t in (1000, 750, 500, 250)]
    assert shifted == pytest.approx([1000 * sigma for sigma in flow_scheduler(4, CPU).sigmas[:4].tolist()], abs=0.6)


def test_sigmas_are_the_public_schedulers() -> None:
    """Evenly from the largest of a thousand training sigmas down to 0, which is left out; then shifted by 5."""
    training = torch.from_numpy(1.0 - np.linspace(1, 1 / 1000, 1000)[::-1]).float()
    even = np.linspace(training[0].item(), training[-1].item(), 5)[:-1]
    expected = np.concatenate([5 * even / (1 + 4 * even), [0]]).astype(np.float32)
    assert expected.tolist() == flow_scheduler(4, CPU).sigmas.tolist()


def test_noise_is_drawn_frame_by_frame() -> None:
    drawn = torch.randn(1, 8, 3, 4, 2, generator=torch.Generator().manual_seed(7))
    noise = draw_noise((1, 3, 8, 4, 2), torch.Generator().manual_seed(7), CPU)
    assert torch.equal(drawn.permute(0, 2, 1, 3, 4), noise)
    assert noise.is_contiguous()
    assert torch.float32 == noise.dtype


def test_an_image_stands_before_the_other_frames_bit_for_bit() -> None:
    latents, image = torch.randn(1, 3, 8, 2, 2), torch.full((1, 3, 1, 2, 2), -0.0)
    laid = behind_image(image, latents)
    assert torch.equal(image.view(torch.int32), laid[:, :, :1].contiguous().view(torch.int32))
    assert torch.equal(latents[:, :, 1:], laid[:, :, 1:])
    assert latents is behind_image(None, latents)


def test_restarted_steps_forget_what_they_saw() -> None:
    steps = ChunkSteps(4, CPU)
    latents, velocities = torch.randn(1, 2, 8, 2, 2), torch.randn(4, 1, 2, 8, 2, 2)

    def run() -> torch.Tensor:
        advance, moved = steps.unipc(), latents
        for velocity in velocities:
            moved = advance(velocity, moved)
        return moved

    assert torch.equal(run(), run())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The transformer of the small checkpoint. Read only."""
    whole = tmp_path_factory.mktemp("longlive2")
    longlive2.build(whole)
    return whole / "transformer"


def published_name(name: str) -> str:
    """The inverse of what is tested, by its tables."""
    module, _, parameter = name.rpartition(".")
    parameter = {"scale_shift_table": "modulation"}.get(parameter, parameter)
    if not name.startswith("blocks."):
        inverse = {ours: theirs for theirs, ours in MODULES.items()}
        return f"model.{inverse.get(module, module)}.{parameter}"
    _, number, inside = (*module.split(".", 2), "")[:3]
    inverse = {ours: theirs for theirs, ours in MODULES_OF_A_BLOCK.items()}
    inside = f"{inverse.get(inside, inside)}." if inside else ""
    return f"model.blocks.{number}.{inside}{parameter}"


@pytest.mark.parametrize(
    ("published", "expected"),
    [
        ("model.patch_embedding.weight", "patch_embedding.weight"),
        ("model.text_embedding.2.bias", "condition_embedder.text_embedder.linear_2.bias"),
        ("model.time_embedding.0.weight", "condition_embedder.time_embedder.linear_1.weight"),
        ("model.time_projection.1.weight", "condition_embedder.time_proj.weight"),
        ("model.blocks.29.modulation", "blocks.29.scale_shift_table"),
        ("model.blocks.3.self_attn.norm_q.weight", "blocks.3.attn1.norm_q.weight"),
        ("model.blocks.3.self_attn.o.bias", "blocks.3.attn1.to_out.0.bias"),
        ("model.blocks.3.cross_attn.k.weight", "blocks.3.attn2.to_k.weight"),
        ("model.blocks.3.norm3.weight", "blocks.3.norm2.weight"),
        ("model.blocks.3.ffn.0.weight", "blocks.3.ffn.net.0.proj.weight"),
        ("model.blocks.3.ffn.2.bias", "blocks.3.ffn.net.2.bias"),
        ("model.head.modulation", "scale_shift_table"),
        ("model.head.head.weight", "proj_out.weight"),
    ],
)
def test_published_names_are_diffusers_names(published: str, expected: str) -> None:
    assert expected == diffusers_name(published)
    assert expected == diffusers_name(published.removeprefix("model."))
    assert published == published_name(expected)


@pytest.mark.parametrize("files", [1, 3])
def test_weights_load_under_their_published_names(folder: Path, tmp_path: Path, files: int) -> None:
    tensors = load_file(folder / WEIGHTS)
    write_published(folder, tmp_path, tensors, files)
    expected, plain_report = LongLive2Transformer3DModel.from_pretrained(folder, **LOADING)
    loaded, report = LongLive2Transformer3DModel.from_pretrained(tmp_path, **LOADING)
    assert {name: [] for name in plain_report} == report == {name: list(found) for name, found in plain_report.items()}
    parameters = dict(loaded.named_parameters())
    for name, parameter in expected.named_parameters():
        assert parameter.dtype == parameters[name].dtype
        assert torch.equal(parameter, parameters[name])
    assert torch.equal(expected.rope.freqs_cos, loaded.rope.freqs_cos)
    assert not loaded.training


def test_published_weights_that_do_not_fit_are_reported(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    lost, misshapen = "blocks.1.attn2.to_k.bias", "blocks.0.norm2.bias"
    del tensors[lost]
    tensors[misshapen] = torch.zeros(3)
    tensors["blocks.0.attn3.to_q.bias"] = torch.zeros(3)
    write_published(folder, tmp_path, tensors, 1)
    _, report = LongLive2Transformer3DModel.from_pretrained(tmp_path, **LOADING)
    assert sorted((lost, misshapen)) == report["missing_keys"]
    assert ["model.blocks.0.attn3.to_q.bias"] == report["unexpected_keys"]
    assert [(misshapen, torch.Size([3]), torch.Size([256]))] == report["mismatched_keys"]


@pytest.mark.parametrize("stray", ["aa_old.safetensors", "zz_old.safetensors"])
@pytest.mark.parametrize("is_published", [True, False], ids=["published-names", "own-names"])
def test_a_file_that_lies_beside_the_weights_changes_none(
    folder: Path, tmp_path: Path, stray: str, is_published: bool
) -> None:
    tensors = load_file(folder / WEIGHTS)
    write_published(folder, tmp_path, tensors, 1)
    if not is_published:
        save_file(tensors, tmp_path / WEIGHTS)
    name = "blocks.0.attn1.to_q.weight"
    save_file({published_name(name): torch.zeros_like(tensors[name])}, tmp_path / stray)
    loaded, report = LongLive2Transformer3DModel.from_pretrained(tmp_path, **LOADING)
    assert [] == [found for found in report.values() if found]
    assert torch.equal(tensors[name].bfloat16(), loaded.get_parameter(name))
    assert is_published == has_published_names(tmp_path)


def test_a_tensor_under_both_of_its_names_is_refused(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = "blocks.0.attn1.to_q.weight"
    write_published(folder, tmp_path, tensors, 1)
    both = load_file(tmp_path / WEIGHTS) | {name: torch.zeros_like(tensors[name])}
    save_file(both, tmp_path / WEIGHTS)
    with pytest.raises(FuseproofError, match=r"hold blocks\.0\.attn1\.to_q\.weight twice, as .* and as "):
        LongLive2Transformer3DModel.from_pretrained(tmp_path, **LOADING)


def write_published(folder: Path, target: Path, tensors: dict[str, Any], files: int) -> None:
    named = [(published_name(name), tensor) for name, tensor in tensors.items()]
    if files == 1:
        save_file(dict(named), target / WEIGHTS)
    else:
        shards = {
            f"diffusion_pytorch_model-{number:05}.safetensors": dict(named[number::files]) for number in range(files)
        }
        for shard, held in shards.items():
            save_file(held, target / shard)
        weight_map = {name: shard for shard, held in shards.items() for name in held}
        (target / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    (target / "config.json").write_text((folder / "config.json").read_text(encoding="utf-8"), encoding="utf-8")


def test_the_small_checkpoint_is_the_same_bytes_each_time_and_leaves_the_generator_alone(
    folder: Path, tmp_path: Path
) -> None:
    state = torch.random.get_rng_state()
    longlive2.build(tmp_path)
    assert torch.equal(state, torch.random.get_rng_state())
    for path in sorted(folder.parent.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / path.relative_to(folder.parent)).read_bytes(), path.name
    assert 20_000_000 > sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
