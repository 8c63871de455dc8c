"""The reference backend: the ``__call__`` of diffusers' own pipeline, watched but not changed.

The stage edges come from the helper methods that the call goes through; while one request runs, they are wrapped on
the pipeline instance, and taken off again afterwards. The arithmetic is diffusers' alone.

One constant of diffusers is exchanged, and only for checkpoints that ask for it: its editing pipeline fits every input
image to 1024 * 1024 pixels, by a function of its module. Where a checkpoint names a smaller canvas (the embedded ones,
for CPU tests), that function is called with the checkpoint's area while the request runs. At the area of the published
models nothing is exchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fuseproof.pipelines import (
    ernie_image,
    longcat_image,
    longcat_image_edit,
    reference_ernie,
    reference_wan,
    stages,
    wan,
)
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.reference_steps import StepWatch
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock

LIBRARY_CANVAS_PIXELS = 1024 * 1024


def generate(pipe: Any, request: GenerationRequest, generator: torch.Generator, clock: StageClock) -> Decoded:
    """Run one request through ``pipe(...)`` and time its stages by the same names as the native pipeline."""
    if type(pipe).__name__ == ernie_image.PIPELINE_CLASS:
        return reference_ernie.generate(pipe, request, generator, clock)
    if type(pipe).__name__ == wan.PIPELINE_CLASS:
        return reference_wan.generate(pipe, request, generator, clock)
    watch = _Watch(pipe, clock)
    arguments = _edit_arguments(request) if _is_edit(pipe) else _text_to_image_arguments(request)
    with watch.attached(), _canvas_of(pipe, request):
        clock.begin(stages.INPUT_VALIDATION)
        result = pipe(
            prompt=request.prompt,
            negative_prompt=request.negative_prompt,
            num_inference_steps=request.num_inference_steps,
            guidance_scale=request.guidance_scale,
            generator=generator,
            output_type="np",
            **arguments,
        )
        clock.end()
    assert watch.latents is not None, "diffusers' pipeline did not unpack its latents"
    return Decoded(result.images[0], watch.latents, watch.rewritten_prompt)


def _is_edit(pipe: Any) -> bool:
    return type(pipe).__name__ == longcat_image_edit.PIPELINE_CLASS


def _text_to_image_arguments(request: GenerationRequest) -> dict[str, Any]:
    return {
        "height": request.height,
        "width": request.width,
        "enable_cfg_renorm": request.enable_cfg_renorm,
        "cfg_renorm_min": request.cfg_renorm_min,
        "enable_prompt_rewrite": request.enable_prompt_rewrite,
    }


def _edit_arguments(request: GenerationRequest) -> dict[str, Any]:
    return {"image": longcat_image_edit.input_image(request).pixels}


@contextmanager
def _canvas_of(pipe: Any, request: GenerationRequest) -> Iterator[None]:
    """Let the editing pipeline's module compute canvases of ``request.canvas_pixels``; see the module docstring."""
    if not _is_edit(pipe):
        yield
        return
    image = longcat_image_edit.input_image(request)
    module = sys.modules[type(pipe).__module__]
    eager = module.calculate_dimensions
    canvas = eager(request.canvas_pixels, image.width * 1.0 / image.height)
    longcat_image_edit.check_canvas(request, image, canvas)
    if request.canvas_pixels == LIBRARY_CANVAS_PIXELS:
        yield
        return
    setattr(module, eager.__name__, lambda _area, ratio: eager(request.canvas_pixels, ratio))
    try:
        yield
    finally:
        setattr(module, eager.__name__, eager)


class _Watch:
    """Turns diffusers' helper calls into stage edges, and keeps the final packed latents."""

    def __init__(self, pipe: Any, clock: StageClock) -> None:
        self.latents: torch.Tensor | None = None
        self.rewritten_prompt: str | None = None
        self._pipe = pipe
        self._clock = clock
        self._text_encoding = False
        self._encodes_image = _is_edit(pipe)

    @contextmanager
    def attached(self) -> Iterator[None]:
        watched: dict[str, Callable[..., Any]] = {
            "encode_prompt": self._encode_prompt(self._pipe.encode_prompt),
            "prepare_latents": self._prepare_latents(self._pipe.prepare_latents),
            "progress_bar": self._progress_bar,
            "_unpack_latents": self._unpack_latents(self._pipe._unpack_latents),
        }
        if self._encodes_image:
            watched["_encode_vae_image"] = self._encode_vae_image(self._pipe._encode_vae_image)
        else:
            watched["rewire_prompt"] = self._rewire_prompt(self._pipe.rewire_prompt)
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
        def rewire_prompt(prompt: str, *args: Any, **kwargs: Any) -> Any:
            self._next_stage(stages.PROMPT_REWRITE)
            rewritten = longcat_image.rewrite(lambda: eager(prompt, *args, **kwargs), prompt)
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
            # An editing pipeline encodes its image first thing in here.
            self._next_stage(stages.IMAGE_VAE_ENCODING if self._encodes_image else stages.LATENT_PREPARATION)
            prepared = eager(*args, **kwargs)
            self._next_stage(stages.TIMESTEP_PREPARATION)
            return prepared

        return prepare_latents

    def _encode_vae_image(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        def encode_vae_image(*args: Any, **kwargs: Any) -> Any:
            encoded = eager(*args, **kwargs)
            self._next_stage(stages.LATENT_PREPARATION)
            return encoded

        return encode_vae_image

    def _progress_bar(self, iterable: Any = None, total: int | None = None) -> StepWatch:
        self._next_stage(stages.DENOISING, total_steps=total)
        return StepWatch(self._clock, lambda: self._next_stage(stages.DECODING))

    def _unpack_latents(self, eager: Callable[..., Any]) -> Callable[..., Any]:
        def unpack_latents(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.latents = latents
            return eager(latents, *args, **kwargs)

        return unpack_latents
