"""LongLive 2 on dummy weights: Wan 2.2's released sizes in the causal class, and a clip that is the reference's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from fuseproof.pipelines.descriptions import describe_dummy
from fuseproof.pipelines.dummy import load_dummy_pipeline
from fuseproof.pipelines.dummy_geometry import LONGLIVE2, WAN22, geometry_of
from fuseproof.pipelines.families import FAMILIES
from fuseproof.pipelines.longlive2_model import LongLive2Transformer3DModel
from fuseproof.pipelines.reference_longlive2 import generate_reference
from tests.pipelines.longlive2_parts import CPU, clip, native
from tests.pipelines.test_dummy_wan import NARROW

FAMILY = FAMILIES["longlive2"]


@pytest.fixture(scope="module")
def pipe() -> Any:
    return load_dummy_pipeline(
        FAMILY, dtype=torch.bfloat16, device=CPU, geometry=replace(NARROW, architecture="longlive2")
    )


def test_sizes_are_wan22s_and_the_vae_follows_the_runs_dtype() -> None:
    assert LONGLIVE2 is geometry_of(FAMILY)
    assert WAN22.transformer is LONGLIVE2.transformer
    assert WAN22.total_parameters == LONGLIVE2.total_parameters
    described = describe_dummy(FAMILY)
    assert described is not None
    assert 21.23 == pytest.approx(described["weight_bytes"]["bfloat16"] / 2**30, abs=0.01)
    assert [44, 42, 42] == described["components"]["transformer"]["geometry"]["rotary_axes"]


def test_the_transformer_is_causal_and_keeps_in_fp32_what_loading_keeps(pipe: Any) -> None:
    assert LongLive2Transformer3DModel is type(pipe.transformer)
    assert "LongLive2Pipeline" == type(pipe).__name__
    parameters = dict(pipe.transformer.named_parameters())
    assert torch.float32 == parameters["blocks.0.scale_shift_table"].dtype == parameters["blocks.2.norm2.bias"].dtype
    assert torch.bfloat16 == parameters["blocks.0.attn1.to_q.weight"].dtype == pipe.transformer.dtype == pipe.vae.dtype
    assert torch.float32 == pipe.transformer.rope.freqs_cos.dtype


def test_a_clip_is_the_references(pipe: Any) -> None:
    made_of = clip(2, torch.bfloat16, has_image=True)
    expected = generate_reference(pipe.transformer, made_of.noise, made_of.text, made_of.image, 2)
    made = native(pipe.transformer, made_of, num_inference_steps=2)
    assert torch.equal(expected, made)
    assert bool(torch.isfinite(made).all())
