"""The promise for editing: native == diffusers, bit for bit, in the raw image and the final latents."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from diffusers.pipelines.longcat_image import pipeline_longcat_image_edit

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines import longcat_image_edit
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.conditioning import canvas_size
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import Session, SessionSettings
from tests.pipelines.input_pictures import as_input, encoded, picture, with_orientation
from tests.pipelines.short_prompts import SHORT_PROMPT_TOKENS

CPU = torch.device("cpu")
CANVAS_PIXELS = 112 * 112
NATIVE = SessionSettings(backend="native", fastpaths="off")
DIFFUSERS = SessionSettings(backend="diffusers", fastpaths="off")


def edit_request(content=None, canvas_pixels=CANVAS_PIXELS, **changes):
    """A request of two steps for the file's own canvas."""
    image = as_input(encoded(picture()) if content is None else content)
    width, height = canvas_size(image.width, image.height, canvas_pixels)
    request = GenerationRequest(
        prompt="Make the cat wear a red hat.",
        negative_prompt=None,
        width=width,
        height=height,
        num_inference_steps=2,
        guidance_scale=4.5,
        seed=42,
        generator_device="cpu",
        enable_cfg_renorm=False,
        cfg_renorm_min=0.0,
        enable_prompt_rewrite=False,
        quality="lossless",
        image=image,
        canvas_pixels=canvas_pixels,
    )
    return replace(request, **changes)


ONE_FORWARD = {"num_inference_steps": 1, "guidance_scale": 1.0}
REQUESTS = {
    "base": edit_request,
    "no-guidance": lambda: edit_request(guidance_scale=1.0),
    "barely-guided": lambda: edit_request(num_inference_steps=1, guidance_scale=1.0001),
    "three-steps": lambda: edit_request(num_inference_steps=3, seed=7),
    "negative-prompt": lambda: edit_request(num_inference_steps=1, negative_prompt="blurry, 'text'"),
    "quoted-and-contracted": lambda: edit_request(
        prompt="it can't say 'Open' because it's \u201cclosed\u201d", **ONE_FORWARD
    ),
    "tall": lambda: edit_request(encoded(picture(40, 130)), **ONE_FORWARD),
    "wide": lambda: edit_request(encoded(picture(700, 90)), **ONE_FORWARD),
    "square": lambda: edit_request(encoded(picture(33, 33)), **ONE_FORWARD),
    "larger-than-its-canvas": lambda: edit_request(encoded(picture(420, 300), "JPEG"), **ONE_FORWARD),
    "rgba": lambda: edit_request(encoded(picture().convert("RGBA")), **ONE_FORWARD),
    "exif-6": lambda: edit_request(with_orientation(picture(), 6, "JPEG"), **ONE_FORWARD),
    "other-canvas": lambda: edit_request(canvas_pixels=80 * 80, **ONE_FORWARD),
}
PADDED_LIKE_A_RELEASE = {"base", "bf16"}
"""Requests with all 512 tokens; the others pad to 96."""
BF16_REQUESTS = {
    "bf16": lambda: edit_request(canvas_pixels=80 * 80, num_inference_steps=1),
    "bf16-no-guidance": lambda: edit_request(canvas_pixels=80 * 80, **ONE_FORWARD),
}


@pytest.fixture(scope="module")
def pipes(tiny_edit_folder):
    checkpoint = check_checkpoint(tiny_edit_folder)
    return {dtype: load_pipeline(checkpoint, dtype=dtype, device=CPU) for dtype in (torch.float32, torch.bfloat16)}


@pytest.fixture(scope="module")
def pipe(pipes):
    return pipes[torch.float32]


def run(pipe, settings, request, dtype=torch.float32):
    with Session(pipe, settings, CPU, dtype, SILENT) as session:
        return session.run(request), session.fastpaths_report()


@pytest.mark.parametrize(
    ("dtype", "name", "make"),
    [pytest.param(torch.float32, name, make, id=name) for name, make in REQUESTS.items()]
    + [pytest.param(torch.bfloat16, name, make, id=name) for name, make in BF16_REQUESTS.items()],
)
def test_native_equals_diffusers_bit_for_bit(pipes, monkeypatch, dtype, name, make):
    if name not in PADDED_LIKE_A_RELEASE:
        monkeypatch.setattr(pipes[dtype], "tokenizer_max_length", SHORT_PROMPT_TOKENS)
    request = make()
    reference, _ = run(pipes[dtype], DIFFUSERS, request, dtype)
    assert (request.height, request.width, 3) == reference.image.shape
    assert np.isfinite(reference.image).all()
    result, _ = run(pipes[dtype], NATIVE, request, dtype)
    assert reference.image.tobytes() == result.image.tobytes(), "raw image differs"
    assert reference.latents.tobytes() == result.latents.tobytes(), "final latents differ"
    assert reference.work == result.work, "another amount of work"


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(REQUESTS["three-steps"], id="guided"),
        pytest.param(REQUESTS["no-guidance"], id="no-guidance"),
        pytest.param(lambda: edit_request(encoded(picture(40, 130))), id="tall"),
    ],
)
def test_fast_paths_keep_every_bit(pipe, request_of):
    request = request_of()
    off, _ = run(pipe, NATIVE, request)
    on, report = run(pipe, SessionSettings(backend="native", fastpaths="auto"), request)
    assert off.image.tobytes() == on.image.tobytes()
    assert off.latents.tobytes() == on.latents.tobytes()
    states = {site: entry["state"] for site, entry in report["sites"].items()}
    assert "rejected" not in states.values(), report
    assert "fused" == states["context_embedding"], report


def test_the_reference_is_the_plain_call_at_the_librarys_own_canvas(pipe, monkeypatch):
    """At 1 megapixel nothing is exchanged: a stand-in counts who asks for a canvas, and with what."""
    asked = []

    def calculate_dimensions(area, ratio):
        asked.append(area)
        return 112, 112

    monkeypatch.setattr(pipeline_longcat_image_edit, "calculate_dimensions", calculate_dimensions)
    square = edit_request(encoded(picture(50, 50)), **ONE_FORWARD)
    run(pipe, DIFFUSERS, replace(square, canvas_pixels=1024 * 1024))
    assert [1024 * 1024, 1024 * 1024] == asked, "once to check the request, once by diffusers itself"
    asked.clear()
    run(pipe, DIFFUSERS, square)
    assert [112 * 112, 112 * 112] == asked


def test_the_librarys_function_is_back_after_a_request_and_after_a_failure(pipe, monkeypatch):
    eager = pipeline_longcat_image_edit.calculate_dimensions
    run(pipe, DIFFUSERS, edit_request(**ONE_FORWARD))
    assert eager is pipeline_longcat_image_edit.calculate_dimensions
    monkeypatch.setattr(type(pipe), "encode_prompt", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run(pipe, DIFFUSERS, edit_request())
    assert eager is pipeline_longcat_image_edit.calculate_dimensions
    assert "prepare_latents" not in vars(pipe)


def test_stages_carry_the_same_names_on_both_backends(pipe):
    expected = [
        "InputValidationStage", "TextEncodingStage", "ImageVAEEncodingStage", "LatentPreparationStage",
        "TimestepPreparationStage", "DenoisingStage", "DecodingStage",
    ]  # fmt: skip
    for settings in (NATIVE, DIFFUSERS):
        result, _ = run(pipe, settings, edit_request(guidance_scale=1.0))
        assert expected == [stage.name for stage in result.stages]
        assert 2 == len(result.denoise_steps_ms)


def test_the_work_is_counted_with_both_halves_of_the_sequence(pipe):
    request = edit_request(encoded(picture(50, 50)))
    result, _ = run(pipe, NATIVE, request)
    text = 512 + 2 + 4  # the prompt, the marks around the image, and a half canvas of 56 x 56: 2 x 2 merged patches
    tokens = 2 * (112 // 16) ** 2 + text
    assert {"transformer_calls": 4, "transformer_tokens": 4 * tokens} == result.work


def test_one_timestep_tensor_serves_both_branches_and_the_scheduler_knows_where_it_begins(pipe, monkeypatch):
    seen = []
    forward = pipe.transformer.forward

    def watched(*args, **kwargs):
        seen.append((kwargs["timestep"], pipe.scheduler.begin_index))
        return forward(*args, **kwargs)

    monkeypatch.setattr(pipe.transformer, "forward", watched)
    run(pipe, NATIVE, edit_request())
    assert 4 == len(seen)
    assert seen[0][0] is seen[1][0]
    assert seen[2][0] is seen[3][0]
    assert [0] * 4 == [begin for _, begin in seen]


@pytest.fixture(scope="module")
def base_image(pipe):
    return run(pipe, NATIVE, edit_request(num_inference_steps=1))[0].image


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"seed": 43}, id="seed"),
        pytest.param({"prompt": "Make the cat wear a blue scarf."}, id="prompt"),
        pytest.param({"image": as_input(encoded(picture(seed=3)))}, id="image"),
        pytest.param({"guidance_scale": 1.0}, id="guidance"),
    ],
)
def test_the_picture_depends_on_everything_that_was_asked(pipe, base_image, changes):
    other, _ = run(pipe, NATIVE, edit_request(**{"num_inference_steps": 1, **changes}))
    pixels = [(image * 255).round() for image in (base_image, other.image)]
    assert 0.05 < np.mean(pixels[0] != pixels[1]), "a checkpoint that does not listen would hide faults"


FAULTS = {
    "no-image": (lambda: edit_request(image=None), "has no input image"),
    "no-canvas": (lambda: edit_request(canvas_pixels=80 * 80, image=None), "has no input image"),
    "long-prompt": (lambda: edit_request(prompt="cat " * 200), "800 tokens, and this model takes at most 512"),
    "long-negative": (lambda: edit_request(negative_prompt="\u732b" * 171), "513 tokens"),
    "image-token": (lambda: edit_request(prompt="a <|image_pad|> b"), "stands for the input image"),
    "renormalised": (lambda: edit_request(enable_cfg_renorm=True), "renormalised guidance"),
    "rewritten": (lambda: edit_request(enable_prompt_rewrite=True), "prompt rewriting"),
    "list-of-prompts": (lambda: edit_request(prompt=["a", "b"]), "one request takes one text"),
}


@pytest.mark.parametrize("settings", [NATIVE, DIFFUSERS], ids=["native", "diffusers"])
@pytest.mark.parametrize(("make", "said"), FAULTS.values(), ids=FAULTS)
def test_what_the_library_fails_on_is_a_sentence_on_both_backends(pipe, settings, make, said):
    with pytest.raises(UsageError, match=said):
        run(pipe, settings, make())


@pytest.mark.parametrize("settings", [NATIVE, DIFFUSERS], ids=["native", "diffusers"])
def test_a_prompt_of_exactly_512_tokens_runs(pipe, settings):
    request = edit_request(prompt="\u732b" * 170 + "ab", **ONE_FORWARD)
    result, _ = run(pipe, settings, request)
    assert 1 == result.work["transformer_calls"]


@pytest.mark.parametrize("settings", [NATIVE, DIFFUSERS], ids=["native", "diffusers"])
def test_a_size_that_is_not_the_canvas_is_refused(pipe, settings):
    with pytest.raises(FuseproofError, match=r"request is 96x96, but diffusers draws on 144x96 .* of 96x64"):
        run(pipe, settings, edit_request(width=96, height=96))


def test_another_pipeline_or_scheduler_is_no_native_editing(pipe):
    assert longcat_image_edit.reject_reason(pipe) is None
    assert "the pipeline is object" in longcat_image_edit.reject_reason(object())


def test_an_image_is_refused_by_a_text_to_image_pipeline(tiny_longcat_folder):
    other = load_pipeline(check_checkpoint(tiny_longcat_folder), dtype=torch.float32, device=CPU)
    for settings in (NATIVE, DIFFUSERS):
        with pytest.raises(UsageError, match="LongCatImagePipeline takes none"):
            run(other, settings, edit_request())
