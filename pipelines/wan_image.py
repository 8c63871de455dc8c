"""Wan's first frame: an input image as the latents that a clip begins with (``expand_timesteps``, Wan 2.2 TI2V-5B).

The first latent frame is the image's own in every step, and its tokens are told timestep 0; the others are noise at the
step's. One pipeline object serves both kinds of request: diffusers has a second class for images
(``WanImageToVideoPipeline``, diffusers 0.42.1), which is made here around the same components.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.pipelines.requests import GenerationRequest

IMAGE_PIPELINE_CLASS = "WanImageToVideoPipeline"
COMPONENTS = ("tokenizer", "text_encoder", "vae", "scheduler", "transformer")


@dataclass(frozen=True)
class FirstFrame:
    """``kept`` [1, C, T, H, W] fp32 holds the image's latents in frame 0, zeros behind; ``mask`` [1, 1, T, H, W] is 0
    where they stand and 1 elsewhere.
    """

    kept: torch.Tensor
    mask: torch.Tensor

    def into(self, latents: torch.Tensor) -> torch.Tensor:
        """``latents`` [1, C, T, H, W] behind the image's frame."""
        return self.kept + self.mask * latents


def image_pipeline(pipe: Any) -> Any:
    """diffusers' image-to-video pipeline around the components of ``pipe``; nothing is copied or loaded."""
    from diffusers import WanImageToVideoPipeline

    components = {name: getattr(pipe, name) for name in COMPONENTS}
    return WanImageToVideoPipeline(**components, expand_timesteps=pipe.config.expand_timesteps)


def canvas_pixels(pipe: Any, request: GenerationRequest, device: torch.device) -> torch.Tensor:
    """The input image as [1, 3, height, width] fp32 in -1..1, scaled to the request's size whatever its aspect."""
    assert request.image is not None, "a request without an image has no first frame"
    pixels = pipe.video_processor.preprocess(request.image.pixels, height=request.height, width=request.width)
    scaled: torch.Tensor = pixels.to(device, dtype=torch.float32)
    return scaled


def encode_first_frame(pipe: Any, pixels: torch.Tensor, latents: torch.Tensor) -> FirstFrame:
    """``pixels`` [1, 3, H, W] through the VAE, the distribution's mode, normalised in the dtype of ``latents``."""
    vae = pipe.vae
    encoded = vae.encode(pixels.unsqueeze(2).to(dtype=vae.dtype)).latent_dist.mode()
    mean, inverse_std = latent_statistics(vae, latents)
    condition = (encoded.to(dtype=latents.dtype) - mean) * inverse_std
    mask = torch.ones(1, 1, *latents.shape[2:], dtype=latents.dtype, device=latents.device)
    mask[:, :, 0] = 0
    return FirstFrame((1 - mask) * condition, mask)


def latent_statistics(vae: Any, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of latents and one by their standard deviation, [1, C, 1, 1, 1], in the dtype and on the device of
    ``like``, where the division is done too.
    """
    shape = (1, vae.config.z_dim, 1, 1, 1)
    mean = torch.tensor(vae.config.latents_mean).view(shape).to(like.device, like.dtype)
    return mean, 1.0 / torch.tensor(vae.config.latents_std).view(shape).to(like.device, like.dtype)
