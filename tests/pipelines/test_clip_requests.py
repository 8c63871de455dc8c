"""What a request for a clip may say: its frames, its size, its first image."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fuseproof.errors import UsageError
from fuseproof.pipelines.clip_lengths import nearest_lengths
from fuseproof.pipelines.families import (
    FAMILIES,
    LONGCAT_IMAGE,
    LONGLIVE2,
    WAN21_T2V_1_3B,
    WAN22_TI2V_5B,
    refuse_ids_of_later_families,
)
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.longlive2_steps import frames_made
from fuseproof.pipelines.requests import validate_request
from tests.pipelines.test_parity_wan import BASE, IMAGE

VIDEO = [family for family in FAMILIES.values() if family.makes_video and family.frame_multiple == 4]
DISTILLED: dict[str, Any] = {"num_inference_steps": 4, "guidance_scale": 1.0, "num_frames": 61}


@pytest.mark.parametrize("family", VIDEO, ids=lambda family: family.name)
@pytest.mark.parametrize("frames", [1, 5, 81, 121, 4093])
def test_these_lengths_can_be_made(family: Family, frames: int) -> None:
    validate_request(dataclasses.replace(BASE, num_frames=frames), family)


@pytest.mark.parametrize(
    ("expected", "frames"),
    [((1,), 0), ((1,), -3), ((1, 5), 2), ((5, 9), 6), ((77, 81), 80), ((4093,), 4094), ((81,), 81)],
)
def test_the_nearest_lengths_are_those_on_either_side(expected: tuple[int, ...], frames: int) -> None:
    assert expected == nearest_lengths(frames, WAN22_TI2V_5B)


@pytest.mark.parametrize(
    ("expected", "family", "changes"),
    [
        (r"cannot make 6 frames: .* one, up to 4093, and the nearest are 5 and 9\.", WAN22_TI2V_5B, {"num_frames": 6}),
        (r"cannot make 5000 frames: .* the nearest is 4093\.", WAN21_T2V_1_3B, {"num_frames": 5000}),
        ("no number of frames was given", WAN21_T2V_1_3B, {"num_frames": None}),
        ("makes single images, and 5 frames", LONGCAT_IMAGE, {"enable_cfg_renorm": True}),
        ("Wan 2.2 TI2V 5B cannot make height 48", WAN22_TI2V_5B, {"height": 48}),
        ("makes clips from text alone", WAN21_T2V_1_3B, {"image": IMAGE}),
        ("has no prompt enhancer", WAN22_TI2V_5B, {"use_pe": True}),
        ("does not rewrite prompts", WAN22_TI2V_5B, {"enable_prompt_rewrite": True}),
        ("does not renormalise", WAN22_TI2V_5B, {"enable_cfg_renorm": True}),
    ],
    ids=["frames", "too-many", "none", "of-an-image", "size", "image", "enhancer", "rewriting", "renormalisation"],
)
def test_what_a_family_cannot_carry_out_is_refused(expected: str, family: Family, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=expected):
        validate_request(dataclasses.replace(BASE, **changes), family)


@pytest.mark.parametrize("frames", [29, 61, 93, 4093])
def test_a_clip_of_chunks_has_these_lengths(frames: int) -> None:
    validate_request(dataclasses.replace(BASE, **DISTILLED | {"num_frames": frames}), LONGLIVE2)


@pytest.mark.parametrize(
    ("expected", "frames"),
    [((29,), 0), ((29,), 5), ((29, 61), 30), ((29, 61), 60), ((61, 93), 81), ((4093,), 4094), ((61,), 61)],
)
def test_the_nearest_lengths_of_whole_chunks(expected: tuple[int, ...], frames: int) -> None:
    assert expected == nearest_lengths(frames, LONGLIVE2)
    for made in expected:
        assert made == frames_made(made)


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (
            "cannot make 60 frames: they must be 29 and a multiple of 32 more, up to 4093, .* 29 and 61",
            {"num_frames": 60},
        ),
        ("was distilled to 4 steps, and 50 were asked for", {"num_inference_steps": 50}),
        ("was distilled without guidance, and scale 5 was asked for; 1 was expected", {"guidance_scale": 5.0}),
        ("was distilled without guidance, and scale 0 was asked for", {"guidance_scale": 0.0}),
        ("without guidance, and scale nan", {"guidance_scale": float("nan")}),
        ("--negative-prompt has no effect at guidance scale 1, the default", {"negative_prompt": "blurry"}),
    ],
)
def test_what_a_distilled_model_cannot_carry_out_is_refused(expected: str, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        validate_request(dataclasses.replace(BASE, **DISTILLED | changes), LONGLIVE2)
    assert "above 1" not in str(caught.value.next_step)


def test_an_image_may_begin_a_clip_and_need_not() -> None:
    for image in (None, IMAGE):
        validate_request(dataclasses.replace(BASE, image=image), WAN22_TI2V_5B)


@pytest.mark.parametrize("name", ["Wan-AI/Wan2.1-T2V-14B-Diffusers", "Wan-AI/Wan2.2-T2V-A14B-Diffusers"])
def test_larger_members_are_refused_before_a_download(name: str) -> None:
    with pytest.raises(UsageError, match="is not supported yet"):
        refuse_ids_of_later_families(name)
