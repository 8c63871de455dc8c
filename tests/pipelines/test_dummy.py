"""``--load-format dummy``: the released geometry, drawn where it runs, and a picture that depends on what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines import dummy, dummy_longcat, memory
from fuseproof.pipelines.conditioning import ConditioningImage
from fuseproof.pipelines.dummy import build_on_meta, load_dummy_pipeline
from fuseproof.pipelines.dummy_geometry import (
    ERNIE,
    GEOMETRIES,
    LONGCAT,
    RECIPE,
    WARNING,
    DummyGeometry,
    family_of_dummy,
    geometry_of,
)
from fuseproof.pipelines.families import (
    ERNIE_IMAGE,
    FAMILIES,
    LONGCAT_IMAGE,
    LONGCAT_IMAGE_EDIT,
    LONGCAT_IMAGE_EDIT_TURBO,
)
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import GenerationResult, Session, SessionSettings
from fuseproof.pipelines.tiny.longcat_image import byte_level_tokenizer
from tests.pipelines.narrow_geometry import NARROW, NARROW_ERNIE, TEXT_WIDTH

CPU = torch.device("cpu")
GIB = 2**30
MODELS = ("transformer", "text_encoder", "vae")
PICTURE_FAMILIES = [FAMILIES[name] for name in GEOMETRIES if not FAMILIES[name].makes_video]
REQUEST = GenerationRequest(
    prompt="a red panda",
    negative_prompt=None,
    width=64,
    height=64,
    num_inference_steps=4,
    guidance_scale=4.5,
    seed=42,
    generator_device="cpu",
    enable_cfg_renorm=True,
    cfg_renorm_min=0.0,
    enable_prompt_rewrite=False,
    quality="lossless",
)


def narrow(dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    return load_dummy_pipeline(LONGCAT_IMAGE, dtype=dtype, device=CPU, seed=seed, geometry=NARROW)


def values(pipe: Any) -> dict[str, torch.Tensor]:
    return {
        f"{component}.{name}": tensor.detach()
        for component in MODELS
        for name, tensor in getattr(pipe, component).named_parameters()
    }


def buffers(pipe: Any) -> dict[str, torch.Tensor]:
    return {
        f"{component}.{name}": tensor
        for component in MODELS
        for name, tensor in getattr(pipe, component).named_buffers()
    }


@pytest.fixture(scope="module")
def pipe() -> Any:
    return narrow()


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """The narrow model on one thread, which another busy process cannot slow down twentyfold."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with Session.open_dummy(LONGCAT_IMAGE, SessionSettings(device="cpu"), geometry=NARROW) as opened:
        yield opened
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def panda(session: Session) -> GenerationResult:
    return session.run(REQUEST)


# The released sizes, on the meta device


@pytest.mark.parametrize(
    ("expected", "geometry"),
    [((6_270_668_864, 8_292_166_656, 83_819_683), LONGCAT), ((8_033_490_048, 3_849_090_048, 84_046_115), ERNIE)],
    ids=["longcat", "ernie"],
)
def test_released_models_have_the_released_parameters(expected: tuple[int, ...], geometry: DummyGeometry) -> None:
    released = build_on_meta(geometry)
    parameters = {name: list(released[name].parameters()) for name in MODELS}
    counted = {name: sum(parameter.numel() for parameter in found) for name, found in parameters.items()}
    assert dict(zip(MODELS, expected, strict=True)) == counted == dict(geometry.parameters)
    assert {"meta"} == {parameter.device.type for found in parameters.values() for parameter in found}
    assert [False] * 3 == [released[name].training for name in MODELS]


@pytest.mark.parametrize("family", PICTURE_FAMILIES, ids=lambda family: family.name)
def test_the_geometry_is_what_the_family_says(family: Family) -> None:
    geometry = geometry_of(family)
    said = _longcat_geometry if geometry is LONGCAT else _ernie_geometry
    assert said(geometry) == dict(family.geometry)
    if geometry is LONGCAT:
        assert geometry.text_model["hidden_size"] == geometry.vision_model["out_hidden_size"]
    assert geometry.text_model["hidden_size"] == family.geometry["text_hidden_size"]
    assert round(family.parameters / 1e9, 3) == round(geometry.parameters["transformer"] / 1e9, 3)


def _ernie_geometry(geometry: DummyGeometry) -> dict[str, int]:
    transformer, vae = geometry.transformer, geometry.vae
    return {
        "blocks": transformer["num_layers"],
        "attention_heads": transformer["num_attention_heads"],
        "head_dim": transformer["hidden_size"] // transformer["num_attention_heads"],
        "hidden_size": transformer["hidden_size"],
        "ffn_hidden_size": transformer["ffn_hidden_size"],
        "text_hidden_size": transformer["text_in_dim"],
        "latent_channels": vae["latent_channels"],
        "vae_scale": 2 ** (len(vae["block_out_channels"]) - 1),
        "patch": int((transformer["in_channels"] // vae["latent_channels"]) ** 0.5),
    }


def _longcat_geometry(geometry: DummyGeometry) -> dict[str, int]:
    transformer, vae = geometry.transformer, geometry.vae
    heads, head_dim = transformer["num_attention_heads"], transformer["attention_head_dim"]
    return {
        "joint_blocks": transformer["num_layers"],
        "single_blocks": transformer["num_single_layers"],
        "attention_heads": heads,
        "head_dim": head_dim,
        "hidden_size": heads * head_dim,
        "text_hidden_size": transformer["joint_attention_dim"],
        "latent_channels": vae["latent_channels"],
        "vae_scale": 2 ** (len(vae["block_out_channels"]) - 1),
        "patch": int((transformer["in_channels"] // vae["latent_channels"]) ** 0.5),
    }


def test_every_token_has_an_embedding() -> None:
    assert len(byte_level_tokenizer()) <= NARROW.text_model["vocab_size"] <= LONGCAT.text_model["vocab_size"]


# Materialising


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_every_parameter_and_buffer_is_there_and_finite(dtype: torch.dtype) -> None:
    made = narrow(dtype)
    parameters, computed = values(made), buffers(made)
    everything = {**parameters, **computed}
    assert {"cpu"} == {tensor.device.type for tensor in everything.values()}
    assert {dtype} == {tensor.dtype for tensor in parameters.values()}
    assert {torch.float32} == {tensor.dtype for tensor in computed.values()}, "rotary frequencies stay fp32"
    assert [] == [name for name, tensor in everything.items() if not bool(torch.isfinite(tensor).all())]
    assert [] == [name for name, tensor in parameters.items() if bool((tensor == 0).all())]
    assert [False] * 3 == [getattr(made, component).training for component in MODELS]


def test_no_plain_attribute_was_left_on_the_meta_device(pipe: Any) -> None:
    left = [
        f"{component}.{name}.{attribute}"
        for component in MODELS
        for name, module in getattr(pipe, component).named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, torch.Tensor) and value.is_meta
    ]
    assert [] == left


def test_rotary_frequencies_are_computed_not_drawn(pipe: Any) -> None:
    head_dim, vision_head_dim = TEXT_WIDTH // 2, 32 // 2
    text = 1.0 / 1e6 ** (torch.arange(0, head_dim, 2).float() / head_dim)
    vision = 1.0 / 1e4 ** (torch.arange(0, vision_head_dim // 2, 2).float() / (vision_head_dim // 2))
    model = pipe.text_encoder.model
    for expected, module in ((text, model.language_model.rotary_emb), (vision, model.visual.rotary_pos_emb)):
        assert torch.equal(expected, module.inv_freq)
        assert torch.equal(expected, module.original_inv_freq)


def test_a_buffer_without_a_recipe_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    build = dummy_longcat._vae

    def with_buffer(geometry: Any) -> Any:
        model = build(geometry)
        model.decoder.register_buffer("table", torch.zeros(3))
        return model

    monkeypatch.setattr(dummy_longcat, "_vae", with_buffer)
    with pytest.raises(FuseproofError, match="decoder has buffers table, and no recipe to compute them"):
        narrow()


def test_one_seed_gives_the_same_bits_and_leaves_the_callers_generator_alone(pipe: Any) -> None:
    state = torch.random.get_rng_state()
    again, other = values(narrow()), values(narrow(seed=1))
    assert torch.equal(state, torch.random.get_rng_state())
    mine = values(pipe)
    assert list(mine) == list(again)
    assert [] == [name for name, tensor in mine.items() if not torch.equal(tensor, again[name])]
    assert [] == [name for name, tensor in mine.items() if torch.equal(tensor, other[name])]


SPREADS = {
    "linear": (TEXT_WIDTH**-0.5 * 4.0, "transformer.context_embedder.weight"),
    "query": (128**-0.5 * 0.3, "transformer.single_transformer_blocks.19.attn.to_q.weight"),
    "query bias": (0.1 * 20, "transformer.transformer_blocks.9.attn.add_k_proj.bias"),
    "modulation": (128**-0.5 * 1.5, "transformer.transformer_blocks.0.norm1.linear.weight"),
    "feed-forward": (512**-0.5, "transformer.transformer_blocks.0.ff.net.2.weight"),
    "embedding": (1.0, "text_encoder.model.language_model.embed_tokens.weight"),
    "text linear": ((4 * TEXT_WIDTH) ** -0.5, "text_encoder.model.language_model.layers.3.mlp.down_proj.weight"),
    "convolution": ((16 * 9) ** -0.5, "vae.decoder.mid_block.resnets.0.conv1.weight"),
}


@pytest.mark.parametrize(("expected", "name"), SPREADS.values(), ids=SPREADS)
def test_spreads_are_those_of_the_recipe(expected: float, name: str, pipe: Any) -> None:
    assert expected == pytest.approx(float(values(pipe)[name].std()), rel=0.15)


def test_another_recipe_needs_another_version(pipe: Any) -> None:
    """When a value below changes on purpose, raise RECIPE: dumps tell the weights of two runs apart by it."""
    pinned = {
        "transformer.proj_out.weight": -0.1023976,
        "text_encoder.lm_head.weight": -0.0310381,
        "vae.decoder.conv_out.weight": 0.00500218,
    }
    first = {name: float(values(pipe)[name].flatten()[0]) for name in pinned}
    assert (1, pinned) == (RECIPE, pytest.approx(first, rel=1e-4))


# Memory


@pytest.mark.parametrize(
    ("expected", "dtype"),
    [
        ("27.3 GiB in bfloat16 on cpu, and only 20.0 GiB are free", torch.bfloat16),
        ("54.6 GiB in float32 on cpu, and only 20.0 GiB are free", torch.float32),
    ],
    ids=["bfloat16", "float32"],
)
def test_too_little_memory_is_refused_before_any_is_taken(
    expected: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 20 * GIB)
    monkeypatch.setattr(dummy, "materialise", lambda *args, **kwargs: pytest.fail("allocated"))
    with pytest.raises(FuseproofError) as caught:
        load_dummy_pipeline(LONGCAT_IMAGE, dtype=dtype, device=CPU)
    assert expected in caught.value.message
    assert "embedded:longcat-image" in str(caught.value.next_step)
    assert ("--dtype bfloat16" in str(caught.value.next_step)) is (dtype is torch.float32)


def test_an_allocation_that_fails_all_the_same_is_the_same_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(dummy, "materialise", fail)
    with pytest.raises(FuseproofError, match=r"need [0-9.]+ GiB in float32 on cpu, and the allocation failed\.$"):
        narrow()


def test_free_memory_of_a_cpu_is_what_the_host_has_available() -> None:
    assert 0 < memory.free_bytes(CPU) < 2**50


# Names


@pytest.mark.parametrize("name", ["longcat-image", "meituan-longcat/LongCat-Image"])
def test_a_family_is_found_by_its_name_or_published_id(name: str) -> None:
    assert LONGCAT_IMAGE is family_of_dummy(name)


@pytest.mark.parametrize(
    ("expected", "name"),
    [("'flux' is no family", "flux"), ("'' is no family", ""), ("'.' is a folder", "."), ("'a/b' is no family", "a/b")],
)
def test_anything_else_is_a_usage_error_that_lists_the_names(expected: str, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        family_of_dummy(name)
    assert expected in caught.value.message
    assert "longcat-image" in caught.value.message


def test_a_family_without_a_geometry_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="Other has no dummy weights"):
        geometry_of(replace(LONGCAT_IMAGE, name="other", title="Other"))


# Running it


def test_the_session_says_what_its_weights_are(session: Session) -> None:
    assert WARNING in session.warnings
    assert ("native", "float32", "cpu") == (session.backend, session.dtype, session.device)


def test_the_picture_is_finite_and_has_structure(panda: GenerationResult) -> None:
    assert np.isfinite(panda.latents).all()
    assert 0.05 < panda.latents.std() < 2.0
    image = panda.image * 255
    assert image.std(axis=(0, 1)).min() > 5
    assert np.mean((panda.image <= 0) | (panda.image >= 1)) < 0.2


@pytest.mark.parametrize(
    ("expected", "change"),
    [(0.9, {"seed": 43}), (0.3, {"prompt": "a bowl of fruit on a table"}), (0.1, {"enable_cfg_renorm": False})],
    ids=["seed", "prompt", "renormalisation"],
)
def test_the_picture_depends_on_the_request(
    expected: float, change: dict[str, Any], session: Session, panda: GenerationResult
) -> None:
    other = session.run(replace(REQUEST, **change))
    before, after = ((image * 255).round() for image in (panda.image, other.image))
    assert expected < np.mean(before != after)


@pytest.mark.parametrize("family", [LONGCAT_IMAGE_EDIT, LONGCAT_IMAGE_EDIT_TURBO], ids=lambda family: family.name)
def test_an_editing_model_sees_its_image(family: Family) -> None:
    request = replace(
        REQUEST,
        num_inference_steps=1,
        guidance_scale=1.0,
        enable_cfg_renorm=False,
        canvas_pixels=64 * 64,
    )
    with Session.open_dummy(family, SessionSettings(device="cpu", fastpaths="off"), geometry=NARROW) as session:
        latents = [session.run(replace(request, image=flat_image(grey))).latents for grey in (40, 200)]
    assert np.isfinite(latents).all()
    assert not np.array_equal(*latents)


def flat_image(grey: int) -> ConditioningImage:
    return ConditioningImage(Image.new("RGB", (64, 64), (grey, grey, grey)), f"{grey:064}", 64, 64)


def test_the_reference_backend_gives_the_same_bits(panda: GenerationResult) -> None:
    settings = SessionSettings(device="cpu", backend="diffusers")
    with Session.open_dummy(LONGCAT_IMAGE, settings, geometry=NARROW) as reference:
        assert np.array_equal(panda.image, reference.run(REQUEST).image)


# ERNIE-Image


ERNIE_REQUEST = replace(REQUEST, guidance_scale=4.0, enable_cfg_renorm=False)


@pytest.fixture(scope="module")
def ernie() -> Iterator[Session]:
    """All 36 narrow blocks in bf16, whose range and roundings the depth has to survive."""
    settings = SessionSettings(device="cpu", dtype="bfloat16")
    with Session.open_dummy(ERNIE_IMAGE, settings, geometry=NARROW_ERNIE) as opened:
        yield opened


def test_batch_norm_statistics_are_drawn_in_the_models_dtype() -> None:
    made = [
        load_dummy_pipeline(ERNIE_IMAGE, dtype=torch.bfloat16, device=CPU, seed=seed, geometry=NARROW_ERNIE)
        for seed in (0, 0, 1)
    ]
    norms = [pipe.vae.bn for pipe in made]
    assert {torch.bfloat16} == {tensor.dtype for norm in norms for tensor in (norm.running_mean, norm.running_var)}
    assert float(norms[0].running_var.min()) >= 1.0
    assert float(norms[0].running_mean.std()) == pytest.approx(0.1, rel=0.3)
    assert 0 == int(norms[0].num_batches_tracked)
    for name in ("running_mean", "running_var"):
        first, again, other = (getattr(norm, name) for norm in norms)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    assert [] == [name for name, tensor in {**values(made[0]), **buffers(made[0])}.items() if tensor.is_meta]
    assert [] == [name for name, tensor in values(made[0]).items() if not bool(tensor.any())]
    assert (None, None) == (made[0].pe, made[0].pe_tokenizer)


def test_fifty_guided_steps_stay_finite(ernie: Session) -> None:
    result = ernie.run(replace(ERNIE_REQUEST, num_inference_steps=50, width=16, height=16))
    assert np.isfinite(result.latents).all()
    assert 0.05 < result.latents.std() < 8.0


@pytest.mark.parametrize("change", [{"seed": 43}, {"prompt": "a bowl of fruit"}], ids=["seed", "prompt"])
def test_a_dummy_ernie_draws_what_was_asked(change: dict[str, Any], ernie: Session) -> None:
    request = replace(ERNIE_REQUEST, num_inference_steps=2, width=32, height=32)
    pictures = [(ernie.run(one).image * 255).round() for one in (request, replace(request, **change))]
    assert 0.5 < np.mean(pictures[0] != pictures[1])
    assert min(picture.std() for picture in pictures) > 5
