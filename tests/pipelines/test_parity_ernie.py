"""ERNIE-Image: native == diffusers, bit for bit, its prompt enhancer included; and what diffusers leaves unsaid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines import session as session_module
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.conditioning import ConditioningImage
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import GenerationResult, Session, SessionSettings
from tests.fastpaths.fake_capture import FakeCapture

CPU = torch.device("cpu")
BASE = GenerationRequest(
    prompt="a red panda",
    negative_prompt=None,
    width=64,
    height=64,
    num_inference_steps=3,
    guidance_scale=4.0,
    seed=42,
    generator_device="cpu",
    enable_cfg_renorm=False,
    cfg_renorm_min=0.0,
    enable_prompt_rewrite=False,
    quality="lossless",
)
CASES: dict[str, dict[str, Any]] = {
    "base": {},
    "largest-seed": {"seed": 2**64 - 1},
    "wide": {"width": 176, "height": 48},
    "smallest": {"width": 16, "height": 16},
    "one-step": {"num_inference_steps": 1},
    "eight-steps-unguided": {"num_inference_steps": 8, "guidance_scale": 1.0},
    "barely-guided": {"guidance_scale": 1.0001},
    "negative-prompt-is-longer": {"negative_prompt": "blurry, low quality, and cut off"},
    "emoji": {"prompt": "🐼 красная панда 小熊猫"},
    "enhanced": {"use_pe": True},
    "enhanced-greedily-unguided": {"use_pe": True, "pe_sampling": "greedy", "guidance_scale": 1.0},
}
BF16_CASES: dict[str, dict[str, Any]] = {
    "bf16": {"num_inference_steps": 2},
    "bf16-enhanced-unguided": {"num_inference_steps": 2, "guidance_scale": 1.0, "use_pe": True},
}


@pytest.fixture(scope="module")
def pipes(tiny_ernie_folder: Path) -> dict[torch.dtype, Any]:
    checkpoint = check_checkpoint(tiny_ernie_folder)
    return {
        dtype: load_pipeline(checkpoint, dtype=dtype, device=CPU, with_prompt_enhancer=True)
        for dtype in (torch.float32, torch.bfloat16)
    }


@pytest.fixture
def pipe(pipes: dict[torch.dtype, Any]) -> Any:
    return pipes[torch.float32]


def run(pipe: Any, backend: str, request: GenerationRequest, dtype: torch.dtype = torch.float32) -> GenerationResult:
    with Session(pipe, SessionSettings(backend=backend, fastpaths="off"), CPU, dtype, SILENT) as session:
        return session.run(request)


@pytest.mark.parametrize(
    ("dtype", "changes"),
    [pytest.param(torch.float32, changes, id=name) for name, changes in CASES.items()]
    + [pytest.param(torch.bfloat16, changes, id=name) for name, changes in BF16_CASES.items()],
)
def test_native_equals_diffusers_bit_for_bit(
    pipes: dict[torch.dtype, Any], dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    request = replace(BASE, **changes)
    reference, native = (run(pipes[dtype], backend, request, dtype) for backend in ("diffusers", "native"))
    assert (request.height, request.width, 3) == reference.image.shape
    assert np.isfinite(reference.image).all()
    assert reference.image.tobytes() == native.image.tobytes()
    assert reference.latents.tobytes() == native.latents.tobytes()
    assert reference.work == native.work
    assert reference.rewritten_prompt == native.rewritten_prompt
    assert request.use_pe == bool(native.rewritten_prompt)
    assert [stage.name for stage in reference.stages] == [stage.name for stage in native.stages]
    assert request.num_inference_steps == len(reference.denoise_steps_ms) == len(native.denoise_steps_ms)
    for backend in ("diffusers", "native"):
        with Session(pipes[dtype], SessionSettings(backend=backend, fastpaths="auto"), CPU, dtype, SILENT) as session:
            result, report = session.run(request), session.fastpaths_report()
        assert reference.image.tobytes() == result.image.tobytes(), f"{backend} with fast paths: {report}"
        assert reference.latents.tobytes() == result.latents.tobytes()
        states = {name: site["state"] for name, site in report["sites"].items()}
        # A product over one row of the picture may round otherwise than over all rows: its gate may say so.
        may_be_rejected = {"image_rows"} if request.width == request.height == 16 else set()
        assert {name for name, state in states.items() if state == "rejected"} <= may_be_rejected, report
        assert "fused" == states["stream_blocks"], report
        for held in ("text_projection", "rotary_angles"):
            assert ("fused" if request.num_inference_steps > 1 else "not needed") == states[held], report


@pytest.mark.parametrize("use_pe", [False, True], ids=["as-it-is", "enhanced"])
def test_both_equal_a_plain_call_of_the_pipeline(pipe: Any, use_pe: bool) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(BASE.seed)  # what the enhancer draws from
        plain = pipe(
            BASE.prompt,
            height=BASE.height,
            width=BASE.width,
            num_inference_steps=BASE.num_inference_steps,
            guidance_scale=BASE.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(BASE.seed),
            output_type="np",
            use_pe=use_pe,
        )
    result = run(pipe, "native", replace(BASE, use_pe=use_pe))
    assert plain.images[0].tobytes() == result.image.tobytes()
    assert plain.revised_prompts == ([result.rewritten_prompt] if use_pe else None)


def test_the_stages_have_the_fields_names(pipe: Any) -> None:
    names = [stage.name for stage in run(pipe, "native", replace(BASE, use_pe=True)).stages]
    assert [
        "PromptEnhancementStage", "TextEncodingStage", "LatentPreparationStage", "TimestepPreparationStage",
        "DenoisingStage", "DecodingStage",
    ] == names  # fmt: skip


@pytest.mark.parametrize(("expected", "scale"), [((3, 3 * 2 * 28), 4.0), ((3, 3 * 28), 1.0)], ids=["guided", "alone"])
def test_the_work_counts_both_branches_of_one_call(pipe: Any, expected: tuple[int, int], scale: float) -> None:
    work = run(pipe, "native", replace(BASE, guidance_scale=scale)).work
    assert expected == (work["transformer_calls"], work["transformer_tokens"]), "16 of the picture and 12 of the text"


def test_quality_high_ends_without_guidance_in_calls_of_one_sample(pipe: Any) -> None:
    settings = SessionSettings(quality="high")
    request = replace(BASE, num_inference_steps=5, quality="high")
    with Session(pipe, settings, CPU, torch.float32, SILENT) as session:
        result = session.run(request)
        assert (4,) == session.guidance_skipped_steps(request)
    assert {"transformer_calls": 5, "transformer_tokens": 4 * 2 * 28 + 28} == result.work


# The prompt enhancer


def test_an_enhanced_text_repeats_by_its_seed_and_leaves_the_callers_generator_alone(pipe: Any) -> None:
    state = torch.random.get_rng_state()
    texts = [run(pipe, "native", replace(BASE, use_pe=True, seed=seed)).rewritten_prompt for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_small_enhancer_writes_another_text_for_another_prompt(pipe: Any) -> None:
    prompts = ("a red panda", "a blue whale", "a cat on a mat", "a red pandb")
    short = replace(BASE, width=16, height=16, num_inference_steps=1, use_pe=True, guidance_scale=1.0)
    assert 4 == len({run(pipe, "native", replace(short, prompt=prompt)).rewritten_prompt for prompt in prompts})


@pytest.mark.parametrize("backend", ["native", "diffusers"])
def test_a_fixed_prompt_draws_what_the_enhancer_wrote(pipe: Any, backend: str) -> None:
    enhanced = run(pipe, "native", replace(BASE, use_pe=True))
    fixed = run(pipe, backend, replace(BASE, fixed_prompt=enhanced.rewritten_prompt))
    assert enhanced.image.tobytes() == fixed.image.tobytes()
    assert enhanced.rewritten_prompt == fixed.rewritten_prompt
    assert "PromptEnhancementStage" not in [stage.name for stage in fixed.stages]


def test_without_an_enhancer_nothing_is_drawn_in_its_place(tiny_ernie_folder: Path) -> None:
    bare = load_pipeline(check_checkpoint(tiny_ernie_folder), dtype=torch.float32, device=CPU)
    assert (None, None) == (bare.pe, bare.pe_tokenizer)
    for backend in ("native", "diffusers"):
        with pytest.raises(UsageError, match="this pipeline has no pe and no pe_tokenizer"):
            run(bare, backend, replace(BASE, use_pe=True))


def test_an_enhancer_without_its_template_is_one_sentence(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe.pe_tokenizer, "chat_template", None)
    with pytest.raises(FuseproofError, match="has no chat template"):
        run(pipe, "native", replace(BASE, use_pe=True))


# Refused, or said


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        ("height is 72; a multiple of 16", {"height": 72}),
        ("renormalised guidance", {"enable_cfg_renorm": True}),
        ("prompt rewriting", {"enable_prompt_rewrite": True}),
        ("ErnieImagePipeline takes none", {"image": ConditioningImage(Image.new("RGB", (8, 8)), "0" * 64, 8, 8)}),
    ],
    ids=["size", "renormalisation", "rewriting", "image"],
)
def test_what_the_pipeline_would_ignore_is_refused(pipe: Any, expected: str, changes: dict[str, Any]) -> None:
    for backend in ("native", "diffusers"):
        with pytest.raises(UsageError, match=expected):
            run(pipe, backend, replace(BASE, **changes))


def test_a_scheduler_that_shifts_by_tokens_is_refused(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dynamic = type(pipe.scheduler).from_config(pipe.scheduler.config, use_dynamic_shifting=True)
    monkeypatch.setattr(pipe, "scheduler", dynamic)
    with pytest.raises(FuseproofError, match="use_dynamic_shifting"):
        run(pipe, "diffusers", BASE)


def test_a_text_that_the_tokenizer_cuts_is_said_to_be(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe.tokenizer, "model_max_length", 8)
    request = replace(BASE, negative_prompt="blurry and dark", num_inference_steps=1)
    with Session(pipe, SessionSettings(fastpaths="off"), CPU, torch.float32, SILENT) as session:
        for _ in range(2):
            session.run(request)
        assert [
            "a prompt has 12 tokens and only its first 8 were used",
            "a negative prompt has 16 tokens and only its first 8 were used",
        ] == session.warnings


# CUDA graphs, recorded on the CPU


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCapture]:
    fake = FakeCapture()
    monkeypatch.setattr(session_module, "CudaCapture", lambda _device: fake)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: fake.is_recording)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: fake.is_recording)
    yield fake


def test_the_whole_forward_is_one_graph_for_each_length_of_text(pipe: Any, capture: FakeCapture) -> None:
    longer = replace(BASE, prompt="a red panda on a bench")
    expected = [run(pipe, "native", request).image.tobytes() for request in (BASE, longer)]
    settings = SessionSettings(enable_breakable_cuda_graph=True, fastpaths="off")
    with Session(pipe, settings, CPU, torch.float32, SILENT) as session:
        for request in (BASE, longer):
            session.warm_up(request, 1)
        assert expected == [session.run(request).image.tobytes() for request in (BASE, longer)]
        report = session.graphs_report()
    assert (2, 6, 0) == tuple(report[name] for name in ("captured", "replayed", "missed"))
