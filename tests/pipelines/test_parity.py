"""The promise: native == diffusers, bit for bit, in the raw image and the final latents, fast paths off and on."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import Session, SessionSettings
from tests.pipelines.short_prompts import SHORT_PROMPT_TOKENS

CPU = torch.device("cpu")
TWO_CONTRACTIONS = "a cat that can't sleep because it's raining, with a sign that says 'Open'"
BASE = GenerationRequest(
    prompt="a red panda",
    negative_prompt=None,
    width=64,
    height=64,
    num_inference_steps=3,
    guidance_scale=4.5,
    seed=42,
    generator_device="cpu",
    enable_cfg_renorm=True,
    cfg_renorm_min=0.0,
    enable_prompt_rewrite=False,
    quality="lossless",
)
FP32_CASES = {
    "base": {},
    "other-seed": {"seed": 7},
    "largest-seed": {"seed": 2**64 - 1},
    "wide": {"width": 176, "height": 48},
    "tall": {"width": 16, "height": 112},
    "one-step": {"num_inference_steps": 1},
    "eight-steps": {"num_inference_steps": 8},
    "no-guidance": {"guidance_scale": 1.0},
    "barely-guided": {"guidance_scale": 1.0001},
    "no-renorm": {"enable_cfg_renorm": False},
    "renorm-floor": {"cfg_renorm_min": 0.5},
    "negative-prompt": {"negative_prompt": "blurry"},
    "two-contractions": {"prompt": TWO_CONTRACTIONS},
    "emoji": {"prompt": "🐼 красная панда 小熊猫"},
    "longer-than-512-tokens": {"prompt": "panda " * 200},
}
BF16_CASES = {
    "bf16": {"num_inference_steps": 2},
    "bf16-no-guidance": {"num_inference_steps": 2, "guidance_scale": 1.0},
    "bf16-no-renorm": {"num_inference_steps": 2, "enable_cfg_renorm": False, "seed": 3},
}
PADDED_LIKE_A_RELEASE = {"base", "longer-than-512-tokens", "bf16-no-guidance"}
"""Cases with all 512 tokens; the others pad to 96, which is a fifth of the work."""
ARMS = {
    "native": SessionSettings(backend="native", fastpaths="off"),
    "native with fast paths": SessionSettings(backend="native", fastpaths="auto"),
    "diffusers with fast paths": SessionSettings(
        backend="diffusers", fastpaths="context_embedding,rotary_tables,timestep_embedding,modulation"
    ),
}


@pytest.fixture(scope="module")
def pipes(tiny_longcat_folder):
    checkpoint = check_checkpoint(tiny_longcat_folder)
    return {dtype: load_pipeline(checkpoint, dtype=dtype, device=CPU) for dtype in (torch.float32, torch.bfloat16)}


def run(pipe, settings, request, dtype):
    pipe.set_progress_bar_config(disable=True)
    with Session(pipe, settings, CPU, dtype, SILENT) as session:
        return session.run(request), session.fastpaths_report()


@pytest.mark.parametrize(
    ("dtype", "name", "changes"),
    [pytest.param(torch.float32, name, changes, id=name) for name, changes in FP32_CASES.items()]
    + [pytest.param(torch.bfloat16, name, changes, id=name) for name, changes in BF16_CASES.items()],
)
def test_native_equals_diffusers_bit_for_bit(pipes, monkeypatch, dtype, name, changes):
    if name not in PADDED_LIKE_A_RELEASE:
        monkeypatch.setattr(pipes[dtype], "tokenizer_max_length", SHORT_PROMPT_TOKENS)
    request = replace(BASE, **changes)
    reference, _ = run(pipes[dtype], SessionSettings(backend="diffusers"), request, dtype)
    assert reference.image.shape == (request.height, request.width, 3)
    assert np.isfinite(reference.image).all()
    for arm, settings in ARMS.items():
        result, report = run(pipes[dtype], settings, request, dtype)
        assert reference.image.tobytes() == result.image.tobytes(), f"{arm}: raw image differs"
        assert reference.latents.tobytes() == result.latents.tobytes(), f"{arm}: final latents differ"
        assert reference.work == result.work, f"{arm}: another amount of work"
        states = {site["state"] for site in report["sites"].values()}
        assert "rejected" not in states, report
        guided, stepped = request.guidance_scale > 1, request.num_inference_steps > 1
        if arm == "native with fast paths" and guided and stepped:
            eager = {site: entry["reason"] for site, entry in report["sites"].items() if entry["state"] != "fused"}
            assert all("need a CUDA device" in reason or "bfloat16" in reason for reason in eager.values()), eager
            assert {"context_embedding", "rotary_tables", "timestep_embedding", "modulation", "packed_blocks"} == (
                set(report["sites"]) - set(eager)
            ), f"{arm}: a fast path did not run: {report}"
        if arm == "diffusers with fast paths" and stepped:
            assert "fused" == report["sites"]["context_embedding"]["state"], report


def test_stages_carry_the_same_names_on_both_backends(pipes):
    names = {}
    for backend in ("native", "diffusers"):
        result, _ = run(pipes[torch.float32], SessionSettings(backend=backend), BASE, torch.float32)
        names[backend] = [stage.name for stage in result.stages]
        assert len(result.denoise_steps_ms) == BASE.num_inference_steps
        assert sum(result.denoise_steps_ms) == pytest.approx(
            next(stage.milliseconds for stage in result.stages if stage.name == "DenoisingStage"), rel=0.1
        )
        assert sum(stage.milliseconds for stage in result.stages) <= result.worker_ms
    expected = [
        "InputValidationStage", "TextEncodingStage", "LatentPreparationStage", "TimestepPreparationStage",
        "DenoisingStage", "DecodingStage",
    ]  # fmt: skip
    assert {"native": expected, "diffusers": expected} == names


def test_the_work_counters_count_forwards_and_tokens(pipes):
    result, _ = run(pipes[torch.float32], SessionSettings(), BASE, torch.float32)
    tokens = 512 + (64 // 16) ** 2
    assert {"transformer_calls": 6, "transformer_tokens": 6 * tokens} == result.work


def test_requests_in_one_session_do_not_influence_each_other(pipes, monkeypatch):
    pipe = pipes[torch.float32]
    monkeypatch.setattr(pipe, "tokenizer_max_length", SHORT_PROMPT_TOKENS)
    alone, _ = run(pipe, SessionSettings(), replace(BASE, prompt="a blue car"), torch.float32)
    with Session(pipe, SessionSettings(), CPU, torch.float32, SILENT) as session:
        session.warm_up(BASE, steps=1)
        session.run(BASE)
        after_another = session.run(replace(BASE, prompt="a blue car"))
    assert alone.image.tobytes() == after_another.image.tobytes()


def test_warm_ups_stay_out_of_the_counters_and_the_peaks(pipes):
    with Session(pipes[torch.float32], SessionSettings(), CPU, torch.float32, SILENT) as session:
        session.warm_up(BASE, steps=1)
        session.run(BASE)
        sites = session.fastpaths_report()["sites"]
        checkpoints = session.memory_checkpoints()
    assert (4, 2) == (sites["context_embedding"]["calls_fused"], sites["context_embedding"]["calls_eager"])
    assert (3, 3) == (sites["timestep_embedding"]["calls_fused"], sites["timestep_embedding"]["calls_eager"])
    assert sites["timestep_embedding"]["first_sight_ms"] > 0
    assert {"warmup_peak", "before_forward", "after_forward", "runtime_peak"} <= set(checkpoints)
    assert checkpoints["runtime_peak"]["peak_host_rss_mb"] == max(c["peak_host_rss_mb"] for c in checkpoints.values())


@pytest.mark.parametrize(
    ("expected", "prompt"),
    [
        pytest.param(["a prompt has 1200 tokens and only its first 512 were used"], "panda " * 200, id="too-long"),
        pytest.param([], "a red panda", id="short"),
    ],
)
@pytest.mark.parametrize("backend", ["native", "diffusers"])
def test_a_prompt_that_is_cut_is_said_to_be(pipes, backend, expected, prompt):
    settings = SessionSettings(backend=backend)
    with Session(pipes[torch.float32], settings, CPU, torch.float32, SILENT) as session:
        for _ in range(2):
            session.run(replace(BASE, prompt=prompt, num_inference_steps=1, guidance_scale=1.0))
        assert expected == [warning for warning in session.warnings if warning.startswith("a prompt")]
