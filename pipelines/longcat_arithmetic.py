"""The arithmetic that LongCat's pipelines share: one diffusers expression a function, its order and dtypes kept.

Taken from ``LongCatImagePipeline`` and ``LongCatImageEditPipeline`` (diffusers 0.42.1), which agree in all of it:

- two guidance branches are two forwards; a batch of two rounds differently;
- renormalisation takes norms over the last dimension of packed latents, ``eps`` 1e-8 outside the norm. Editing has
  none: its requests say ``enable_cfg_renorm=False``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from diffusers.pipelines.longcat_image.pipeline_longcat_image import calculate_shift, retrieve_timesteps

from fuseproof.pipelines.requests import GenerationRequest

LATENT_CHANNELS = 16
RENORM_EPS = 1e-8


@dataclass(frozen=True)
class Branch:
    """One guidance branch: embedded text [1, text tokens, 3584] and its position ids [text tokens, 3]."""

    prompt_embeds: torch.Tensor
    text_ids: torch.Tensor


def reject_reason_of(pipe: Any, pipeline_class: str) -> str | None:
    """Why a native loop for ``pipeline_class`` would not be diffusers' own arithmetic on ``pipe``; None if it is."""
    if type(pipe).__name__ != pipeline_class:
        return f"the pipeline is {type(pipe).__name__}, the native loop reproduces {pipeline_class}"
    if type(pipe.scheduler).__name__ != "FlowMatchEulerDiscreteScheduler":
        return (
            f"the scheduler is {type(pipe.scheduler).__name__}, the native loop needs FlowMatchEulerDiscreteScheduler"
        )
    return None


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
