"""One request through a loaded pipeline: its times, its work, its image, and every failure as one sentence."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.fastpaths import Mount
from fuseproof.pipelines import longcat_image, longlive2, native, reference, wan
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.decoded_shape import refuse_another_shape
from fuseproof.pipelines.fastpath_faults import site_at_fault
from fuseproof.pipelines.guards import refuse_unsupported, remarks
from fuseproof.pipelines.progress import ProgressObserver
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import FrameArrival, StageClock, StageTime


@dataclass(frozen=True)
class GenerationResult:
    """One request's outcome. ``image`` is [H, W, 3], of a clip [T, H, W, 3], fp32 in 0..1 before any uint8; ``latents``
    are the final ones as fp32 (``latents_dtype`` names the dtype they were computed in). Times are milliseconds.
    """

    image: np.ndarray[Any, np.dtype[np.float32]]
    latents: np.ndarray[Any, np.dtype[np.float32]]
    latents_dtype: str
    rewritten_prompt: str | None
    stages: tuple[StageTime, ...]
    denoise_steps_ms: tuple[float, ...]
    worker_ms: float
    work: dict[str, int]
    frame_arrivals: tuple[FrameArrival, ...] = ()
    """When the frames of a clip that is decoded chunk by chunk were there; empty where all came at once."""


@dataclass(frozen=True)
class RequestRunner:
    """Runs requests on ``pipe``: natively, through its own ``__call__`` (``backend`` diffusers), or by our reference.

    ``warnings`` is added to; ``attention_backend`` is the one that was asked for by name.
    """

    pipe: Any
    device: torch.device
    backend: str
    mounted: Mount
    attention_backend: str | None
    observer: ProgressObserver
    warnings: list[str]

    def run(self, request: GenerationRequest) -> GenerationResult:
        """Run one request and time it; raises :class:`FuseproofError` where the device, a fast path or an attention
        backend cannot carry it out, and where what was decoded has another size or length than was asked for.
        """
        refuse_unsupported(self.pipe, request)
        drawn = replace(request, prompt=request.prompt_for_model, fixed_prompt=None)
        generator = torch.Generator(device=_generator_device(request, self.device)).manual_seed(request.seed)
        clock = StageClock(self.device, self.observer)
        try:
            with (
                _heard_truncation(self.warnings),
                _counted_work(self.pipe.transformer, self.backend) as work,
                self.mounted.at(request.quality),
                clock.request(),
            ):
                decoded = self._loop()(self.pipe, drawn, generator, clock)
        except Exception as error:
            told = self._told(error, request)
            if told is None:
                raise
            raise told from error
        finally:
            self.mounted.end_request()
        refuse_another_shape(decoded.image.shape, self.pipe, request)
        written = request.fixed_prompt if decoded.rewritten_prompt is None else decoded.rewritten_prompt
        self._remark(drawn, written, decoded.remarks)
        return GenerationResult(
            image=np.ascontiguousarray(decoded.image, dtype=np.float32),
            latents=decoded.latents.detach().float().cpu().numpy(),
            latents_dtype=str(decoded.latents.dtype).removeprefix("torch."),
            rewritten_prompt=written,
            stages=tuple(clock.stages),
            denoise_steps_ms=clock.denoise_steps_ms(),
            worker_ms=clock.worker_ms,
            work=work,
            frame_arrivals=tuple(clock.frame_arrivals),
        )

    def _remark(self, request: GenerationRequest, written: str | None, own: tuple[str, ...]) -> None:
        for text in (*own, *remarks(self.pipe, request, written, is_native=self.backend == "native")):
            if text not in self.warnings:
                self.warnings.append(text)

    def _loop(self) -> Callable[..., Decoded]:
        if self.backend == "native":
            return functools.partial(native.generate, mounted=self.mounted)
        return longlive2.generate_by_reference if self.backend == "reference" else reference.generate

    def _told(self, error: Exception, request: GenerationRequest) -> FuseproofError | None:
        """The error as a sentence for whoever can do something about it; None for a fault of ours."""
        if isinstance(error, FuseproofError):
            return None
        first_line = (str(error).splitlines() or [""])[0]
        if isinstance(error, torch.OutOfMemoryError):
            return FuseproofError(
                f"out of memory on {self.device} for {request.width}x{request.height}: {first_line}",
                next_step="Use a smaller size, another --dtype, or a larger device.",
            )
        site = site_at_fault(error)
        if site is not None:
            return FuseproofError(
                f"fast path {site} failed in the middle of a request: {type(error).__name__}: {first_line}",
                next_step=f"Leave {site} out of --fastpaths; --log-level debug shows where it failed.",
            )
        if self.attention_backend is not None and isinstance(error, RuntimeError):
            return FuseproofError(
                f"attention backend {self.attention_backend!r} cannot run this request on {self.device}: {first_line}",
                next_step="Use --attention-backend native, torch's own choice.",
            )
        return None


def _generator_device(request: GenerationRequest, device: torch.device) -> torch.device:
    if request.generator_device != "cuda":
        return torch.device("cpu")
    if device.type != "cuda":
        raise UsageError(
            f"--generator-device cuda needs a CUDA device, this session runs on {device}.",
            next_step="Use --generator-device cpu, the default.",
        )
    return device


@contextmanager
def _heard_truncation(warnings: list[str]) -> Iterator[None]:
    """Turn diffusers' own word that a prompt was cut, which is silenced on stderr, into a warning of this session."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            counted = record.getMessage().rsplit(":", 1)[-1].strip()
            text = f"a prompt has {counted} tokens and only its first 512 were used"
            if "truncated" in record.getMessage() and text not in warnings:
                warnings.append(text)

    library, listener = logging.getLogger(longcat_image.LIBRARY_LOGGER), Listener()
    level, propagate = library.level, library.propagate
    library.setLevel(logging.WARNING)
    library.propagate = False
    library.addHandler(listener)
    try:
        yield
    finally:
        library.removeHandler(listener)
        library.setLevel(level)
        library.propagate = propagate


@contextmanager
def _counted_work(transformer: Any, backend: str) -> Iterator[dict[str, int]]:
    """Count transformer calls and batch x tokens, so that unequal work between two arms shows."""
    work = {"transformer_calls": 0, "transformer_tokens": 0}

    def count(tokens: int) -> None:
        work["transformer_calls"] += 1
        work["transformer_tokens"] += tokens

    if backend == "reference":  # it calls the transformer's parts, the patch embedding once a forward
        handle = transformer.patch_embedding.register_forward_pre_hook(
            lambda _module, inputs: count(_tokens_of_clip(inputs[0].shape, wan.TEXT_TOKENS, transformer.config))
        )
    else:
        handle = transformer.register_forward_pre_hook(
            lambda _module, _inputs, named: count(_tokens(named, transformer.config)), with_kwargs=True
        )
    try:
        yield work
    finally:
        handle.remove()


def _tokens_of_clip(latents: tuple[int, ...], text_tokens: int, config: Any) -> int:
    """Batch x tokens of a clip's latents [B, C, T, H, W], whose tokens are patches, and of its text."""
    return int(latents[0] * (math.prod(latents[2:]) // math.prod(config.patch_size) + text_tokens))


def _tokens(inputs: dict[str, Any], config: Any) -> int:
    """Batch x tokens of one transformer call: packed latents [B, tokens, C], a picture of them [B, C, H, W], or a clip
    [B, C, T, H, W], whose tokens are patches.
    """
    latents = inputs["hidden_states"].shape
    text = inputs["text_bth"] if "text_bth" in inputs else inputs["encoder_hidden_states"]
    if len(latents) == 5:
        return _tokens_of_clip(latents, text.shape[1], config)
    image_tokens = latents[1] if len(latents) == 3 else latents[2] * latents[3]
    return int(latents[0] * (image_tokens + text.shape[1]))
