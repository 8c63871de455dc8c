"""ERNIE-Image and its Turbo, text to image: the native pipeline.

Composed of diffusers' own components and helper methods (``ErnieImagePipeline``, diffusers 0.42.1), with the denoising
loop written out. Every expression keeps diffusers' order and dtypes, so that the bits agree:

- both guidance branches are one forward of two samples, the unconditional one first; the shorter text is padded with
  zeros to the longer one, and masked;
- a timestep is rounded to the model's dtype. diffusers takes it through the host, ``t.item()``, in every step; here it
  stays on the device, which is the same rounding without the wait;
- sigmas are linear from 1 to 1/n and shifted by the scheduler's own constant, not by the number of tokens;
- latents leave the transformer's space by the VAE's batch-norm statistics, with an epsilon of 1e-5 whatever its config
  says, and only then become 32 channels at twice the size.

The prompt enhancer draws from torch's global generator in diffusers, so two runs write two texts. Here, on both
backends, that generator is seeded with the request's seed while it writes, and put back after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from diffusers.utils.torch_utils import randn_tensor

from fuseproof.fastpaths import Mount
from fuseproof.pipelines import stages
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.guidance_schedule import unconditional_branches
from fuseproof.pipelines.guided_step import EULER, GuidedStep
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock
from fuseproof.pipelines.written_texts import text_written_by

PIPELINE_CLASS = "ErnieImagePipeline"
BATCH_NORM_EPS = 1e-5
ENHANCER_ARGUMENTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {"seeded": {}, "greedy": {"temperature": 1.0, "top_p": 1.0}}
)
"""What the enhancer is called with: diffusers' defaults (0.6 and 0.95), or both 1, which means "do not sample"."""


@dataclass(frozen=True)
class Text:
    """Embedded prompts of one forward: ``hidden`` [B, T, text channels], zeros behind each one's ``lengths`` [B]."""

    hidden: torch.Tensor
    lengths: torch.Tensor

    @property
    def branches(self) -> int:
        """How many samples the forward has: 2 with guidance, else 1."""
        return self.hidden.shape[0]


def reject_reason(pipe: Any) -> str | None:
    """Why the native loop would not be diffusers' own arithmetic on this pipeline; None if it is."""
    if type(pipe).__name__ != PIPELINE_CLASS:
        return f"the pipeline is {type(pipe).__name__}, the native loop reproduces {PIPELINE_CLASS}"
    if type(pipe.scheduler).__name__ != EULER:
        return f"the scheduler is {type(pipe.scheduler).__name__}, the native loop needs {EULER}"
    return None


@torch.no_grad()
def generate(
    pipe: Any,
    request: GenerationRequest,
    generator: torch.Generator,
    clock: StageClock,
    mounted: Mount | None = None,
) -> Decoded:
    """Run one request through the native stages; bit-identical to ``pipe(...)`` with the same arguments."""
    device, dtype = pipe._execution_device, pipe.transformer.dtype
    prompt, enhanced = request.prompt, None
    if request.use_pe:
        with clock.stage(stages.PROMPT_ENHANCEMENT):
            prompt = enhanced = enhance(pipe._enhance_prompt_with_pe, request, device)
    with clock.stage(stages.TEXT_ENCODING):
        conditional = pipe.encode_prompt(prompt, device)
        alone, both = pad(pipe, conditional), None
        if request.guidance_scale > 1:
            both = pad(pipe, [*pipe.encode_prompt(request.negative_prompt or "", device), *conditional])
    with clock.stage(stages.LATENT_PREPARATION):
        rows, columns = (side // pipe.vae_scale_factor for side in (request.height, request.width))
        shape = (1, pipe.transformer.config.in_channels, rows, columns)
        latents = randn_tensor(shape, generator=generator, device=device, dtype=dtype)
    with clock.stage(stages.TIMESTEP_PREPARATION):
        timesteps = prepare_timesteps(pipe.scheduler, request.num_inference_steps, device)
    with clock.stage(stages.DENOISING, total_steps=len(timesteps)):
        latents = denoise(pipe, request, latents, timesteps, alone, both, clock, mounted)
    with clock.stage(stages.DECODING):
        image = decode(pipe, latents)
    return Decoded(image, latents, enhanced)


def enhance(write: Callable[..., str], request: GenerationRequest, device: torch.device) -> str:
    """The text that the prompt enhancer makes of the request's prompt: the same for the same seed, device and size.

    ``write`` is the pipeline's ``_enhance_prompt_with_pe``. torch's global generators are left as they were. Raises
    :class:`FuseproofError` where the enhancer fails, and where it writes nothing.
    """
    return text_written_by("prompt enhancer", "--use-pe", request.prompt, lambda: _write(write, request, device))


def _write(write: Callable[..., str], request: GenerationRequest, device: torch.device) -> str:
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_cuda else []):
        torch.default_generator.manual_seed(request.seed)
        if on_cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(request.seed)
        arguments = ENHANCER_ARGUMENTS[request.pe_sampling]
        return write(request.prompt, device, width=request.width, height=request.height, **arguments)


def pad(pipe: Any, hidden: list[torch.Tensor]) -> Text:
    """One text a sample, [tokens, text channels] each, side by side in the transformer's dtype."""
    transformer = pipe.transformer
    return Text(*pipe._pad_text(hidden, pipe._execution_device, transformer.dtype, transformer.config.text_in_dim))


def prepare_timesteps(scheduler: Any, num_inference_steps: int, device: torch.device) -> torch.Tensor:
    """The schedule: sigmas linear from 1 to 1/n, then the scheduler's own shift. No sync at step 0."""
    sigmas = torch.linspace(1.0, 0.0, num_inference_steps + 1)[:-1]
    scheduler.set_timesteps(sigmas=sigmas.numpy(), device=device)
    scheduler.set_begin_index(0)
    timesteps: torch.Tensor = scheduler.timesteps
    return timesteps


def denoise(
    pipe: Any,
    request: GenerationRequest,
    latents: torch.Tensor,
    timesteps: torch.Tensor,
    alone: Text,
    both: Text | None,
    clock: StageClock,
    mounted: Mount | None = None,
) -> torch.Tensor:
    """The denoising loop over ``latents`` [1, 128, H/16, W/16]; returns them at sigma 0.

    ``both`` holds the negative prompt's text and the prompt's, ``alone`` the prompt's; None means no guidance.
    """
    guiding = unconditional_branches(both, len(timesteps), request.guidance_scale, request.quality)
    texts = [alone if text is None else text for text in guiding]
    advance = GuidedStep(pipe.scheduler, request, mounted)
    # Made before the loop, one tensor a step: mounted fast paths know the step by it, and may work ahead.
    model_timesteps = [t.to(latents.dtype).repeat(text.branches) for t, text in zip(timesteps, texts, strict=True)]
    if mounted is not None:
        mounted.announce_steps(model_timesteps)
    for t, timestep, text in zip(timesteps, model_timesteps, texts, strict=True):
        velocity, velocity_uncond = predict(pipe.transformer, latents, timestep, text)
        latents = advance(velocity, velocity_uncond, t, latents)
        clock.step_finished()
    return latents


def predict(
    transformer: Any, latents: torch.Tensor, timestep: torch.Tensor, text: Text
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """One transformer forward: the velocity, shaped like ``latents``, and the unconditional one where there are two."""
    velocities = transformer(
        hidden_states=latents if text.branches == 1 else torch.cat([latents, latents], dim=0),
        timestep=timestep,
        text_bth=text.hidden,
        text_lens=text.lengths,
        return_dict=False,
    )[0]
    if text.branches == 1:
        return velocities, None
    velocity_uncond, velocity = velocities.chunk(2, dim=0)
    return velocity, velocity_uncond


def decode(pipe: Any, latents: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Latents [1, 128, H/16, W/16] to an image [H, W, 3], fp32 in 0..1."""
    norm = pipe.vae.bn
    mean = norm.running_mean.view(1, -1, 1, 1).to(device=latents.device, dtype=latents.dtype)
    spread = torch.sqrt(norm.running_var.view(1, -1, 1, 1) + BATCH_NORM_EPS)
    spread = spread.to(device=latents.device, dtype=latents.dtype)
    unpacked = pipe._unpatchify_latents(latents * spread + mean)
    decoded = pipe.vae.decode(unpacked, return_dict=False)[0]
    image: np.ndarray[Any, np.dtype[np.float32]] = pipe.image_processor.postprocess(decoded, output_type="np")[0]
    return image
