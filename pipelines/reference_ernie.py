"""ERNIE-Image by the ``__call__`` of diffusers' own pipeline, watched but not changed.

Stage edges come from what the call goes through: the enhancer, ``encode_prompt``, the scheduler's ``set_timesteps``,
the progress bar. They are wrapped while one request runs. The latents come from the callback that diffusers offers.
The enhancer writes under the request's seed (:func:`fuseproof.pipelines.ernie_image.enhance`), or two runs would draw
two pictures; the rest of the arithmetic is diffusers' alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fuseproof.pipelines import ernie_image, stages
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.reference_steps import StepWatch
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock


def generate(pipe: Any, request: GenerationRequest, generator: torch.Generator, clock: StageClock) -> Decoded:
    """Run one request through ``pipe(...)`` and time its stages by the same names as the native pipeline."""
    watch = _Watch(pipe, request, clock)
    with watch.attached():
        clock.begin(stages.PROMPT_ENHANCEMENT if request.use_pe else stages.TEXT_ENCODING)
        result = pipe(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            height=request.height,
            width=request.width,
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            generator=generator,
            output_type="np",
            callback_on_step_end=watch.keep_latents,
            use_pe=request.use_pe,
        )
        clock.end()
    assert watch.latents is not None, "diffusers' pipeline made no step"
    enhanced = result.revised_prompts[0] if result.revised_prompts else None
    return Decoded(result.images[0], watch.latents, enhanced)


class _Watch:
    """Turns what the call goes through into stage edges, and keeps the latents of the last step."""

    def __init__(self, pipe: Any, request: GenerationRequest, clock: StageClock) -> None:
        self.latents: torch.Tensor | None = None
        self._pipe = pipe
        self._request = request
        self._clock = clock
        self._branches_to_encode = 2 if request.guidance_scale > 1 else 1

    @contextmanager
    def attached(self) -> Iterator[None]:
        pipe, scheduler = self._pipe, self._pipe.scheduler
        watched: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
            (pipe, "_enhance_prompt_with_pe", self._enhance(pipe._enhance_prompt_with_pe)),
            (pipe, "encode_prompt", self._encode_prompt(pipe.encode_prompt)),
            (pipe, "progress_bar", self._progress_bar),
            (scheduler, "set_timesteps", self._set_timesteps(scheduler.set_timesteps)),
        )
        for owner, name, replacement in watched:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, _ in watched:
                delattr(owner, name)

    def keep_latents(self, _pipe: Any, _step: int, _timestep: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        """What diffusers calls after each step; an empty answer changes nothing."""
        self.latents = tensors["latents"]
        return {}

    def _next_stage(self, name: str, total_steps: int | None = None) -> None:
        self._clock.end()
        self._clock.begin(name, total_steps)

    def _enhance(self, eager: Callable[..., str]) -> Callable[..., str]:
        def enhance_prompt(_prompt: str, device: torch.device, **_size: int) -> str:
            text = ernie_image.enhance(eager, self._request, device)
            self._next_stage(stages.TEXT_ENCODING)
            return text

        return enhance_prompt

    def _encode_prompt(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        def encode_prompt(*args: Any, **kwargs: Any) -> Any:
            encoded = eager(*args, **kwargs)
            self._branches_to_encode -= 1
            if self._branches_to_encode == 0:
                self._next_stage(stages.LATENT_PREPARATION)
            return encoded

        return encode_prompt

    def _set_timesteps(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        def set_timesteps(*args: Any, **kwargs: Any) -> Any:
            self._next_stage(stages.TIMESTEP_PREPARATION)
            return eager(*args, **kwargs)

        return set_timesteps

    def _progress_bar(self, iterable: Any = None, total: int | None = None) -> StepWatch:
        self._next_stage(stages.DENOISING, total_steps=total)
        return StepWatch(self._clock, lambda: self._next_stage(stages.DECODING))
