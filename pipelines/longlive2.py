"""LongLive 2, text or an image to video: the native pipeline, chunk by chunk.

diffusers has no LongLive 2. What a request is made of are diffusers' own components and the helper methods of its
``WanPipeline`` (0.42.1): prompts of 512 tokens, the Wan 2.2 VAE, the latents' statistics. The loop is
:mod:`fuseproof.pipelines.longlive2_steps`; ``--backend reference`` (:func:`generate_by_reference`) has an independent
one, and decodes all latents in one call. Both make the same bits: the latents, and every raw frame.

A chunk of 8 latent frames is decoded as soon as it is denoised (:mod:`fuseproof.pipelines.streamed_decode`), so that
frames are there long before the clip is; when, the clock notes. An image is cut to the clip's size
(:mod:`fuseproof.pipelines.clip_canvas`) and encoded as one frame, which is all that a causal VAE makes of it in a clip
too. The VAE computes in the run's dtype, bf16 on a card, as the model is published to be run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import Mount
from fuseproof.pipelines import longlive2_steps, stages, streamed_decode
from fuseproof.pipelines.clip_canvas import covering_crop
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.host_frames import HostFrames
from fuseproof.pipelines.longlive2_caches import CHUNK_FRAMES
from fuseproof.pipelines.longlive2_model import LongLive2Transformer3DModel
from fuseproof.pipelines.reference_longlive2 import generate_reference
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock
from fuseproof.pipelines.streamed_decode import StreamedDecoder
from fuseproof.pipelines.wan import decode, encode_texts, latent_shape
from fuseproof.pipelines.wan_image import latent_statistics

PIPELINE_CLASS = "LongLive2Pipeline"
DECODED_AGAIN = (
    "the clip was decoded again in one call: chunk by chunk, the VAE's first convolution had other bits here, so that "
    "decoding took twice its time"
)
Frames = npt.NDArray[np.float32]


def reject_reason(pipe: Any) -> str | None:
    """Why the native loop cannot run this pipeline; None if it can."""
    if type(pipe).__name__ != PIPELINE_CLASS:
        return f"the pipeline is {type(pipe).__name__}, the native loop runs {PIPELINE_CLASS}"
    if not isinstance(pipe.transformer, LongLive2Transformer3DModel):
        kind = LongLive2Transformer3DModel.__name__
        return f"the transformer is {type(pipe.transformer).__name__}, the native loop needs {kind}"
    return _passed_over(pipe.transformer) or streamed_decode.reject_reason(pipe.vae)


@torch.no_grad()
def generate(
    pipe: Any,
    request: GenerationRequest,
    generator: torch.Generator,
    clock: StageClock,
    mounted: Mount | None = None,
) -> Decoded:
    """Run one request through the native stages; bit-identical to :func:`generate_by_reference`."""
    unheard = _passed_over(pipe.transformer)
    if unheard is not None:
        raise FuseproofError(f"The native loop cannot run this model: {unheard}.", next_step="Use --backend reference.")
    device = pipe._execution_device
    text, image, noise = _prepare(pipe, request, generator, clock)
    with clock.stage(stages.TIMESTEP_PREPARATION):
        steps = longlive2_steps.ChunkSteps(request.num_inference_steps, device)
        caches = pipe.caches_for(noise.shape, pipe.transformer.dtype, device)
        if mounted is not None:
            mounted.announce_steps(_told(steps, image is not None))
        decoder = StreamedDecoder(pipe.vae, noise.shape, pipe.vae.dtype, device)
        assert request.num_frames is not None, "a request for a clip says how many frames"
        frames = HostFrames(request.num_frames, request.height, request.width, device)
    chunks = longlive2_steps.denoise(pipe.transformer, noise, text, image, steps, caches, clock.step_finished)
    latents = []
    for _ in range(_chunks_of(noise)):
        with clock.stage(stages.DENOISING, total_steps=request.num_inference_steps):
            latents.append(next(chunks))
        with clock.stage(stages.DECODING):
            decoded = decoder.decode(scaled_for_vae(pipe.vae, latents[-1]))
            clock.frames_arrived(frames.add(pipe.video_processor.postprocess_video(decoded, output_type="pt")[0]))
    whole = torch.cat(latents, dim=2)
    with clock.stage(stages.DECODING):
        if decoder.is_as_at_once():
            return Decoded(frames.clip(), whole, None)
        return Decoded(_decoded_again(pipe, whole, clock), whole, None, remarks=(DECODED_AGAIN,))


@torch.no_grad()
def generate_by_reference(
    pipe: Any, request: GenerationRequest, generator: torch.Generator, clock: StageClock
) -> Decoded:
    """Run one request by the eager reference, and decode its latents in one call; stages as the native ones."""
    text, image, noise = _prepare(pipe, request, generator, clock)
    with clock.stage(stages.DENOISING, total_steps=_chunks_of(noise) * request.num_inference_steps):
        latents = generate_reference(
            pipe.transformer, noise, text, image, request.num_inference_steps, clock.step_finished
        )
    with clock.stage(stages.DECODING):
        clip = decode(pipe, latents)
        clock.frames_arrived(len(clip))
    return Decoded(clip, latents, None)


def scaled_for_vae(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    """Normalised latents [1, C, F, h, w] as the VAE takes them, in its dtype."""
    latents = latents.to(dtype=vae.dtype)
    mean, inverse_std = latent_statistics(vae, latents)
    return latents / inverse_std + mean


def image_latents(pipe: Any, request: GenerationRequest, device: torch.device) -> torch.Tensor:
    """The input image, cut to the clip's size, as normalised latents [1, C, 1, h, w] fp32: the distribution's mode."""
    assert request.image is not None, "a request without an image has no first frame"
    cut = covering_crop(request.image.pixels, request.width, request.height)
    pixels = pipe.video_processor.preprocess(cut, height=request.height, width=request.width)
    clip = pixels.to(device, dtype=pipe.vae.dtype).unsqueeze(2)
    encoded = pipe.vae.encode(clip).latent_dist.mode().to(torch.float32)
    mean, inverse_std = latent_statistics(pipe.vae, encoded)
    return (encoded - mean) * inverse_std


def _prepare(
    pipe: Any, request: GenerationRequest, generator: torch.Generator, clock: StageClock
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Text [1, 512, text channels], the image's latents if there is one, and the noise of the whole clip."""
    device = pipe._execution_device
    with clock.stage(stages.INPUT_VALIDATION):
        pipe.check_inputs(request.prompt, request.negative_prompt, request.height, request.width)
    with clock.stage(stages.TEXT_ENCODING):
        text, _ = encode_texts(pipe, request, device)
    image = None
    if request.image is not None:
        with clock.stage(stages.IMAGE_VAE_ENCODING):
            image = image_latents(pipe, request, device)
    with clock.stage(stages.LATENT_PREPARATION):
        noise = longlive2_steps.draw_noise(latent_shape(pipe, request), generator, device)
    return text, image, noise


def _passed_over(transformer: LongLive2Transformer3DModel) -> str | None:
    """What somebody put on a module that the native loop does not call, only its parts; None where nothing is there."""
    for number, block in enumerate(transformer.blocks):
        for name, module in (("", block), (".attn1", block.attn1), (".attn2", block.attn2)):
            if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
                return f"blocks.{number}{name} has a hook or another forward, and only its parts would be called"
    return None


def _chunks_of(noise: torch.Tensor) -> int:
    return noise.shape[2] // CHUNK_FRAMES


def _told(steps: longlive2_steps.ChunkSteps, has_image: bool) -> list[torch.Tensor]:
    """Every tensor that the transformer will be told as its timesteps."""
    first = steps.timesteps_behind_image if has_image else []
    return [*first, *steps.timesteps, steps.clean]


def _decoded_again(pipe: Any, latents: torch.Tensor, clock: StageClock) -> Frames:
    """The clip by one call, where the chunks did not have its bits; what they were early by is void."""
    clip = decode(pipe, latents)
    clock.frame_arrivals.clear()
    clock.frames_arrived(len(clip))
    return clip
