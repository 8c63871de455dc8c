"""Wan on dummy weights: the released geometry, what stays in fp32, and clips whose bits are diffusers' own."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from fuseproof.errors import FuseproofError
from fuseproof.pipelines import memory
from fuseproof.pipelines.descriptions import describe_dummy
from fuseproof.pipelines.dummy import build_on_meta, load_dummy_pipeline
from fuseproof.pipelines.dummy_geometry import WAN21, WAN22, DummyGeometry, geometry_of
from fuseproof.pipelines.dummy_weights import cast
from fuseproof.pipelines.families import FAMILIES, WAN21_T2V_1_3B, WAN22_TI2V_5B
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.session import Session, SessionSettings
from tests.pipelines.test_parity_wan import BASE, IMAGE, run

CPU = torch.device("cpu")
MODELS = ("transformer", "text_encoder", "vae")
VIDEO = [family for family in FAMILIES.values() if family.makes_video]
NARROW = DummyGeometry(
    transformer=MappingProxyType(
        {**WAN22.transformer, "num_attention_heads": 1, "ffn_dim": 256, "text_dim": 64, "num_layers": 3}
    ),
    text_model=MappingProxyType(
        {"vocab_size": 1024, "d_model": 64, "d_kv": 64, "d_ff": 128, "num_layers": 2, "num_heads": 1}
    ),
    vision_model=MappingProxyType({}),
    vae=MappingProxyType({**WAN22.vae, "base_dim": 8, "decoder_base_dim": 8, "num_res_blocks": 1}),
    architecture="wan",
)


def narrow(dtype: torch.dtype) -> Any:
    return load_dummy_pipeline(WAN22_TI2V_5B, dtype=dtype, device=CPU, geometry=NARROW)


@pytest.mark.parametrize("family", VIDEO, ids=lambda family: family.name)
def test_released_models_have_the_released_parameters(family: Family) -> None:
    geometry = geometry_of(family)
    released = build_on_meta(geometry)
    counted = {name: sum(one.numel() for one in released[name].parameters()) for name in MODELS}
    assert dict(geometry.parameters) == counted
    assert family.parameters == counted["transformer"]
    cast(released["transformer"], torch.bfloat16)
    kept = [one.numel() for one in released["transformer"].parameters() if one.dtype == torch.float32]
    kept_whole = {name: counted[name] for name in family.float32_components}
    assert {"transformer": sum(kept), **kept_whole} == dict(geometry.float32_parameters)


@pytest.mark.parametrize("family", VIDEO, ids=lambda family: family.name)
def test_the_geometry_is_what_the_family_says(family: Family) -> None:
    geometry = geometry_of(family)
    transformer, vae = geometry.transformer, build_on_meta(geometry)["vae"].config
    heads, head_dim = transformer["num_attention_heads"], transformer["attention_head_dim"]
    assert dict(family.geometry) == {
        "blocks": transformer["num_layers"],
        "attention_heads": heads,
        "head_dim": head_dim,
        "hidden_size": heads * head_dim,
        "ffn_hidden_size": transformer["ffn_dim"],
        "text_hidden_size": transformer["text_dim"],
        "latent_channels": vae.z_dim,
        "vae_scale": vae.scale_factor_spatial,
        "vae_scale_in_time": vae.scale_factor_temporal,
        "patch": 2,
    }
    assert transformer["text_dim"] == geometry.text_model["d_model"]
    latent_frames = 8 if family.name == "longlive2" else 1  # a chunk, where clips are made of chunks
    assert family.frame_multiple == latent_frames * vae.scale_factor_temporal
    assert family.size_multiple == 2 * vae.scale_factor_spatial
    assert vae.z_dim == transformer["in_channels"] == len(vae.latents_mean) == len(vae.latents_std)


def test_what_stays_in_fp32_counts_as_such() -> None:
    described = {family.name: describe_dummy(family) for family in (WAN22_TI2V_5B, WAN21_T2V_1_3B)}
    sizes = {name: one["weight_bytes"]["bfloat16"] / 2**30 for name, one in described.items() if one is not None}
    assert {"wan2.2-ti2v-5b": 22.54, "wan2.1-t2v-1.3b": 13.70} == pytest.approx(sizes, abs=0.01)
    assert WAN21.weight_bytes("float32") == 4 * WAN21.total_parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_tensor_has_the_dtype_that_loading_gives_and_is_drawn(dtype: torch.dtype) -> None:
    pipe = narrow(dtype)
    assert {torch.float32} == {one.dtype for one in pipe.vae.parameters()}
    assert {dtype} == {one.dtype for one in pipe.text_encoder.parameters()}
    transformer = dict(pipe.transformer.named_parameters())
    assert torch.float32 == transformer["blocks.0.scale_shift_table"].dtype == transformer["blocks.2.norm2.bias"].dtype
    assert dtype == transformer["blocks.0.attn1.to_q.weight"].dtype == pipe.transformer.dtype
    drawn = [one for name in MODELS for one in getattr(pipe, name).parameters()]
    assert all(bool(torch.isfinite(one).all()) and not bool((one == 0).all()) for one in drawn)
    rope = pipe.transformer.rope
    assert torch.equal(rope.freqs_cos, type(rope)(128, (1, 2, 2), 1024).freqs_cos), "computed, not drawn"
    gamma = dict(pipe.vae.named_parameters())["decoder.norm_out.gamma"].detach()
    assert (1.0, 0.1) == pytest.approx((float(gamma.mean()), float(gamma.std())), abs=0.1)


def test_too_little_memory_is_refused_before_any_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 20 * 2**30)
    with pytest.raises(FuseproofError, match=r"Wan 2.2 TI2V 5B need 22.5 GiB in bfloat16 on cpu, and only 20.0 GiB"):
        load_dummy_pipeline(WAN22_TI2V_5B, dtype=torch.bfloat16, device=CPU)


@pytest.mark.parametrize("image", [None, IMAGE], ids=["text", "image"])
def test_native_equals_diffusers_and_the_clip_is_one(image: Any) -> None:
    pipe, request = narrow(torch.bfloat16), replace(BASE, image=image, num_inference_steps=2)
    reference, native = (run(pipe, backend, request, torch.bfloat16) for backend in ("diffusers", "native"))
    assert reference.image.tobytes() == native.image.tobytes()
    assert (native.image * 255).std(axis=(0, 1, 2)).min() > 3
    assert np.mean((native.image <= 0) | (native.image >= 1)) < 0.2


def test_a_session_opens_it_and_says_what_its_weights_are() -> None:
    settings = SessionSettings(device="cpu", dtype="bfloat16")
    with Session.open_dummy(WAN22_TI2V_5B, settings, geometry=NARROW) as session:
        result = session.run(replace(BASE, num_inference_steps=1))
        assert ("native", (5, 32, 64, 3)) == (session.backend, result.image.shape)
        assert any("dummy weights" in text for text in session.warnings)
