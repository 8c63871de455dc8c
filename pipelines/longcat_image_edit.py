"""LongCat-Image-Edit and its Turbo, an input image and a prompt to an image: the native pipeline.

Composed of diffusers' own components and helper methods (``LongCatImageEditPipeline``, diffusers 0.42.1), with the
denoising loop written out. What differs from text to image, each point kept in diffusers' order and dtypes:

- the canvas follows the input image: about ``request.canvas_pixels`` in the image's aspect, sides rounded up to 16;
- the text encoder sees the image too, at half the canvas, so a branch has 512 text tokens and the image's;
- the encoded image is a second half of the sequence: its latents follow the noisy ones in every forward, and the
  velocity of that half is cut off;
- its position ids are fp64, and so are the joint image ids;
- guidance is never renormalised.

Turbo is the same class with other weights; its 8 steps at guidance 1 are defaults of the family, not code here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers.pipelines.longcat_image.pipeline_longcat_image_edit import calculate_dimensions

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.fastpaths import Mount
from fuseproof.pipelines import stages
from fuseproof.pipelines.conditioning import ConditioningImage
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

PIPELINE_CLASS = "LongCatImageEditPipeline"


@dataclass(frozen=True)
class Fitted:
    """The input image on its canvas: ``prompt_image`` (Pillow, half size) for the text encoder, ``pixels``
    [1, 3, H, W] fp32 in -1..1 for the VAE.
    """

    prompt_image: Any
    pixels: torch.Tensor


@dataclass(frozen=True)
class Conditioning:
    """What every forward carries beside the noisy latents: the image's packed ``latents`` [1, image tokens, 64] and
    the position ids of both halves, [2 * image tokens, 3] fp64.
    """

    latents: torch.Tensor
    image_ids: torch.Tensor


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
        image = input_image(request)
        check_canvas(request, image, calculate_dimensions(request.canvas_pixels, image.width * 1.0 / image.height))
        pipe.check_inputs(request.prompt, request.height, request.width, negative_prompt=request.negative_prompt)
        fitted = fit(pipe.image_processor, image, request.width, request.height)
    with clock.stage(stages.TEXT_ENCODING):
        conditional = Branch(*pipe.encode_prompt(prompt=request.prompt, image=fitted.prompt_image))
        unconditional = None
        if request.guidance_scale > 1:
            negative_prompt = request.negative_prompt or ""
            unconditional = Branch(*pipe.encode_prompt(prompt=negative_prompt, image=fitted.prompt_image))
    with clock.stage(stages.IMAGE_VAE_ENCODING):
        pixels = fitted.pixels.to(device=pipe.device, dtype=conditional.prompt_embeds.dtype)
        encoded = pipe._encode_vae_image(image=pixels, generator=generator)
    with clock.stage(stages.LATENT_PREPARATION):
        latents, conditioning = prepare_latents(pipe, request, encoded, conditional, generator)
    with clock.stage(stages.TIMESTEP_PREPARATION):
        timesteps = prepare_timesteps(pipe.scheduler, request.num_inference_steps, latents.shape[1], device)
    with clock.stage(stages.DENOISING, total_steps=len(timesteps)):
        latents = denoise(pipe, request, latents, conditioning, timesteps, conditional, unconditional, clock, mounted)
    with clock.stage(stages.DECODING):
        decoded = decode(pipe, latents, request.height, request.width)
    return Decoded(decoded, latents, None)


def input_image(request: GenerationRequest) -> ConditioningImage:
    """The request's input image; diffusers fails on None with an attribute error, here it is a UsageError."""
    if request.image is None or request.canvas_pixels is None:
        raise UsageError(
            "The request has no input image, and this model edits one.", next_step="Give the image with --image-path."
        )
    return request.image


def check_canvas(request: GenerationRequest, image: ConditioningImage, canvas: tuple[int, int]) -> None:
    """Raise unless the request's size is the ``canvas`` (width, height) that diffusers fits its input image to."""
    if canvas != (request.width, request.height):
        raise FuseproofError(
            f"The request is {request.width}x{request.height}, but diffusers draws on {canvas[0]}x{canvas[1]} for an "
            f"input image of {image.width}x{image.height}.",
            next_step="Leave --width and --height to the input image.",
        )


def fit(image_processor: Any, image: ConditioningImage, width: int, height: int) -> Fitted:
    """Resize the input image to the canvas and to half of it, by diffusers' own image processor (Lanczos)."""
    resized = image_processor.resize(image.pixels, height, width)
    prompt_image = image_processor.resize(resized, height // 2, width // 2)
    return Fitted(prompt_image, image_processor.preprocess(resized, height, width))


def prepare_latents(
    pipe: Any, request: GenerationRequest, encoded: torch.Tensor, branch: Branch, generator: torch.Generator
) -> tuple[torch.Tensor, Conditioning]:
    """Noise [1, tokens, 64] and the packed image latents; ``encoded`` [1, 16, H/8, W/8] is taken as it is.

    Position ids start behind the text tokens of the conditional branch; the other branch has as many.
    """
    latents, image_latents, latents_ids, image_latents_ids = pipe.prepare_latents(
        encoded,
        1,
        LATENT_CHANNELS,
        request.height,
        request.width,
        branch.prompt_embeds.dtype,
        branch.prompt_embeds.shape[1],
        pipe._execution_device,
        generator,
    )
    return latents, Conditioning(image_latents, torch.cat([latents_ids, image_latents_ids], dim=0))


def denoise(
    pipe: Any,
    request: GenerationRequest,
    latents: torch.Tensor,
    conditioning: Conditioning,
    timesteps: torch.Tensor,
    conditional: Branch,
    unconditional: Branch | None,
    clock: StageClock,
    mounted: Mount | None = None,
) -> torch.Tensor:
    """The denoising loop over packed ``latents`` [1, tokens, 64]; returns them at sigma 0."""
    tokens, image_ids = latents.shape[1], conditioning.image_ids
    branches = unconditional_branches(unconditional, len(timesteps), request.guidance_scale, request.quality)
    advance = GuidedStep(pipe.scheduler, request, mounted)
    # One tensor for both branches: mounted fast paths know the step by it, and may work ahead.
    model_timesteps = [t.expand(latents.shape[0]).to(latents.dtype) / 1000 for t in timesteps]
    if mounted is not None:
        mounted.announce_steps(model_timesteps)
    for t, timestep, uncond in zip(timesteps, model_timesteps, branches, strict=True):
        joint = torch.cat([latents, conditioning.latents], dim=1)
        velocity = predict(pipe.transformer, "cond", joint, timestep, conditional, image_ids)[:, :tokens]
        velocity_uncond = None
        if uncond is not None:
            velocity_uncond = predict(pipe.transformer, "uncond", joint, timestep, uncond, image_ids)[:, :tokens]
        latents = advance(velocity, velocity_uncond, t, latents)
        clock.step_finished()
    return latents
