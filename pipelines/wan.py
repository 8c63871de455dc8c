"""Wan 2.1 and Wan 2.2 TI2V-5B, text or an image to video: the native pipeline.

Composed of diffusers' own components and helper methods (``WanPipeline`` and ``WanImageToVideoPipeline``, diffusers
0.42.1), with the denoising loop written out. Every expression keeps diffusers' order and dtypes, so that bits agree:

- two guidance branches are two forwards, of fp32 latents rounded to the transformer's dtype; guidance is computed in
  that dtype, and the latents stay fp32;
- Wan 2.2 TI2V-5B (``expand_timesteps``) tells each token its timestep, in fp32: the step's, and 0 in an image's frame
  (:mod:`fuseproof.pipelines.wan_image`); Wan 2.1 tells all of them one, as an integer;
- the scheduler's scalars are made before the loop, where they are the same bits
  (:mod:`fuseproof.pipelines.flow_unipc`); a scheduler of another form steps by itself, and a session says so;
- a number of frames that is not 4n + 1 becomes the one that diffusers' integer division gives.

The VAE computes in its own dtype: the released ones are fp32 (:attr:`fuseproof.pipelines.families.Family`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from diffusers.utils.torch_utils import randn_tensor

from fuseproof.fastpaths import Mount
from fuseproof.pipelines import flow_unipc, stages
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.guidance_schedule import unconditional_branches
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock
from fuseproof.pipelines.wan_image import (
    FirstFrame,
    canvas_pixels,
    encode_first_frame,
    latent_statistics,
)

PIPELINE_CLASS = "WanPipeline"
TEXT_TOKENS = 512
STEPS_OF_EVERY_KIND = flow_unipc.ORDER + 1
"""UniPC's first step looks nowhere back, its second predicts by two, and its third corrects by two."""


def reject_reason(pipe: Any) -> str | None:
    """Why the native loop would not be diffusers' own arithmetic on this pipeline; None if it is."""
    if type(pipe).__name__ != PIPELINE_CLASS:
        return f"the pipeline is {type(pipe).__name__}, the native loop reproduces {PIPELINE_CLASS}"
    if type(pipe.scheduler).__name__ != flow_unipc.UNIPC:
        return f"the scheduler is {type(pipe.scheduler).__name__}, the native loop needs {flow_unipc.UNIPC}"
    if pipe.transformer_2 is not None or pipe.config.boundary_ratio is not None:
        return "the pipeline has a second transformer, the native loop runs one"
    return None


def frames_made(num_frames: int, temporal_scale: int) -> int:
    """How many frames diffusers makes where ``num_frames`` are asked for: a multiple of the scale, and one."""
    if num_frames % temporal_scale != 1:
        num_frames = num_frames // temporal_scale * temporal_scale + 1
    return max(num_frames, 1)


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
        pipe.check_inputs(request.prompt, request.negative_prompt, request.height, request.width)
    with clock.stage(stages.TEXT_ENCODING):
        text, text_uncond = encode_texts(pipe, request, device)
    with clock.stage(stages.TIMESTEP_PREPARATION):
        timesteps, advance = prepare_steps(pipe.scheduler, request.num_inference_steps, device)
    pixels, first_frame = None, None
    with clock.stage(stages.LATENT_PREPARATION):
        if request.image is not None:
            pixels = canvas_pixels(pipe, request, device)
        latents = randn_tensor(latent_shape(pipe, request), generator=generator, device=device, dtype=torch.float32)
    if pixels is not None:
        with clock.stage(stages.IMAGE_VAE_ENCODING):
            first_frame = encode_first_frame(pipe, pixels, latents)
    with clock.stage(stages.DENOISING, total_steps=len(timesteps)):
        latents = denoise(pipe, request, latents, timesteps, advance, text, text_uncond, first_frame, clock, mounted)
    with clock.stage(stages.DECODING):
        video = decode(pipe, latents if first_frame is None else first_frame.into(latents))
    return Decoded(video, latents, None)


def encode_texts(
    pipe: Any, request: GenerationRequest, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Prompt and negative prompt, [1, 512, text channels] each in the transformer's dtype; None without guidance."""
    text, text_uncond = pipe.encode_prompt(
        prompt=request.prompt,
        negative_prompt=request.negative_prompt,
        do_classifier_free_guidance=request.is_guided,
        max_sequence_length=TEXT_TOKENS,
        device=device,
    )
    dtype = pipe.transformer.dtype
    return text.to(dtype), None if text_uncond is None else text_uncond.to(dtype)


Advance = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""The latents at the next sigma, from guided velocity, timestep and latents."""


def prepare_steps(scheduler: Any, num_inference_steps: int, device: torch.device) -> tuple[torch.Tensor, Advance]:
    """The schedule's integer timesteps [steps], and what takes the latents from one to the next."""
    scheduler.set_timesteps(num_inference_steps, device=device)
    scheduler.set_begin_index(0)
    timesteps: torch.Tensor = scheduler.timesteps
    if flow_unipc.reject_reason(scheduler) is not None:
        return timesteps, lambda velocity, t, latents: scheduler.step(velocity, t, latents, return_dict=False)[0]
    unipc = flow_unipc.FlowUniPC(scheduler, device)
    return timesteps, lambda velocity, _t, latents: unipc(velocity, latents)


def latent_shape(pipe: Any, request: GenerationRequest) -> tuple[int, int, int, int, int]:
    """[1, C, T, H, W] of the request's latents."""
    assert request.num_frames is not None, "a request for a clip says how many frames"
    frames = (frames_made(request.num_frames, pipe.vae_scale_factor_temporal) - 1) // pipe.vae_scale_factor_temporal + 1
    rows, columns = (side // pipe.vae_scale_factor_spatial for side in (request.height, request.width))
    return 1, pipe.transformer.config.in_channels, frames, rows, columns


def denoise(
    pipe: Any,
    request: GenerationRequest,
    latents: torch.Tensor,
    timesteps: torch.Tensor,
    advance: Advance,
    text: torch.Tensor,
    text_uncond: torch.Tensor | None,
    first_frame: FirstFrame | None,
    clock: StageClock,
    mounted: Mount | None = None,
) -> torch.Tensor:
    """The denoising loop over ``latents`` [1, C, T, H, W] fp32; returns them at sigma 0, as the last step left them."""
    transformer = pipe.transformer
    branches = unconditional_branches(text_uncond, len(timesteps), request.guidance_scale, request.quality)
    # Made before the loop, one tensor a step: mounted fast paths know the step by it, and may work ahead.
    model_timesteps = tell_timesteps(timesteps, latents, first_frame, is_told_by_token=pipe.config.expand_timesteps)
    if mounted is not None:
        mounted.announce_steps(model_timesteps)
    for t, timestep, uncond in zip(timesteps, model_timesteps, branches, strict=True):
        noisy = latents if first_frame is None else first_frame.into(latents)
        noisy = noisy.to(transformer.dtype)
        velocity = predict(transformer, "cond", noisy, timestep, text)
        if uncond is not None:
            velocity_uncond = predict(transformer, "uncond", noisy, timestep, uncond)
            velocity = velocity_uncond + request.guidance_scale * (velocity - velocity_uncond)
        latents = advance(velocity, t, latents)
        clock.step_finished()
    return latents


def tell_timesteps(
    timesteps: torch.Tensor, latents: torch.Tensor, first_frame: FirstFrame | None, *, is_told_by_token: bool
) -> list[torch.Tensor]:
    """What the transformer is told in each step: [1], or [1, tokens] fp32 with 0 for the tokens of an image."""
    if not is_told_by_token:
        return [t.expand(1) for t in timesteps]
    mask = torch.ones_like(latents[:, :1]) if first_frame is None else first_frame.mask
    tokens = mask[0, 0, :, ::2, ::2]
    return [(tokens * t).flatten().unsqueeze(0) for t in timesteps]


def predict(
    transformer: Any, branch_name: str, noisy: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor
) -> torch.Tensor:
    """One transformer forward of one guidance branch: the velocity, shaped like ``noisy``."""
    with transformer.cache_context(branch_name):
        velocity: torch.Tensor = transformer(
            hidden_states=noisy,
            timestep=timestep,
            encoder_hidden_states=text,
            return_dict=False,
        )[0]
    return velocity


def decode(pipe: Any, latents: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Latents [1, C, T, H, W] to frames [T', H', W', 3], fp32 in 0..1."""
    vae = pipe.vae
    latents = latents.to(dtype=vae.dtype)
    mean, inverse_std = latent_statistics(vae, latents)
    decoded = vae.decode(latents / inverse_std + mean, return_dict=False)[0]
    video: np.ndarray[Any, np.dtype[np.float32]] = pipe.video_processor.postprocess_video(decoded, output_type="np")[0]
    return video
