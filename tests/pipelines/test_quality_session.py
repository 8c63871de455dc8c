"""Quality belongs to a request: what one request may change is gone in the next, and every change is said."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from fuseproof.errors import UsageError
from fuseproof.fastpaths.matmuls import linear_gelu
from fuseproof.fastpaths.sites import longcat_image as sites
from fuseproof.harness.media.files import array_sha256
from fuseproof.pipelines import longcat_image, longcat_image_edit
from fuseproof.pipelines.checkpoints import check_checkpoint
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.longcat_arithmetic import Branch
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import Session, SessionSettings
from tests.pipelines.short_prompts import SHORT_PROMPT_TOKENS, with_short_prompts

CPU = torch.device("cpu")
REQUEST = GenerationRequest(
    prompt="a red panda",
    negative_prompt=None,
    width=64,
    height=64,
    num_inference_steps=5,
    guidance_scale=4.5,
    seed=42,
    generator_device="cpu",
    enable_cfg_renorm=True,
    cfg_renorm_min=0.0,
    enable_prompt_rewrite=False,
    quality="lossless",
)
HIGH = replace(REQUEST, quality="high")
SKIPPED = "guidance was skipped in 1 of 5 steps, a rule of quality high: these bits are not those of lossless"
EXTRA_HIGH = replace(REQUEST, quality="extra-high")


@pytest.fixture(scope="module")
def pipe(tiny_longcat_folder):
    loaded = load_pipeline(check_checkpoint(tiny_longcat_folder), dtype=torch.float32, device=CPU)
    loaded.set_progress_bar_config(disable=True)
    return with_short_prompts(loaded)


def session(pipe, quality="high", **settings):
    return Session(pipe, SessionSettings(quality=quality, **settings), CPU, torch.float32, SILENT)


@pytest.fixture
def with_linear_gelu(monkeypatch):
    """``linear_gelu`` on this CPU, in fp32: the split output matrix rounds its partial sum, which moves bits."""

    def fused(x, weight, bias, out=None):
        result = F.gelu(F.linear(x, weight, bias), approximate="tanh")
        return result if out is None else out.copy_(result)

    real = sites.site_reasons
    monkeypatch.setattr(
        sites, "site_reasons", lambda model: {k: v for k, v in real(model).items() if k != "linear_gelu"}
    )
    monkeypatch.setattr(linear_gelu, "fused", fused)


def test_lossless_around_other_qualities_has_the_hashes_of_a_fresh_lossless_session(pipe, with_linear_gelu):
    with session(pipe, quality="lossless") as fresh:
        expected = array_sha256(fresh.run(REQUEST).image)
    with session(pipe) as mixed:
        results = [mixed.run(request) for request in (REQUEST, HIGH, REQUEST, EXTRA_HIGH, REQUEST)]
    hashes = [array_sha256(result.image) for result in results]
    assert [expected] * 3 == hashes[::2]
    assert 3 == len(set(hashes)), "high and extra-high differ, from lossless and from each other"


def test_the_warm_up_of_a_quality_decides_its_first_sights(pipe, with_linear_gelu):
    with session(pipe, quality="extra-high") as opened:
        opened.warm_up(EXTRA_HIGH, steps=2)
        opened.run(EXTRA_HIGH)
        report = opened.fastpaths_report()["sites"]["linear_gelu"]
        warnings = list(opened.warnings)
    assert "approximate" == report["state"]
    assert report["calls_fused"] == 2 * REQUEST.num_inference_steps * report["verified_keys"]
    assert not [text for text in warnings if "first sight" in text]
    assert ["approximate sites ran: linear_gelu: these bits are not those of lossless"] == warnings


@pytest.mark.parametrize(
    ("expected", "request_", "steps"),
    [(2, REQUEST, 1), (9, HIGH, 1), (9, HIGH, None), (8, replace(HIGH, num_inference_steps=4), None)],
    ids=["lossless", "high-lengthened", "high-whole", "high-without-a-skipped-step"],
)
def test_a_warm_up_meets_every_kind_of_step_that_the_request_has(pipe, expected, request_, steps):
    seen = []
    with session(pipe) as opened:
        handle = pipe.transformer.register_forward_pre_hook(lambda module, inputs: seen.append(1))
        try:
            opened.warm_up(request_, steps=steps)
        finally:
            handle.remove()
        assert opened.warmup_steps == (expected + 1) // 2
    assert expected == len(seen)


def test_diffusers_has_one_kind_of_step_and_needs_no_longer_warm_up(pipe):
    with session(pipe, backend="diffusers") as opened:
        opened.warm_up(HIGH, steps=1)
        assert 1 == opened.warmup_steps


def test_a_failing_request_ends_its_quality(pipe, with_linear_gelu, monkeypatch):
    with session(pipe) as opened:
        expected = array_sha256(opened.run(REQUEST).image)
        with monkeypatch.context() as patch:

            def fail(*args, **kwargs):
                raise RuntimeError("the decoder is gone")

            patch.setattr(pipe.vae, "decode", fail)
            with pytest.raises(RuntimeError, match="the decoder is gone"):
                opened.run(HIGH)
        assert expected == array_sha256(opened.run(REQUEST).image)


@pytest.mark.parametrize(
    ("calls", "skipped", "changes"),
    [
        (10, (), {}),
        (9, (4,), {"quality": "high"}),
        (10, (), {"quality": "extra-high"}),
        (5, (), {"quality": "high", "guidance_scale": 1.0}),
        (8, (), {"quality": "high", "num_inference_steps": 4}),
    ],
    ids=["lossless", "high", "extra-high", "high-unguided", "high-too-few-steps"],
)
def test_skipped_guidance_shows_in_the_work_counters(pipe, calls, skipped, changes):
    request = replace(REQUEST, **changes)
    with session(pipe) as opened:
        result = opened.run(request)
        assert skipped == opened.guidance_skipped_steps(request)
    tokens = SHORT_PROMPT_TOKENS + (64 // 16) ** 2
    assert {"transformer_calls": calls, "transformer_tokens": calls * tokens} == result.work
    assert request.num_inference_steps == len(result.denoise_steps_ms)


@pytest.mark.parametrize(
    ("expected", "request_", "settings"),
    [
        ([], REQUEST, {}),
        ([SKIPPED], HIGH, {}),
        ([SKIPPED], HIGH, {"fastpaths": "off"}),
        (
            ["quality extra-high: no approximate site ran, so these bits are those of lossless"],
            EXTRA_HIGH,
            {},
        ),
        (
            ["quality high: no approximate site ran, so these bits are those of lossless"],
            HIGH,
            {"backend": "diffusers"},
        ),
    ],
    ids=["lossless", "high", "high-without-fast-paths", "extra-high", "high-by-diffusers"],
)
def test_what_made_the_bits_other_than_lossless_is_said_once(pipe, expected, request_, settings):
    with session(pipe, **settings) as opened:
        for _ in range(2):
            opened.run(request_)
        assert expected == [text for text in opened.warnings if "first sight" not in text]


def test_diffusers_at_high_is_diffusers(pipe):
    with session(pipe, backend="diffusers") as opened:
        assert array_sha256(opened.run(REQUEST).image) == array_sha256(opened.run(HIGH).image)


def test_a_request_above_the_sessions_quality_is_refused(pipe):
    with session(pipe, quality="lossless") as opened, pytest.raises(UsageError, match="quality high is above lossless"):
        opened.run(HIGH)


class CountingTransformer:
    """Velocity 0; notes which branch each call was for."""

    def __init__(self):
        self.calls = []

    def cache_context(self, name):
        self.calls.append(name)
        return nullcontext()

    def __call__(self, hidden_states, **_):
        return (torch.zeros_like(hidden_states),)


@pytest.mark.parametrize("module", [longcat_image, longcat_image_edit], ids=["image", "edit"])
@pytest.mark.parametrize(
    ("expected", "quality"), [(["cond", "uncond"] * 4 + ["cond"], "high"), (["cond", "uncond"] * 5, "lossless")]
)
def test_both_loops_skip_the_unconditional_branch_of_the_last_steps(module, expected, quality):
    transformer, latents, branch = CountingTransformer(), torch.zeros(1, 4, 64), Branch(None, None)
    scheduler = SimpleNamespace(step=lambda velocity, t, sample, return_dict: (sample,), config=SimpleNamespace())
    pipe = SimpleNamespace(transformer=transformer, scheduler=scheduler)
    clock = SimpleNamespace(step_finished=lambda: None)
    context = torch.zeros(0, 3)
    if module is longcat_image_edit:
        context = longcat_image_edit.Conditioning(torch.zeros(1, 4, 64), context)
    request = replace(REQUEST, quality=quality, enable_cfg_renorm=False)
    module.denoise(pipe, request, latents, context, torch.linspace(900, 100, 5), branch, branch, clock)
    assert expected == transformer.calls
