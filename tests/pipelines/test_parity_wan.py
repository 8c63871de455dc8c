"""Wan: native == diffusers, bit for bit, from text and from an image; and what diffusers leaves unsaid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.configuration_utils import FrozenDict
from PIL import Image

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.fastpaths.interpreter_rounding import exact_rounding
from fuseproof.fastpaths.kernels.launching import is_interpreted
from fuseproof.fastpaths.sites import wan_transformer
from fuseproof.pipelines import session as session_module
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.conditioning import ConditioningImage
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import GenerationResult, Session, SessionSettings
from fuseproof.pipelines.wan import frames_made
from fuseproof.pipelines.wan_image import image_pipeline
from tests.fastpaths.fake_capture import FakeCapture
from tests.fastpaths.kernels.wan_transformer_models import norms_of_cuda

CPU = torch.device("cpu")
BASE = GenerationRequest(
    prompt="a red panda",
    negative_prompt=None,
    width=64,
    height=32,
    num_inference_steps=3,
    guidance_scale=5.0,
    seed=42,
    generator_device="cpu",
    enable_cfg_renorm=False,
    cfg_renorm_min=0.0,
    enable_prompt_rewrite=False,
    quality="lossless",
    num_frames=5,
)
STRIPES = np.add.outer(3 * np.arange(48), 2 * np.arange(96)) % 256
STRIPED = Image.fromarray(np.stack([STRIPES, 255 - STRIPES, STRIPES // 2], axis=-1).astype(np.uint8))
IMAGE = ConditioningImage(STRIPED, "0" * 64, 96, 48)
ONE_STEP: dict[str, Any] = {"num_inference_steps": 1}
CASES: dict[str, dict[str, Any]] = {
    "base": {},
    "unguided-five-steps": {"guidance_scale": 1.0, "num_inference_steps": 5},
    "negative-prompt": {"negative_prompt": "blurry, low quality", "num_inference_steps": 2},
    "one-frame": {"num_frames": 1, "width": 32, **ONE_STEP},
    "six-frames-become-five": {"num_frames": 6, **ONE_STEP},
    "four-frames-become-five": {"num_frames": 4, "height": 64, "width": 32, **ONE_STEP},
    "largest-seed-and-other-letters": {"seed": 2**64 - 1, "prompt": "красная панда &amp; 小熊猫", **ONE_STEP},
}
IMAGE_CASES: dict[str, dict[str, Any]] = {
    "image": {"image": IMAGE},
    "image-unguided-six-frames": {"image": IMAGE, "guidance_scale": 1.0, "num_frames": 6},
    "image-of-one-frame": {"image": IMAGE, "num_frames": 1, **ONE_STEP},
}
PARITY = [
    *[pytest.param("2.2", torch.float32, changes, id=f"2.2-{name}") for name, changes in (CASES | IMAGE_CASES).items()],
    *[pytest.param("2.1", torch.float32, CASES[name], id=f"2.1-{name}") for name in ("base", "six-frames-become-five")],
    pytest.param("2.1", torch.bfloat16, {"num_inference_steps": 2}, id="2.1-bf16"),
    pytest.param("2.2", torch.bfloat16, {"num_inference_steps": 2}, id="2.2-bf16"),
    pytest.param("2.2", torch.bfloat16, {"image": IMAGE, **ONE_STEP}, id="2.2-bf16-image"),
]


@pytest.fixture(scope="module")
def pipes(tiny_wan22_folder: Path, tiny_wan21_folder: Path) -> dict[tuple[str, torch.dtype], Any]:
    folders = {"2.2": tiny_wan22_folder, "2.1": tiny_wan21_folder}
    return {
        (name, dtype): load_pipeline(check_checkpoint(folder), dtype=dtype, device=CPU)
        for name, folder in folders.items()
        for dtype in (torch.float32, torch.bfloat16)
    }


@pytest.fixture
def pipe(pipes: dict[tuple[str, torch.dtype], Any]) -> Any:
    return pipes["2.2", torch.float32]


def run(pipe: Any, backend: str, request: GenerationRequest, dtype: torch.dtype = torch.float32) -> GenerationResult:
    with Session(pipe, SessionSettings(backend=backend), CPU, dtype, SILENT) as session:
        return session.run(request)


def warnings_of(pipe: Any, backend: str, request: GenerationRequest) -> list[str]:
    with Session(pipe, SessionSettings(backend=backend, fastpaths="off"), CPU, torch.float32, SILENT) as session:
        for _ in range(2):
            session.run(request)
        return session.warnings


@pytest.mark.parametrize(("name", "dtype", "changes"), PARITY)
def test_native_equals_diffusers_bit_for_bit(
    pipes: dict[tuple[str, torch.dtype], Any], name: str, dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    request, pipe = replace(BASE, **changes), pipes[name, dtype]
    reference, native = (run(pipe, backend, request, dtype) for backend in ("diffusers", "native"))
    assert (frames_made(request.num_frames or 0, 4), request.height, request.width, 3) == reference.image.shape
    assert np.isfinite(reference.image).all()
    assert reference.image.tobytes() == native.image.tobytes()
    assert reference.latents.tobytes() == native.latents.tobytes()
    assert "float32" == reference.latents_dtype == native.latents_dtype
    assert reference.work == native.work
    assert [stage.name for stage in reference.stages] == [stage.name for stage in native.stages]
    assert request.num_inference_steps == len(reference.denoise_steps_ms) == len(native.denoise_steps_ms)


@pytest.mark.parametrize("image", [None, IMAGE], ids=["text", "image"])
def test_both_equal_a_plain_call_of_the_pipeline(pipe: Any, image: ConditioningImage | None, monkeypatch: Any) -> None:
    plain = pipe
    if image is not None:
        from diffusers.pipelines.wan import pipeline_wan, pipeline_wan_i2v

        # Without the library ftfy, diffusers' image-to-video pipeline cannot clean a prompt; its sister can.
        monkeypatch.setattr(pipeline_wan_i2v, "prompt_clean", pipeline_wan.prompt_clean)
        plain = image_pipeline(pipe)
    frames = plain(
        prompt=BASE.prompt,
        **({} if image is None else {"image": image.pixels}),
        height=BASE.height,
        width=BASE.width,
        num_frames=BASE.num_frames,
        num_inference_steps=2,
        guidance_scale=BASE.guidance_scale,
        generator=torch.Generator("cpu").manual_seed(BASE.seed),
        output_type="np",
    ).frames[0]
    assert frames.tobytes() == run(pipe, "native", replace(BASE, image=image, num_inference_steps=2)).image.tobytes()


def test_a_vae_in_bf16_agrees_too(tiny_wan22_folder: Path) -> None:
    pipe = load_pipeline(check_checkpoint(tiny_wan22_folder), dtype=torch.bfloat16, device=CPU)
    pipe.vae.to(torch.bfloat16)
    request = replace(BASE, image=IMAGE, **ONE_STEP)
    reference, native = (run(pipe, backend, request, torch.bfloat16) for backend in ("diffusers", "native"))
    assert reference.image.tobytes() == native.image.tobytes()


def test_loading_keeps_in_fp32_what_the_published_model_has_there(pipes: dict[tuple[str, torch.dtype], Any]) -> None:
    pipe = pipes["2.2", torch.bfloat16]
    assert {torch.float32} == {parameter.dtype for parameter in pipe.vae.parameters()}
    assert {torch.bfloat16} == {parameter.dtype for parameter in pipe.text_encoder.parameters()}
    kept = {name for name, parameter in pipe.transformer.named_parameters() if parameter.dtype == torch.float32}
    assert {"scale_shift_table", "blocks.0.scale_shift_table", "blocks.0.norm2.weight"} <= kept
    assert torch.bfloat16 == pipe.transformer.dtype == pipe.transformer.blocks[0].attn1.to_q.weight.dtype


def test_the_stages_have_the_fields_names(pipe: Any) -> None:
    result = run(pipe, "native", replace(BASE, image=IMAGE, **ONE_STEP))
    assert [
        "InputValidationStage", "TextEncodingStage", "TimestepPreparationStage", "LatentPreparationStage",
        "ImageVAEEncodingStage", "DenoisingStage", "DecodingStage",
    ] == [stage.name for stage in result.stages]  # fmt: skip


@pytest.mark.parametrize(("expected", "scale"), [((2, 2 * 516), 5.0), ((1, 516), 1.0)], ids=["guided", "alone"])
def test_the_work_counts_patches_and_text_of_every_call(pipe: Any, expected: tuple[int, int], scale: float) -> None:
    work = run(pipe, "native", replace(BASE, guidance_scale=scale, **ONE_STEP)).work
    assert expected == (work["transformer_calls"], work["transformer_tokens"]), "2 frames of 1x2 patches, and 512"


def test_quality_high_ends_without_guidance(pipe: Any) -> None:
    request = replace(BASE, num_inference_steps=5, quality="high")
    with Session(pipe, SessionSettings(quality="high"), CPU, torch.float32, SILENT) as session:
        result = session.run(request)
        assert (4,) == session.guidance_skipped_steps(request)
    assert 9 == result.work["transformer_calls"]


@pytest.mark.parametrize(("expected", "steps"), [(3, 5), (2, 2)])
@pytest.mark.parametrize("backend", ["native", "diffusers"])
def test_a_warm_up_meets_every_kind_of_step(pipe: Any, expected: int, steps: int, backend: str) -> None:
    request = replace(BASE, num_inference_steps=steps, guidance_scale=1.0, num_frames=1, width=32)
    with Session(pipe, SessionSettings(backend=backend), CPU, torch.float32, SILENT) as session:
        session.warm_up(request, 1)
        assert expected == session.warmup_steps


def test_a_clip_begins_with_its_image_whatever_the_noise(pipe: Any) -> None:
    request = replace(BASE, image=IMAGE, **ONE_STEP)
    inverted = replace(IMAGE, pixels=Image.eval(IMAGE.pixels, lambda value: 255 - value))
    clip = run(pipe, "native", request).image
    other_noise = run(pipe, "native", replace(request, seed=43)).image
    other_image = run(pipe, "native", replace(request, image=inverted)).image
    assert clip[0].tobytes() == other_noise[0].tobytes(), (
        "the VAE is causal: its first frame is the first latent frame's"
    )
    assert 0.5 < np.mean(clip[1:] != other_noise[1:])
    assert 0.5 < np.mean(clip[0] != other_image[0])


# Other schedulers, and a fallback


def test_another_form_of_unipc_steps_by_itself_and_is_said_to(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "scheduler", type(pipe.scheduler).from_config(pipe.scheduler.config, solver_order=3))
    request = replace(BASE, num_inference_steps=4, guidance_scale=1.0)
    reference, native = (run(pipe, backend, request) for backend in ("diffusers", "native"))
    assert reference.image.tobytes() == native.image.tobytes()
    assert any("wait for the device" in text and "solver_order 3" in text for text in warnings_of(pipe, "native", BASE))


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("the native loop needs UniPCMultistepScheduler", {"scheduler": "euler"}),
        ("a second transformer", {"transformer_2": "same"}),
    ],
    ids=["scheduler", "two-transformers"],
)
def test_auto_falls_back_with_a_reason_and_native_never(
    pipe: Any, expected: str, changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    values = {"scheduler": FlowMatchEulerDiscreteScheduler(shift=5.0), "transformer_2": pipe.transformer}
    for name in changes:
        monkeypatch.setattr(pipe, name, values[name])
    with Session(pipe, SessionSettings(backend="auto"), CPU, torch.float32, SILENT) as session:
        assert ("diffusers", True) == (session.backend, expected in str(session.fallback_reason))
    with pytest.raises(FuseproofError, match=expected):
        Session(pipe, SessionSettings(backend="native"), CPU, torch.float32, SILENT)


# Refused, or said


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("height is 48; a multiple of 32", {"height": 48}),
        ("None frames", {"num_frames": None}),
        ("0 frames", {"num_frames": 0}),
        ("renormalised guidance", {"enable_cfg_renorm": True}),
        ("prompt rewriting", {"enable_prompt_rewrite": True}),
        ("a prompt enhancer", {"use_pe": True}),
        ("first two timesteps are both 999", {"image": IMAGE, "num_inference_steps": 500}),
    ],
    ids=["size", "no-frames", "zero-frames", "renormalisation", "rewriting", "enhancer", "steps-of-an-image"],
)
@pytest.mark.parametrize("backend", ["native", "diffusers"])
def test_what_the_pipeline_would_change_or_fail_on_is_refused(
    pipe: Any, expected: str, changes: dict[str, Any], backend: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        run(pipe, backend, replace(BASE, **changes))


def test_wan_21_takes_no_image(pipes: dict[tuple[str, torch.dtype], Any]) -> None:
    with pytest.raises(UsageError, match="makes clips from text alone"):
        run(pipes["2.1", torch.float32], "native", replace(BASE, image=IMAGE))


def test_a_scheduler_that_shifts_by_a_number_is_refused(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dynamic = type(pipe.scheduler).from_config(pipe.scheduler.config, use_dynamic_shifting=True)
    monkeypatch.setattr(pipe, "scheduler", dynamic)
    with pytest.raises(FuseproofError, match="use_dynamic_shifting"):
        run(pipe, "diffusers", BASE)


@pytest.mark.parametrize("shift", [1e6, 1e38])
def test_a_shift_whose_sigmas_cannot_be_told_apart_is_refused(
    pipe: Any, shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "scheduler", type(pipe.scheduler).from_config(pipe.scheduler.config, flow_shift=shift))
    with pytest.raises(FuseproofError, match=r"flow_shift .* sigmas of 3 steps do not fall"):
        run(pipe, "diffusers", BASE)


@pytest.mark.parametrize(
    ("expected", "part", "changes"),
    [
        ("has scale_factor_spatial 8; its blocks and patches scale by 16", "vae", {"scale_factor_spatial": 8}),
        ("has scale_factor_temporal 2; its blocks", "vae", {"scale_factor_temporal": 2}),
        ("2 latent frames, .* table ends at 1", "transformer", {"rope_max_seq_len": 1}),
    ],
    ids=["size", "length", "rotary-table"],
)
def test_a_model_that_contradicts_its_own_config_is_refused_before_it_runs(
    pipe: Any, expected: str, part: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = getattr(pipe, part)
    monkeypatch.setattr(module, "_internal_dict", FrozenDict({**module.config, **changes}))
    with pytest.raises(FuseproofError, match=expected):
        run(pipe, "native", BASE)


@pytest.mark.parametrize("backend", ["native", "diffusers"])
def test_a_clip_of_another_size_or_length_is_an_error(pipe: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = pipe.video_processor.postprocess_video
    request = replace(BASE, guidance_scale=1.0, **ONE_STEP)
    for change, seen in (
        (lambda clip: clip.repeat(2, axis=2), "5 frames of 64x64 pixels of 3"),
        (lambda clip: clip[:, :4], "4 frames of 64x32 pixels of 3"),
        (lambda clip: clip[..., :1], "5 frames of 64x32 pixels of 1"),
    ):
        monkeypatch.setattr(
            pipe.video_processor, "postprocess_video", lambda *a, change=change, **k: change(eager(*a, **k))
        )
        with pytest.raises(FuseproofError, match=f"decoded {seen} channels; 5 frames of 64x32 pixels of 3 channels"):
            run(pipe, backend, request)


@pytest.mark.parametrize("backend", ["native", "diffusers"])
def test_what_was_made_of_a_request_is_said_once(pipe: Any, backend: str) -> None:
    image = ConditioningImage(STRIPED.resize((40, 40)), "0" * 64, 40, 40)
    request = replace(BASE, num_frames=6, image=image, prompt=600 * "a", guidance_scale=1.0, **ONE_STEP)
    assert [
        "6 frames were asked for and 5 were made: a clip has 4n + 1, and diffusers rounds",
        "the input image is 40x40 and was scaled to 64x32, another aspect",
        "a prompt has 602 tokens and only its first 512 were used",
    ] == warnings_of(pipe, backend, request)


# CUDA graphs, recorded on the CPU


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCapture]:
    fake = FakeCapture()
    monkeypatch.setattr(session_module, "CudaCapture", lambda _device: fake)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: fake.is_recording)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.is_recording)
    yield fake


def test_one_graph_serves_text_and_image_and_every_step(pipe: Any, capture: FakeCapture) -> None:
    requests = [replace(BASE, image=image, num_inference_steps=2) for image in (None, IMAGE)]
    expected = [run(pipe, "native", request).image.tobytes() for request in requests]
    settings = SessionSettings(enable_breakable_cuda_graph=True, fastpaths="off")
    with Session(pipe, settings, CPU, torch.float32, SILENT) as session:
        session.warm_up(requests[0], 1)
        assert expected == [session.run(request).image.tobytes() for request in requests]
        report = session.graphs_report()
    assert (1, 8, 0) == tuple(report[name] for name in ("captured", "replayed", "missed"))


# Fast paths of the transformer

FAST = [
    pytest.param("2.2", torch.float32, {"num_inference_steps": 2}, id="2.2-guided"),
    pytest.param("2.2", torch.bfloat16, {"image": IMAGE, "num_inference_steps": 2}, id="2.2-bf16-image-guided"),
    pytest.param(
        "2.2", torch.float32, {"image": IMAGE, "num_inference_steps": 2, "guidance_scale": 1.0}, id="2.2-image"
    ),
    pytest.param("2.1", torch.bfloat16, {"num_inference_steps": 2, "guidance_scale": 1.0}, id="2.1-bf16"),
]


@pytest.mark.parametrize("backend", ["native", "diffusers"])
@pytest.mark.parametrize(("name", "dtype", "changes"), FAST)
def test_fast_paths_run_on_both_backends_and_keep_every_bit(
    pipes: dict[tuple[str, torch.dtype], Any], name: str, dtype: torch.dtype, changes: dict[str, Any], backend: str
) -> None:
    request, pipe = replace(BASE, **changes), pipes[name, dtype]
    reference = run(pipe, "diffusers", request, dtype)
    settings = SessionSettings(backend=backend, fastpaths="auto")
    with Session(pipe, settings, CPU, dtype, SILENT) as session:
        result, report = session.run(request), session.fastpaths_report()
    assert reference.image.tobytes() == result.image.tobytes(), report
    assert reference.latents.tobytes() == result.latents.tobytes()
    states = {site: found["state"] for site, found in report["sites"].items() if "CUDA" not in (found["reason"] or "")}
    told = "fused" if name == "2.2" else "not needed"
    held = dict.fromkeys(("text_keys_values", "rotary_grid", "video_blocks", "packed_qkv"), "fused")
    assert {**held, "timestep_rows": told} == states


def test_another_prompt_is_not_answered_with_the_one_before(pipe: Any) -> None:
    requests = [replace(BASE, prompt=prompt, **ONE_STEP) for prompt in ("a red panda", "a lighthouse", "a red panda")]
    expected = [run(pipe, "diffusers", request).image.tobytes() for request in requests]
    with Session(pipe, SessionSettings(), CPU, torch.float32, SILENT) as session:
        found = [session.run(request).image.tobytes() for request in requests]
    assert expected == found
    assert expected[0] != expected[1]


def test_a_native_loop_tells_the_tokens_apart_once_a_request(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fuseproof.fastpaths.sites.wan_transformer import timestep_rows

    looks, real = [], timestep_rows.tokens_of
    monkeypatch.setattr(
        timestep_rows, "tokens_of", lambda timesteps: (looks.append(len(timesteps)), real(timesteps))[1]
    )
    with Session(pipe, SessionSettings(), CPU, torch.float32, SILENT) as session:
        for image in (None, IMAGE):
            session.run(replace(BASE, image=image, num_inference_steps=2))
    assert [2, 2] == looks, "all steps together, before the loop"


def test_with_fast_paths_one_graph_serves_texts_and_another_images(pipe: Any, capture: FakeCapture) -> None:
    requests = [replace(BASE, image=image, num_inference_steps=2) for image in (None, IMAGE)]
    expected = [run(pipe, "diffusers", request).image.tobytes() for request in requests]
    with Session(pipe, SessionSettings(enable_breakable_cuda_graph=True), CPU, torch.float32, SILENT) as session:
        for request in requests:
            session.warm_up(request, 1)
        assert expected == [session.run(request).image.tobytes() for request in requests]
        report, sites = session.graphs_report(), session.fastpaths_report()["sites"]
    assert (2, 8, 0) == tuple(report[name] for name in ("captured", "replayed", "missed"))
    assert (8 * 2, 0) == (sites["video_blocks"]["calls_fused"], sites["video_blocks"]["calls_eager"])


@pytest.mark.skipif(not is_interpreted(), reason="kernels are compiled here, not interpreted")
def test_with_the_kernels_interpreted_and_norms_as_on_a_card_every_bit_stays(
    pipes: dict[tuple[str, torch.dtype], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the GELU: a CPU's tanh is another one than the card's."""
    pipe, request = pipes["2.2", torch.bfloat16], replace(BASE, image=IMAGE, num_inference_steps=2, guidance_scale=1.0)
    monkeypatch.setattr(wan_transformer, "site_reasons", lambda transformer: {})
    norms_of_cuda(monkeypatch)
    kernels = [site for site in wan_transformer.KERNELS_OF_SITE if site != "gelu_tanh"]
    settings = SessionSettings(fastpaths=",".join((*kernels, *wan_transformer.HOISTING_SITES, "packed_qkv")))
    reference = run(pipe, "diffusers", request, torch.bfloat16)
    with exact_rounding(), Session(pipe, settings, CPU, torch.bfloat16, SILENT) as session:
        result, sites = session.run(request), session.fastpaths_report()["sites"]
    assert reference.image.tobytes() == result.image.tobytes()
    assert dict.fromkeys(kernels, "fused") == {kernel: sites[kernel]["state"] for kernel in kernels}
