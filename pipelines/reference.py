"""The reference backend: diffusers' own ``LongCatImagePipeline.__call__``, watched but not changed.

The stage edges come from the helper methods that the call goes through; while one request runs, they are wrapped on
the pipeline instance, and taken off again afterwards. The arithmetic is diffusers' alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch

from fuseproof.pipelines import stages
from fuseproof.pipelines.longcat_image import Decoded
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock


def generate(pipe: Any, request: GenerationRequest, generator: torch.Generator, clock: StageClock) -> Decoded:
    """Run one request through ``pipe(...)`` and time its stages by the same names as the native pipeline."""
    watch = _Watch(pipe, clock)
    with watch.attached():
        clock.begin(stages.INPUT_VALIDATION)
        result = pipe(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            height=request.height,
            width=request.width,
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            generator=generator,
            output_type="np",
            enable_cfg_renorm=request.enable_cfg_renorm,
            cfg_renorm_min=request.cfg_renorm_min,
            enable_prompt_rewrite=request.enable_prompt_rewrite,
        )
        clock.end()
    assert watch.latents is not None, "diffusers' pipeline did not unpack its latents"
    return Decoded(result.images[0], watch.latents, watch.rewritten_prompt)


class _Watch:
    """Turns diffusers' helper calls into stage edges, and keeps the final packed latents."""

    def __init__(self, pipe: Any, clock: StageClock) -> None:
        self.latents: torch.Tensor | None = None
        self.rewritten_prompt: str | None = None
        self._pipe = pipe
        self._clock = clock
        self._text_encoding = False

    @contextmanager
    def attached(self) -> Iterator[None]:
        watched: dict[str, Callable[..., Any]] = {
            "rewire_prompt": self._rewire_prompt(self._pipe.rewire_prompt),
            "encode_prompt": self._encode_prompt(self._pipe.encode_prompt),
            "prepare_latents": self._prepare_latents(self._pipe.prepare_latents),
            "progress_bar": self._progress_bar,
            "_unpack_latents": self._unpack_latents(self._pipe._unpack_latents),
        }
        for name, replacement in watched.items():
            setattr(self._pipe, name, replacement)
        try:
            yield
        finally:
            for name in watched:
                delattr(self._pipe, name)

    def _next_stage(self, name: str, total_steps: int | None = None) -> None:
        self._clock.end()
        self._clock.begin(name, total_steps)

    def _rewire_prompt(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        def rewire_prompt(*args: Any, **kwargs: Any) -> Any:
            self._next_stage(stages.PROMPT_REWRITE)
            rewritten = eager(*args, **kwargs)
            self.rewritten_prompt = rewritten[0]
            return rewritten

        return rewire_prompt

    def _encode_prompt(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        def encode_prompt(*args: Any, **kwargs: Any) -> Any:
            if not self._text_encoding:
                self._text_encoding = True
                self._next_stage(stages.TEXT_ENCODING)
            return eager(*args, **kwargs)

        return encode_prompt

    def _prepare_latents(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        def prepare_latents(*args: Any, **kwargs: Any) -> Any:
            self._next_stage(stages.LATENT_PREPARATION)
            prepared = eager(*args, **kwargs)
            self._next_stage(stages.TIMESTEP_PREPARATION)
            return prepared

        return prepare_latents

    def _progress_bar(self, iterable: Any = None, total: int | None = None) -> _StepWatch:
        self._next_stage(stages.DENOISING, total_steps=total)
        return _StepWatch(self._clock, lambda: self._next_stage(stages.DECODING))

    def _unpack_latents(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        def unpack_latents(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.latents = latents
            return eager(latents, *args, **kwargs)

        return unpack_latents


class _StepWatch:
    """Stands in for diffusers' progress bar: one ``update`` a step."""

    def __init__(self, clock: StageClock, finished: Callable[[], None]) -> None:
        self._clock = clock
        self._finished = finished

    def __enter__(self) -> _StepWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finished()

    def update(self) -> None:
        """One step was issued."""
        self._clock.step_finished()
