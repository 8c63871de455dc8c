"""LongCat-Image, text to image: the native pipeline.

Composed of diffusers' own components and helper methods (``LongCatImagePipeline``, diffusers 0.42.1), with the
denoising loop written out. Every expression in the loop keeps diffusers' order and dtypes, so that the bits agree:

- the timestep goes through the latents' dtype: ``t.to(bf16) / 1000`` here, ``* 1000`` in the transformer;
- the two guidance branches are two forwards; a batch of two rounds differently;
- renormalisation takes norms over the last dimension of packed latents, ``eps`` 1e-8 outside the norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.longcat_image.pipeline_longcat_image import calculate_shift, retrieve_timesteps

from fuseproof.pipelines import stages
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock

LIBRARY_LOGGER = calculate_shift.__module__
LATENT_CHANNELS = 16
RENORM_EPS = 1e-8


@dataclass(frozen=True)
class Decoded:
    """What a pipeline hands back: ``image`` [H, W, 3] fp32 in 0..1, ``latents`` [1, tokens, 64] as denoised."""

    image: np.ndarray[Any, np.dtype[np.float32]]
    latents: torch.Tensor
    rewritten_prompt: str | None


@dataclass(frozen=True)
class Branch:
    """One guidance branch: embedded text [1, 512, 3584] and its position ids [512, 3]."""

    prompt_embeds: torch.Tensor
    text_ids: torch.Tensor


def reject_reason(pipe: Any) -> str | None:
    """Why the native loop would not be diffusers' own arithmetic on this pipeline; None if it is."""
    if type(pipe).__name__ != "LongCatImagePipeline":
        return f"the pipeline is {type(pipe).__name__}, the native loop reproduces LongCatImagePipeline"
    if type(pipe.scheduler).__name__ != "FlowMatchEulerDiscreteScheduler":
        return (
            f"the scheduler is {type(pipe.scheduler).__name__}, the native loop needs FlowMatchEulerDiscreteScheduler"
        )
    return None


@torch.no_grad()
def generate(pipe: Any, request: GenerationRequest, generator: torch.Generator, clock: StageClock) -> Decoded:
    """Run one request through the native stages; bit-identical to ``pipe(...)`` with the same arguments."""
    device = pipe._execution_device
    with clock.stage(stages.INPUT_VALIDATION):
        pipe.check_inputs(request.prompt, request.height, request.width, negative_prompt=request.negative_prompt)
    prompt, rewritten = request.prompt, None
    if request.enable_prompt_rewrite:
        with clock.stage(stages.PROMPT_REWRITE):
            prompt = rewritten = pipe.rewire_prompt(request.prompt, device)[0]
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
        latents = denoise(pipe, request, latents, image_ids, timesteps, conditional, unconditional, clock)
    with clock.stage(stages.DECODING):
        image = decode(pipe, latents, request.height, request.width)
    return Decoded(image, latents, rewritten)


def prepare_timesteps(scheduler: Any, num_inference_steps: int, tokens: int, device: torch.device) -> torch.Tensor:
    """The schedule, sigmas linear from 1 to 1/n, shifted by the number of image ``tokens``. No sync at step 0."""
    config = scheduler.config
    mu = calculate_shift(
        tokens,
        config.get("base_image_seq_len", 256),
        config.get("max_image_seq_len", 4096),
        config.get("base_shift", 0.5),
        config.get("max_shift", 1.15),
    )
    sigmas = np.linspace(1.0, 1.0 / num_inference_steps, num_inference_steps)
    timesteps: torch.Tensor
    timesteps, _ = retrieve_timesteps(scheduler, num_inference_steps, device, sigmas=sigmas, mu=mu)
    scheduler.set_begin_index(0)
    return timesteps


def denoise(
    pipe: Any,
    request: GenerationRequest,
    latents: torch.Tensor,
    image_ids: torch.Tensor,
    timesteps: torch.Tensor,
    conditional: Branch,
    unconditional: Branch | None,
    clock: StageClock,
) -> torch.Tensor:
    """The denoising loop over packed ``latents`` [1, tokens, 64]; returns them at sigma 0."""
    for t in timesteps:
        # One tensor for both branches: mounted fast paths know the step by it.
        timestep = t.expand(latents.shape[0]).to(latents.dtype) / 1000
        velocity = predict(pipe.transformer, "cond", latents, timestep, conditional, image_ids)
        if unconditional is not None:
            velocity_uncond = predict(pipe.transformer, "uncond", latents, timestep, unconditional, image_ids)
            velocity = guide(velocity, velocity_uncond, request)
        latents = pipe.scheduler.step(velocity, t, latents, return_dict=False)[0]
        clock.step_finished()
    return latents


def predict(
    transformer: Any,
    branch_name: str,
    latents: torch.Tensor,
    timestep: torch.Tensor,
    branch: Branch,
    image_ids: torch.Tensor,
) -> torch.Tensor:
    """One transformer forward of one guidance branch: the velocity, shaped like ``latents``."""
    with transformer.cache_context(branch_name):
        velocity: torch.Tensor = transformer(
            hidden_states=latents,
            timestep=timestep,
            guidance=None,
            encoder_hidden_states=branch.prompt_embeds,
            txt_ids=branch.text_ids,
            img_ids=image_ids,
            return_dict=False,
        )[0]
    return velocity


def guide(velocity: torch.Tensor, velocity_uncond: torch.Tensor, request: GenerationRequest) -> torch.Tensor:
    """Classifier-free guidance, with the norm pulled back to the conditional one where renormalisation is on."""
    guided = velocity_uncond + request.guidance_scale * (velocity - velocity_uncond)
    if not request.enable_cfg_renorm:
        return guided
    conditional_norm = torch.norm(velocity, dim=-1, keepdim=True)
    guided_norm = torch.norm(guided, dim=-1, keepdim=True)
    scale = (conditional_norm / (guided_norm + RENORM_EPS)).clamp(min=request.cfg_renorm_min, max=1.0)
    return guided * scale


def decode(pipe: Any, latents: torch.Tensor, height: int, width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Packed latents to an image [H, W, 3], fp32 in 0..1."""
    unpacked = pipe._unpack_latents(latents, height, width, pipe.vae_scale_factor)
    unpacked = (unpacked / pipe.vae.config.scaling_factor) + pipe.vae.config.shift_factor
    decoded = pipe.vae.decode(unpacked.to(dtype=pipe.vae.dtype), return_dict=False)[0]
    image: np.ndarray[Any, np.dtype[np.float32]] = pipe.image_processor.postprocess(decoded, output_type="np")[0]
    return image
