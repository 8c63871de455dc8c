"""LongLive 2's loop: chunk by chunk, four denoising steps and the pass over the clean latents that the next one sees.

The steps of a chunk are UniPC's (order 2, flow matching), begun anew in each chunk: what the public code runs, in
distillation as well as in inference. Sigmas fall evenly from 0.999, and are shifted by 5: at four steps the timesteps
are 999, 937, 833 and 624, which is the list of 1000, 750, 500 and 250 under that shift, but for where it begins.
Between two steps no noise is added (``docs/longlive2.md``). Latents are fp32; the transformer is given them in its own
dtype and answers in it.

An image's latents stand in the first frame of the first chunk, before every forward and behind the last step; that
frame is told timestep 0, the others that of the step. Everything a step needs from the host is made before the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from fuseproof.pipelines.flow_unipc import FlowUniPC
from fuseproof.pipelines.longlive2_caches import CHUNK_FRAMES, LongLive2Caches
from fuseproof.pipelines.longlive2_model import LongLive2Transformer3DModel

STEPS = 4
FRAMES_OF_ONE = 4
"""How many frames the VAE makes of a latent one."""
FLOW_SHIFT = 5.0
LARGEST_SIGMA = float(np.float32(1 - 1 / 1000))
"""Before the shift: the second of a thousand training steps down from pure noise, as an fp32."""


def frames_made(num_frames: int, temporal_scale: int = FRAMES_OF_ONE) -> int:
    """How many frames a clip has where ``num_frames`` are asked for: those of whole chunks, and at least of one.

    The first latent frame is one frame, every other one ``temporal_scale`` of them; what does not fill a chunk is left
    out, as in the public code.
    """
    latent_frames = (num_frames - 1) // temporal_scale + 1
    whole = max(latent_frames // CHUNK_FRAMES, 1) * CHUNK_FRAMES
    return (whole - 1) * temporal_scale + 1


def draw_noise(shape: tuple[int, int, int, int, int], generator: torch.Generator, device: torch.device) -> torch.Tensor:
    """Noise [B, C, F, h, w] fp32 for a whole clip, drawn frame by frame ([B, F, C, h, w]) as the public code does."""
    from diffusers.utils.torch_utils import randn_tensor

    batch, channels, *clip = shape
    drawn = randn_tensor((batch, clip[0], channels, *clip[1:]), generator=generator, device=device, dtype=torch.float32)
    return drawn.transpose(1, 2).contiguous()


def flow_scheduler(num_inference_steps: int, device: torch.device) -> Any:
    """diffusers' UniPC with the sigmas of ``num_inference_steps`` steps, at its first one.

    Its own sigmas (diffusers 0.42.1) fall from 1 to 0.001 and end elsewhere; they are given.
    """
    from diffusers import UniPCMultistepScheduler

    scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=FLOW_SHIFT)
    scheduler.set_timesteps(sigmas=np.linspace(LARGEST_SIGMA, 0, num_inference_steps + 1)[:-1], device=device)
    scheduler.set_begin_index(0)
    return scheduler


class ChunkSteps:
    """What every chunk of one request shares: its scalars, and the timesteps as the transformer is told them.

    ``timesteps`` and ``timesteps_behind_image`` hold one [B, F] fp32 tensor a step; in the latter the first frame is
    clean. ``clean`` [B, F] is what the pass over the clean latents is told. The same tensors serve every chunk.
    """

    def __init__(self, num_inference_steps: int, device: torch.device, batch: int = 1) -> None:
        scheduler = flow_scheduler(num_inference_steps, device)
        self._unipc = FlowUniPC(scheduler, device)
        self.clean = torch.zeros(batch, CHUNK_FRAMES, dtype=torch.float32, device=device)
        self.timesteps = [self.clean + timestep for timestep in scheduler.timesteps]
        behind_image = torch.ones_like(self.clean)
        behind_image[:, 0] = 0
        self.timesteps_behind_image = [behind_image * timestep for timestep in scheduler.timesteps]

    def unipc(self) -> FlowUniPC:
        """One chunk's steps, which remember what they saw; the scalars are shared."""
        return self._unipc.restarted()


def denoise(
    transformer: LongLive2Transformer3DModel,
    noise: torch.Tensor,
    text: torch.Tensor,
    image: torch.Tensor | None,
    steps: ChunkSteps,
    caches: LongLive2Caches,
    step_finished: Callable[[], object] = lambda: None,
    *,
    writes_last_chunk: bool = False,
) -> Iterator[torch.Tensor]:
    """The clean latents of each chunk [B, C, 8, h, w] fp32, one after the other, as soon as it has them.

    ``noise`` [B, C, F, h, w] fp32, F a multiple of 8 (a ValueError otherwise), is read and never written to; ``text``
    [B, text tokens, text channels] has the transformer's dtype; ``image`` [B, C, 1, h, w] fp32 begins the clip.
    ``caches`` are reset. ``step_finished`` is called behind every denoising step. Nothing sees the last chunk, and its
    pass over clean latents is left out unless ``writes_last_chunk``: then the clip can go on.
    """
    frames = noise.shape[2]
    if frames % CHUNK_FRAMES:
        raise ValueError(f"{frames} latent frames are not a multiple of {CHUNK_FRAMES}")
    caches.reset()
    for start in range(0, frames, CHUNK_FRAMES):
        chunk = noise[:, :, start : start + CHUNK_FRAMES]
        first = image if start == 0 else None
        latents = denoise_chunk(transformer, chunk, text, first, steps, caches, start, step_finished)
        if writes_last_chunk or start + CHUNK_FRAMES < frames:
            # Before the chunk is given away: whoever decodes it may end the loop here.
            write_context(transformer, latents, text, steps, caches, start)
        yield latents


@torch.no_grad()
def denoise_chunk(
    transformer: LongLive2Transformer3DModel,
    latents: torch.Tensor,
    text: torch.Tensor,
    image: torch.Tensor | None,
    steps: ChunkSteps,
    caches: LongLive2Caches,
    start_frame: int,
    step_finished: Callable[[], object],
) -> torch.Tensor:
    """One chunk's noise [B, C, 8, h, w] fp32 to its clean latents; ``caches`` hold the chunks before it."""
    advance = steps.unipc()
    for timestep in steps.timesteps if image is None else steps.timesteps_behind_image:
        latents = behind_image(image, latents)
        noisy = latents.to(transformer.dtype).contiguous()
        velocity = transformer.forward_chunk(noisy, timestep, text, caches, start_frame, write=False)
        latents = advance(velocity, latents)
        step_finished()
    return behind_image(image, latents)


@torch.no_grad()
def write_context(
    transformer: LongLive2Transformer3DModel,
    latents: torch.Tensor,
    text: torch.Tensor,
    steps: ChunkSteps,
    caches: LongLive2Caches,
    start_frame: int,
) -> None:
    """The pass over a chunk's clean ``latents``, at timestep 0: what it leaves in ``caches`` later chunks see."""
    clean = latents.to(transformer.dtype)
    transformer.forward_chunk(clean, steps.clean, text, caches, start_frame, write=True)


def behind_image(image: torch.Tensor | None, latents: torch.Tensor) -> torch.Tensor:
    """``latents`` [B, C, F, h, w] with ``image`` [B, C, 1, h, w] as their first frame, or as they are."""
    return latents if image is None else torch.cat([image, latents[:, :, 1:]], dim=2)
