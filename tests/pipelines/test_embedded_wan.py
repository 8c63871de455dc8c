"""The small Wan checkpoints: real layout, the same bytes each time, clips that depend on the request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.content_hash import folder_sha256
from fuseproof.pipelines.families import WAN21_T2V_1_3B, WAN22_TI2V_5B
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.tiny import wan21_t2v_1_3b, wan22_ti2v_5b

FILES = [
    "fuseproof.json",
    "model_index.json",
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
FAMILIES = [WAN22_TI2V_5B, WAN21_T2V_1_3B]


@pytest.fixture
def folder(request: pytest.FixtureRequest, tiny_wan22_folder: Path, tiny_wan21_folder: Path) -> Path:
    """The folder of the family that the test is given."""
    family: Family = request.getfixturevalue("family")
    return tiny_wan22_folder if family is WAN22_TI2V_5B else tiny_wan21_folder


@pytest.fixture
def changed(tiny_wan22_folder: Path, tmp_path: Path) -> Path:
    """A copy of the small Wan 2.2 whose configs may be rewritten; weights are linked."""
    for path in tiny_wan22_folder.rglob("*"):
        target = tmp_path / path.relative_to(tiny_wan22_folder)
        if path.is_dir():
            target.mkdir()
        elif path.suffix == ".json":
            shutil.copy(path, target)
        else:
            target.symlink_to(path)
    return tmp_path


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_folder_has_the_real_layout(family: Family, folder: Path) -> None:
    assert FILES == sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.*"))
    index = json.loads((folder / "model_index.json").read_text())
    assert ["transformers", "T5Tokenizer"] == index["tokenizer"]
    assert [None, None] == index["transformer_2"]
    assert family is check_checkpoint(folder).family
    assert check_checkpoint(folder).weight_bytes < 20e6


@pytest.mark.parametrize(
    ("family", "expected"),
    [(WAN22_TI2V_5B, (48, 48, 48, 16, 5.0)), (WAN21_T2V_1_3B, (16, 16, 16, 8, 3.0))],
    ids=["wan2.2", "wan2.1"],
)
def test_the_geometry_is_narrow_but_real(family: Family, expected: tuple[float, ...], folder: Path) -> None:
    checkpoint = check_checkpoint(folder)
    transformer, vae, scheduler = (checkpoint.config(name) for name in ("transformer", "vae", "scheduler"))
    assert (2, 128, [1, 2, 2]) == tuple(
        transformer[key] for key in ("num_attention_heads", "attention_head_dim", "patch_size")
    )
    assert expected == (
        transformer["in_channels"], vae["z_dim"], len(vae["latents_std"]), vae["scale_factor_spatial"],
        scheduler["flow_shift"],
    )  # fmt: skip


def test_building_again_gives_the_same_bytes_and_leaves_torchs_generator(
    tiny_wan22_folder: Path, tiny_wan21_folder: Path, tmp_path: Path
) -> None:
    state = torch.random.get_rng_state()
    for recipe, folder in ((wan22_ti2v_5b, tiny_wan22_folder), (wan21_t2v_1_3b, tiny_wan21_folder)):
        again = tmp_path / recipe.__name__
        recipe.build(again)
        assert folder_sha256(folder) == folder_sha256(again)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_no_weight_is_left_at_zero_or_one(family: Family, folder: Path) -> None:
    pipe = load_pipeline(check_checkpoint(folder), dtype=torch.float32, device=torch.device("cpu"))
    plain = [
        f"{name}.{parameter_name}"
        for name in ("transformer", "text_encoder", "vae")
        for parameter_name, parameter in getattr(pipe, name).named_parameters()
        if bool((parameter == 0).any()) or bool((parameter == 1).all())
    ]
    assert [] == plain


# Which folders are these families', and which are refused


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        ("wan2.2-ti2v-5b", {"expand_timesteps": True, "boundary_ratio": None}),
        ("wan2.2-ti2v-5b", {"expand_timesteps": True}),
        ("wan2.1-t2v-1.3b", {"expand_timesteps": False}),
        ("wan2.1-t2v-1.3b", {}),
    ],
    ids=str,
)
def test_a_published_folder_says_which_wan_it_is(expected: str, options: dict[str, Any], changed: Path) -> None:
    (changed / "fuseproof.json").unlink()
    index = json.loads((changed / "model_index.json").read_text())
    kept = {name: value for name, value in index.items() if name not in ("expand_timesteps", "boundary_ratio")}
    (changed / "model_index.json").write_text(json.dumps(kept | options))
    assert expected == check_checkpoint(changed).family.name


def test_a_folder_of_two_experts_is_none_of_them(changed: Path) -> None:
    (changed / "fuseproof.json").unlink()
    rewrite(changed / "model_index.json", boundary_ratio=0.875, expand_timesteps=False)
    with pytest.raises(UsageError, match=r"boundary_ratio 0.875.*none of wan2.2-ti2v-5b, wan2.1-t2v-1.3b"):
        check_checkpoint(changed)


def test_a_second_transformer_is_refused(changed: Path) -> None:
    rewrite(changed / "model_index.json", transformer_2=["diffusers", "WanTransformer3DModel"])
    with pytest.raises(FuseproofError, match="'transformer_2' that WanPipeline does not have"):
        check_checkpoint(changed)


@pytest.mark.parametrize(
    ("expected", "component", "changes"),
    [
        ('has prediction_type "epsilon"', "scheduler", {"prediction_type": "epsilon"}),
        ("has use_flow_sigmas false", "scheduler", {"use_flow_sigmas": False}),
        ("has use_dynamic_shifting true", "scheduler", {"use_dynamic_shifting": True}),
        ("has flow_shift 0", "scheduler", {"flow_shift": 0}),
        ("has flow_shift 1e\\+38; a number from 0.01 to 1,000", "scheduler", {"flow_shift": 1e38}),
        ("has flow_shift 1e-300", "scheduler", {"flow_shift": 1e-300}),
        ("has num_train_timesteps 1; 2 or more", "scheduler", {"num_train_timesteps": 1}),
        ("has predict_x0 false; true was", "scheduler", {"predict_x0": False}),
        ("has use_beta_sigmas true", "scheduler", {"use_beta_sigmas": True}),
        ("has use_exponential_sigmas true", "scheduler", {"use_exponential_sigmas": True}),
        ("has solver_p .*; null was", "scheduler", {"solver_p": {"a": 1}}),
        ("has solver_order 0; a whole number from 1 to 3", "scheduler", {"solver_order": 0}),
        ('has final_sigmas_type "x"; "zero" or "sigma_min"', "scheduler", {"final_sigmas_type": "x"}),
        ("has timestep_spacing null", "scheduler", {"timestep_spacing": None}),
        ("has disable_corrector null; a list", "scheduler", {"disable_corrector": None}),
        ('has solver_type "bh1" and final_sigmas_type "zero"', "scheduler", {"solver_type": "bh1"}),
        ("has lower_order_final false", "scheduler", {"lower_order_final": False}),
        ("has scale_factor_spatial 8; its blocks and patches scale by 16", "vae", {"scale_factor_spatial": 8}),
        ("has scale_factor_spatial 0", "vae", {"scale_factor_spatial": 0}),
        ("has scale_factor_spatial 16.0", "vae", {"scale_factor_spatial": 16.0}),
        ("has scale_factor_temporal 2; its blocks and patches scale by 4", "vae", {"scale_factor_temporal": 2}),
        ("has in_channels 12; 3 was expected for patch_size null", "vae", {"patch_size": None}),
        ("has in_channels 12; 48 was expected for patch_size 4", "vae", {"patch_size": 4}),
        ('has patch_size "2"; null or', "vae", {"patch_size": "2"}),
        ("has temperal_downsample .*; true or false for each of its 3", "vae", {"temperal_downsample": [True, True]}),
        ("has dim_mult null", "vae", {"dim_mult": None}),
        ("has patch_size 2; .1, 2, 2. was", "transformer", {"patch_size": 2}),
        ("has latents_mean null", "vae", {"latents_mean": None}),
        ("has latents_std 16 values; a number for each of its 48", "vae", {"latents_std": [1.0] * 16}),
        ("has 0.0 in latents_std", "vae", {"latents_std": [0.0] * 48}),
        ("has in_channels 36, and the VAE has 48", "transformer", {"in_channels": 36}),
        ("has an image_dim", "transformer", {"image_dim": 1280}),
        ("a model of 14B", "transformer", {"num_attention_heads": 40}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_config_that_the_pipeline_takes_for_something_else_is_refused(
    expected: str, component: str, changes: dict[str, Any], changed: Path
) -> None:
    name = "scheduler_config.json" if component == "scheduler" else "config.json"
    rewrite(changed / component / name, **changes)
    with pytest.raises(FuseproofError, match=f"The {component} config of .* {expected}"):
        check_checkpoint(changed)


def test_a_scheduler_of_another_form_that_ends_is_none_of_these(changed: Path) -> None:
    """Slower, or another sampler; but finite, and run on both backends."""
    for changes in (
        {"solver_order": 1, "lower_order_final": False},
        {"solver_type": "bh1", "final_sigmas_type": "sigma_min"},
        {"solver_type": "bh2", "final_sigmas_type": "zero", "lower_order_final": True, "use_karras_sigmas": True},
        {"solver_order": 3, "flow_shift": 17, "disable_corrector": [0], "shift_terminal": 0.1, "thresholding": True},
    ):
        rewrite(changed / "scheduler" / "scheduler_config.json", **changes)
        assert WAN22_TI2V_5B is check_checkpoint(changed).family


def test_a_tensor_that_is_missing_is_named(changed: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = changed / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(weights)
    weights.unlink()
    save_file({name: value for name, value in tensors.items() if name != "proj_out.bias"}, weights)
    with pytest.raises(FuseproofError, match=r"lacks 1 tensor \(proj_out.bias\)"):
        load_pipeline(check_checkpoint(changed), dtype=torch.float32, device=torch.device("cpu"))


# What it makes


@pytest.fixture(scope="module")
def pipeline(tiny_wan22_folder: Path) -> Any:
    return load_pipeline(check_checkpoint(tiny_wan22_folder), dtype=torch.float32, device=torch.device("cpu"))


def clip(pipeline: Any, prompt: str = "a red panda", *, scale: float = 5.0, seed: int = 42) -> Any:
    """5 frames of 64x64 pixels after 3 steps, as uint8 [5, 64, 64, 3]."""
    frames = pipeline(
        prompt,
        height=64,
        width=64,
        num_frames=5,
        num_inference_steps=3,
        guidance_scale=scale,
        generator=torch.Generator("cpu").manual_seed(seed),
        output_type="np",
    ).frames[0]
    return (frames * 255).round().astype(np.uint8)


@pytest.fixture(scope="module")
def panda(pipeline: Any) -> Any:
    return clip(pipeline)


@pytest.mark.parametrize(
    ("expected", "change"),
    [(0.5, {"prompt": "a red pandb"}), (0.9, {"seed": 43}), (0.5, {"scale": 1.0}), (0.2, {"scale": 5.1})],
    ids=["prompt", "seed", "guidance", "a little guidance"],
)
def test_the_clip_depends_on_the_request(expected: float, change: dict[str, Any], pipeline: Any, panda: Any) -> None:
    assert expected < np.mean(clip(pipeline, **change) != panda)


def test_the_clip_has_structure_and_moves(panda: Any) -> None:
    values = panda.astype(np.float64)
    spread = values.std(axis=(0, 1, 2))
    to_neighbour = np.abs(np.diff(values, axis=2)).mean(axis=(0, 1, 2))
    to_next_frame = np.abs(np.diff(values, axis=0)).mean(axis=(1, 2, 3))
    assert np.mean((panda == 0) | (panda == 255)) < 0.15  # hardly clipped
    assert spread.min() > 8  # not flat
    assert (to_neighbour / spread).max() < 0.5  # smooth: white noise has 1.13
    assert to_next_frame.min() > 1  # no frame stands still
