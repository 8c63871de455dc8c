"""Wan by the ``__call__`` of diffusers' own pipelines, watched but not changed.

A request with an image goes through ``WanImageToVideoPipeline``, made around the same components. Stage edges come from
what the calls go through: ``encode_prompt``, the scheduler's ``set_timesteps``, the latents' preparation, the VAE's
``encode``, the progress bar. They are wrapped while one request runs. The latents come from the callback that diffusers
offers: as the last step left them, before an image's frame is laid over them once more.

One function of diffusers is exchanged, and only where it would fail: without the library ``ftfy``, ``WanPipeline``
cleans a prompt without it, and ``WanImageToVideoPipeline`` ends in a NameError. There it cleans as the former does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fuseproof.pipelines import stages
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.reference_steps import StepWatch
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock
from fuseproof.pipelines.wan_image import image_pipeline


def generate(pipe: Any, request: GenerationRequest, generator: torch.Generator, clock: StageClock) -> Decoded:
    """Run one request through ``pipe(...)`` and time its stages by the same names as the native pipeline."""
    arguments: dict[str, Any] = {}
    if request.image is not None:
        pipe = image_pipeline(pipe)
        arguments = {"image": request.image.pixels}
    watch = _Watch(pipe, clock, has_image=request.image is not None)
    with watch.attached(), _cleaning_prompts(pipe):
        clock.begin(stages.INPUT_VALIDATION)
        result = pipe(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            height=request.height,
            width=request.width,
            num_frames=request.num_frames,
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            generator=generator,
            output_type="np",
            callback_on_step_end=watch.keep_latents,
            **arguments,
        )
        clock.end()
    assert watch.latents is not None, "diffusers' pipeline made no step"
    return Decoded(result.frames[0], watch.latents, None)


@contextmanager
def _cleaning_prompts(pipe: Any) -> Iterator[None]:
    """Let the pipeline's module clean prompts where it cannot; see the module docstring."""
    from diffusers.pipelines.wan import pipeline_wan

    module = sys.modules[type(pipe).__module__]
    eager = module.prompt_clean
    if hasattr(module, "ftfy"):
        yield
        return
    setattr(module, eager.__name__, pipeline_wan.prompt_clean)
    try:
        yield
    finally:
        setattr(module, eager.__name__, eager)


class _Watch:
    """Turns what the call goes through into stage edges, and keeps the latents of the last step."""

    def __init__(self, pipe: Any, clock: StageClock, *, has_image: bool) -> None:
        self.latents: torch.Tensor | None = None
        self._pipe = pipe
        self._clock = clock
        self._has_image = has_image

    @contextmanager
    def attached(self) -> Iterator[None]:
        pipe = self._pipe
        watched: list[tuple[Any, str, Callable[..., Any]]] = [
            (pipe, "encode_prompt", self._at_start_of(stages.TEXT_ENCODING, pipe.encode_prompt)),
            (
                pipe.scheduler,
                "set_timesteps",
                self._at_start_of(stages.TIMESTEP_PREPARATION, pipe.scheduler.set_timesteps),
            ),
            (pipe, "progress_bar", self._progress_bar),
        ]
        if self._has_image:
            resize = pipe.video_processor.preprocess
            watched += [
                (pipe.video_processor, "preprocess", self._at_start_of(stages.LATENT_PREPARATION, resize)),
                (pipe.vae, "encode", self._at_start_of(stages.IMAGE_VAE_ENCODING, pipe.vae.encode)),
            ]
        else:
            watched.append(
                (pipe, "prepare_latents", self._at_start_of(stages.LATENT_PREPARATION, pipe.prepare_latents))
            )
        # A mounted fast path may stand on an instance already: it is put back, not taken off.
        earlier = [vars(owner).get(name) for owner, name, _ in watched]
        for owner, name, replacement in watched:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for (owner, name, _), before in zip(watched, earlier, strict=True):
                if before is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)

    def keep_latents(self, _pipe: Any, _step: int, _timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """What diffusers calls after each step; an empty answer changes nothing."""
        self.latents = tensors["latents"]
        return {}

    def _next_stage(self, name: str, total_steps: int | None = None) -> None:
        self._clock.end()
        self._clock.begin(name, total_steps)

    def _at_start_of(self, stage: str, eager: Callable[..., Any]) -> Callable[..., Any]:
        def begin_and_call(*args: Any, **kwargs: Any) -> Any:
            self._next_stage(stage)
            return eager(*args, **kwargs)

        return begin_and_call

    def _progress_bar(self, iterable: Any = None, total: int | None = None) -> StepWatch:
        self._next_stage(stages.DENOISING, total_steps=total)
        return StepWatch(self._clock, lambda: self._next_stage(stages.DECODING))
