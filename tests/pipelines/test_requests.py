from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fuseproof.errors import UsageError
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.families import FAMILIES, LONGCAT_IMAGE
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.picture_sizes import nearest_canvas, nearest_sizes
from fuseproof.pipelines.requests import GenerationRequest, quality_named, validate_request
from tests.pipelines.fake_checkpoints import write_fake_checkpoint
from tests.pipelines.input_pictures import as_input, encoded, picture

GOOD = GenerationRequest(
    prompt="a red panda",
    negative_prompt=None,
    width=256,
    height=256,
    num_inference_steps=8,
    guidance_scale=4.5,
    seed=42,
    generator_device="cpu",
    enable_cfg_renorm=True,
    cfg_renorm_min=0.0,
    enable_prompt_rewrite=False,
    quality="lossless",
)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="as-it-is"),
        pytest.param({"width": 16, "height": 4096}, id="smallest-and-largest-side"),
        pytest.param({"width": 2048, "height": 2048}, id="most-pixels"),
        pytest.param({"num_inference_steps": 1, "guidance_scale": 0.0}, id="one-step-without-guidance"),
        pytest.param({"num_inference_steps": 1000}, id="most-steps"),
        pytest.param({"seed": 0}, id="seed-0"),
        pytest.param({"seed": 2**32 - 1}, id="seed-32-bit"),
        pytest.param({"seed": 2**64 - 1, "generator_device": "cuda"}, id="largest-seed-on-cuda"),
        pytest.param({"cfg_renorm_min": 1.0}, id="renorm-off-by-clamp"),
        pytest.param({"negative_prompt": ""}, id="empty-negative-prompt"),
        pytest.param({"prompt": "🐼" * 600}, id="long-emoji-prompt"),
        pytest.param({"prompt": "../../x"}, id="path-as-prompt"),
        pytest.param({"prompt": "--help"}, id="flag-as-prompt"),
        pytest.param({"quality": "exact"}, id="quality-alias"),
        pytest.param({"quality": "high"}, id="quality-high"),
    ],
)
def test_a_request_that_can_be_carried_out_passes(changes: dict[str, Any]) -> None:
    validate_request(dataclasses.replace(GOOD, **changes), LONGCAT_IMAGE)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"prompt": ""}, "prompt '' is empty", id="empty-prompt"),
        pytest.param({"prompt": " \n\t"}, "is empty", id="blank-prompt"),
        pytest.param({"prompt": "a\udcff"}, "character 2 cannot be encoded as UTF-8", id="prompt-not-utf8"),
        pytest.param({"negative_prompt": "\udcff"}, "The negative prompt is not valid text", id="negative-not-utf8"),
        pytest.param({"height": 427}, "height 427 .*nearest are 416 and 432.*multiple of 16", id="height-427"),
        pytest.param({"width": 250}, "width 250.*nearest are 240 and 256", id="width-250"),
        pytest.param({"width": 0}, "width 0.*nearest is 16", id="width-0"),
        pytest.param({"width": 8}, "width 8.*nearest is 16", id="width-8"),
        pytest.param({"height": -16}, "height -16.*nearest is 16", id="height-negative"),
        pytest.param({"height": 4112}, "height 4112.*nearest is 4096", id="height-too-large"),
        pytest.param({"width": 4096, "height": 4096}, "4096x4096.*16,777,216 pixels.*4,194,304", id="too-many-pixels"),
        pytest.param({"width": 8192, "height": 9}, "width 8192 .*is 4096. and height 9 .*is 16.:", id="both-sides"),
        pytest.param(
            {"negative_prompt": "ugly", "guidance_scale": 1.0}, "--negative-prompt.*scale 1: .*off", id="unguided"
        ),
        pytest.param({"cfg_renorm_min": 0.2, "guidance_scale": 0.5}, "renorm-min.*scale 0.5: ", id="min-unguided"),
        pytest.param({"cfg_renorm_min": 0.2, "enable_cfg_renorm": False}, "-min 0.2 .*n is off", id="min-alone"),
        pytest.param({"num_inference_steps": 0}, "^0 inference steps.*1 to 1000", id="steps-0"),
        pytest.param({"num_inference_steps": -3}, "^-3 inference steps", id="steps-negative"),
        pytest.param({"num_inference_steps": 1001}, "^1001 inference steps", id="steps-too-many"),
        pytest.param({"guidance_scale": float("nan")}, "Guidance scale nan", id="guidance-nan"),
        pytest.param({"guidance_scale": float("inf")}, "Guidance scale inf", id="guidance-infinite"),
        pytest.param({"guidance_scale": -0.5}, "Guidance scale -0.5", id="guidance-negative"),
        pytest.param({"cfg_renorm_min": float("nan")}, "minimum nan.*between 0 and 1", id="renorm-nan"),
        pytest.param({"cfg_renorm_min": 1.01}, "minimum 1.01", id="renorm-above-1"),
        pytest.param({"cfg_renorm_min": -0.01}, "minimum -0.01", id="renorm-below-0"),
        pytest.param({"seed": -1}, r"Seed -1 .*0 to 2\*\*64 - 1", id="seed-negative"),
        pytest.param({"seed": 2**64}, "Seed 18446744073709551616", id="seed-65-bit"),
        pytest.param({"generator_device": "mps"}, "'mps'.*cpu or cuda", id="generator-device"),
        pytest.param({"quality": "best"}, "'best'.*lossless, extra-high, high", id="quality-unknown"),
    ],
)
def test_a_request_that_cannot_be_carried_out_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        validate_request(dataclasses.replace(GOOD, **changes), LONGCAT_IMAGE)
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("expected", "side"),
    [((416, 432), 427), ((16,), 1), ((16, 32), 17), ((4096,), 5000), ((4080, 4096), 4095), ((16,), -100)],
)
def test_nearest_sizes(expected: tuple[int, ...], side: int) -> None:
    assert expected == nearest_sizes(side, LONGCAT_IMAGE)


@pytest.mark.parametrize(
    ("expected", "size"),
    [
        ((256, 256), (256, 256)),
        ((96, 256), (100, 264)),
        ((2048, 2048), (8192, 8192)),
        ((2064, 2016), (4096, 4000)),
        ((4096, 1024), (5000, 1024)),
        ((1024, 4096), (1030, 8000)),
        ((16, 16), (-5, 0)),
    ],
)
def test_the_nearest_canvas_is_one_that_can_be_made(expected: tuple[int, int], size: tuple[int, int]) -> None:
    assert expected == nearest_canvas(*size, LONGCAT_IMAGE)
    validate_request(dataclasses.replace(GOOD, width=expected[0], height=expected[1]), LONGCAT_IMAGE)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_negative_prompt_without_guidance_is_refused_for_every_family(family: Family) -> None:
    image = as_input(encoded(picture())) if family.takes_image else None
    asked = {
        "image": image,
        "enable_cfg_renorm": family.renormalises_guidance,
        "num_frames": family.default_frames,
        "num_inference_steps": family.only_steps or GOOD.num_inference_steps,
    }
    request = dataclasses.replace(GOOD, guidance_scale=1.0, negative_prompt="ugly", **asked)
    with pytest.raises(UsageError, match="--negative-prompt has no effect at guidance scale 1") as caught:
        validate_request(request, family)
    instead = ", or give a --guidance-scale above 1" if family.takes_guidance else ""
    assert f"Leave --negative-prompt out{instead}." == caught.value.next_step
    assert (family.default_guidance_scale == 1.0) == (f"the default of {family.title}" in caught.value.message)
    if family.takes_guidance:
        validate_request(dataclasses.replace(request, guidance_scale=1.01), family)


def test_exact_is_an_alias_of_lossless() -> None:
    assert quality_named("exact") == "lossless"


def test_prompt_rewriting_needs_a_text_processor(tmp_path: Path) -> None:
    request = dataclasses.replace(GOOD, enable_prompt_rewrite=True)
    checkpoint = check_checkpoint(write_fake_checkpoint(tmp_path))
    with pytest.raises(UsageError, match="text_processor slot is empty"):
        validate_request(request, LONGCAT_IMAGE, checkpoint)
    validate_request(GOOD, LONGCAT_IMAGE, checkpoint)
    validate_request(request, LONGCAT_IMAGE)
