"""LongCat-Image, text to image: the native pipeline.

Composed of diffusers' own components and helper methods (``LongCatImagePipeline``, diffusers 0.42.1), with the
denoising loop written out. Every expression in the loop keeps diffusers' order and dtypes, so that the bits agree:

- the timestep goes through the latents' dtype: ``t.to(bf16) / 1000`` here, ``* 1000`` in the transformer;
- what editing does in the same way stands in :mod:`fuseproof.pipelines.longcat_arithmetic`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers.pipelines.longcat_image.pipeline_longcat_image import calculate_shift

from fuseproof.fastpaths import Mount
from fuseproof.pipelines import stages
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.guidance_schedule import unconditional_branches
from fuseproof.pipelines.guided_step import GuidedStep
from fuseproof.pipelines.longcat_arithmetic import (
    LATENT_CHANNELS,
    Branch,
    decode,
    predict,
    prepare_timesteps,
    reject_reason_of,
)
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock
from fuseproof.pipelines.written_texts import text_written_by

PIPELINE_CLASS = "LongCatImagePipeline"
LIBRARY_LOGGER = calculate_shift.__module__


def reject_reason(pipe: Any) -> str | None:
    """Why the native loop would not be diffusers' own arithmetic on this pipeline; None if it is."""
    return reject_reason_of(pipe, PIPELINE_CLASS)


@torch.no_grad()
def generate(
    pipe: Any,
    request: GenerationRequest,
    generator: torch.Generator,
    clock: StageClock,
    mounted: Mount | None = None,
) -> Decoded:
    """Run one request through the native stages; bit-identical to ``pipe(...)`` with the same arguments."""
    device = pipe._execution_device
    with clock.stage(stages.INPUT_VALIDATION):
        pipe.check_inputs(request.prompt, request.height, request.width, negative_prompt=request.negative_prompt)
    prompt, rewritten = request.prompt, None
    if request.enable_prompt_rewrite:
        with clock.stage(stages.PROMPT_REWRITE):
            prompt = rewritten = rewrite(lambda: pipe.rewire_prompt(request.prompt, device), request.prompt)[0]
    with clock.stage(stages.TEXT_ENCODING):
        conditional = Branch(*pipe.encode_prompt(prompt=prompt))
        unconditional = None
        if request.guidance_scale > 1:
            unconditional = Branch(*pipe.encode_prompt(prompt=request.negative_prompt or ""))
    with clock.stage(stages.LATENT_PREPARATION):
        latents, image_ids = pipe.prepare_latents(
            1, LATENT_CHANNELS, request.height, request.width, conditional.prompt_embeds.dtype, device, generator
        )
    with clock.stage(stages.TIMESTEP_PREPARATION):
        timesteps = prepare_timesteps(pipe.scheduler, request.num_inference_steps, latents.shape[1], device)
    with clock.stage(stages.DENOISING, total_steps=len(timesteps)):
        latents = denoise(pipe, request, latents, image_ids, timesteps, conditional, unconditional, clock, mounted)
    with clock.stage(stages.DECODING):
        image = decode(pipe, latents, request.height, request.width)
    return Decoded(image, latents, rewritten)


def rewrite(write: Callable[[], list[str]], prompt: str) -> list[str]:
    """The one text that the pipeline's ``rewire_prompt``, called by ``write``, makes of ``prompt``; no empty one."""
    return [text_written_by("prompt rewriter", "--enable-prompt-rewrite", prompt, lambda: write()[0])]


def denoise(
    pipe: Any,
    request: GenerationRequest,
    latents: torch.Tensor,
    image_ids: torch.Tensor,
    timesteps: torch.Tensor,
    conditional: Branch,
    unconditional: Branch | None,
    clock: StageClock,
    mounted: Mount | None = None,
) -> torch.Tensor:
    """The denoising loop over packed ``latents`` [1, tokens, 64]; returns them at sigma 0."""
    branches = unconditional_branches(unconditional, len(timesteps), request.guidance_scale, request.quality)
    advance = GuidedStep(pipe.scheduler, request, mounted)
    # One tensor for both branches: mounted fast paths know the step by it, and may work ahead.
    model_timesteps = [t.expand(latents.shape[0]).to(latents.dtype) / 1000 for t in timesteps]
    if mounted is not None:
        mounted.announce_steps(model_timesteps)
    for t, timestep, uncond in zip(timesteps, model_timesteps, branches, strict=True):
        velocity = predict(pipe.transformer, "cond", latents, timestep, conditional, image_ids)
        velocity_uncond = None
        if uncond is not None:
            velocity_uncond = predict(pipe.transformer, "uncond", latents, timestep, uncond, image_ids)
        latents = advance(velocity, velocity_uncond, t, latents)
        clock.step_finished()
    return latents
