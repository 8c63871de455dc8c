"""One loaded model and the requests it answers: load, compile, mount, warm up, run, report.

A session owns everything that must stay out of a request's time. It never falls back by itself: only
``backend="auto"`` may, and then ``fallback_reason`` says why.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.fastpaths import mount
from fuseproof.pipelines import longcat_image, memory, reference
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.compilation import CompileWatch, compile_blocks
from fuseproof.pipelines.devices import choose_device, choose_dtype, set_attention_backend
from fuseproof.pipelines.embedded import ResolvedModel
from fuseproof.pipelines.host_allocator import keep_freed_memory
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT, ProgressObserver
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock, StageTime

GRAPHS_REASON = "CUDA graphs are not in this release"


@dataclass(frozen=True)
class SessionSettings:
    """How to load and run; ``None`` means: choose by the machine (fp32 on a CPU, bf16 on CUDA)."""

    backend: str = "native"
    device: str | None = None
    dtype: str | None = None
    attention_backend: str | None = None
    fastpaths: str = "auto"
    gate: str = "enforce"
    quality: str = "lossless"
    enable_torch_compile: bool = False
    enable_prompt_rewrite: bool = False
    """Load what prompt rewriting needs; whether a request uses it is the request's own property."""


@dataclass(frozen=True)
class GenerationResult:
    """One request's outcome. ``image`` is [H, W, 3] fp32 in 0..1 before any uint8; ``latents`` are the packed final
    ones as fp32 (``latents_dtype`` names the dtype they were computed in). Times are milliseconds.
    """

    image: np.ndarray[Any, np.dtype[np.float32]]
    latents: np.ndarray[Any, np.dtype[np.float32]]
    latents_dtype: str
    rewritten_prompt: str | None
    stages: tuple[StageTime, ...]
    denoise_steps_ms: tuple[float, ...]
    worker_ms: float
    work: dict[str, int]


class Session:
    """A loaded pipeline on one device. Use it as a context manager, or ``close()`` it."""

    def __init__(
        self, pipe: Any, settings: SessionSettings, device: torch.device, dtype: torch.dtype, observer: ProgressObserver
    ) -> None:
        self.settings = settings
        self.device = str(device)
        self.dtype = str(dtype).removeprefix("torch.")
        self.warnings: list[str] = []
        self.load_ms = self.compile_ms = self.warmup_ms = 0.0
        self.host_allocator: dict[str, int] | None = None
        self._pipe = pipe
        self._device = device
        self._observer = observer
        self._memory: dict[str, dict[str, float]] = {}
        self.backend, self.fallback_reason = _choose_backend(settings.backend, pipe)
        if self.fallback_reason:
            self.warnings.append(f"fell back from native to diffusers: {self.fallback_reason}")
        self._mount = mount(pipe, quality=settings.quality, sites=self._sites(), gate=settings.gate)
        self._compile_watch = CompileWatch() if settings.enable_torch_compile else None
        self.warnings += _quality_warnings(settings)

    @classmethod
    def open(
        cls,
        model: ResolvedModel,
        checkpoint: Checkpoint,
        settings: SessionSettings,
        observer: ProgressObserver = SILENT,
    ) -> Session:
        """Load ``checkpoint`` (resolved as ``model``) strictly; raises :class:`FuseproofError` with one sentence."""
        started = time.perf_counter()
        device = choose_device(settings.device)
        dtype = choose_dtype(settings.dtype, device)
        host_allocator = keep_freed_memory() if device.type == "cpu" else None
        pipe = load_pipeline(checkpoint, dtype=dtype, device=device, with_text_processor=settings.enable_prompt_rewrite)
        set_attention_backend(pipe.transformer, settings.attention_backend)
        session = cls(pipe, settings, device, dtype, observer)
        session.host_allocator = host_allocator
        if settings.enable_torch_compile:
            compile_blocks(pipe.transformer)
        session.load_ms = (time.perf_counter() - started) * 1e3
        session._checkpoint_peak("load_peak")
        return session

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unmount the fast paths; the pipeline is left as it was loaded."""
        self._mount.unmount()

    def warm_up(self, request: GenerationRequest, steps: int | None = None) -> float:
        """Run ``request`` untimed with ``steps`` steps (None: all of them) and return how long it took, in ms.

        Under ``torch.compile`` this is where compilation happens, and it counts as ``compile_ms``.
        """
        shorter = request if steps is None else replace(request, num_inference_steps=steps)
        started = time.perf_counter()
        self._run(shorter)
        elapsed = (time.perf_counter() - started) * 1e3
        if self.settings.enable_torch_compile and not self.compile_ms:
            self.compile_ms = elapsed
        else:
            self.warmup_ms += elapsed
        self._checkpoint_peak("warmup_peak")
        return elapsed

    def run(self, request: GenerationRequest) -> GenerationResult:
        """Run one request and time it."""
        if self.settings.enable_torch_compile and not self.compile_ms:
            raise UsageError("torch.compile needs a warm-up before the first timed request.")
        if "before_forward" not in self._memory:
            self._mount.restart_counting()
            memory.reset_peaks(self._device)
            self._memory["before_forward"] = memory.checkpoint(self._device)
        seen = self._compile_watch.compilations() if self._compile_watch else 0
        result = self._run(request)
        self._memory["after_forward"] = memory.checkpoint(self._device)
        if self._compile_watch and self._compile_watch.compilations() > seen:
            self.warnings.append("torch.compile compiled inside a timed request: its time includes compilation")
        return result

    def memory_checkpoints(self) -> dict[str, dict[str, float]]:
        """Peaks at load, warm-up, before and after the requests, and over the whole process, in MiB."""
        whole: dict[str, float] = {}
        for numbers in self._memory.values():
            for key, value in numbers.items():
                whole[key] = max(value, whole.get(key, 0.0))
        return {**self._memory, "runtime_peak": whole}

    def fastpaths_report(self) -> dict[str, Any]:
        """Each site's state and reason, and its calls in timed requests; first-sight time includes warm-ups."""
        return self._mount.report()

    def graphs_report(self) -> dict[str, Any]:
        """CUDA graph counters; all zero until graphs exist."""
        return {"captured": 0, "replayed": 0, "missed": 0, "rejected": 0, "unsupported": 0, "reason": GRAPHS_REASON}

    def environment(self) -> dict[str, Any]:
        """What torch and the libraries say of themselves: versions, device, threads, numerics flags."""
        on_cuda = self._device.type == "cuda"
        return {
            "versions": {
                name: importlib.metadata.version(name)
                for name in ("torch", "diffusers", "transformers", "numpy", "safetensors", "tokenizers")
            },
            "device": self.device,
            "device_name": torch.cuda.get_device_name(self._device) if on_cuda else "cpu",
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version() if on_cuda else None,
            "torch_git": torch.version.git_version,
            "torch_threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
            "allow_tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
            "host_allocator": self.host_allocator,
            "python_hash_seed": os.environ.get("PYTHONHASHSEED"),
            "attention_backend": self.settings.attention_backend or "native",
        }

    def _run(self, request: GenerationRequest) -> GenerationResult:
        generator = torch.Generator(device=_generator_device(request, self._device)).manual_seed(request.seed)
        clock = StageClock(self._device, self._observer)
        run = longcat_image.generate if self.backend == "native" else reference.generate
        try:
            with _heard_truncation(self.warnings), _counted_work(self._pipe.transformer) as work, clock.request():
                decoded = run(self._pipe, request, generator, clock)
        except torch.OutOfMemoryError as error:
            raise FuseproofError(
                f"out of memory on {self.device} for {request.width}x{request.height}: {str(error).splitlines()[0]}",
                next_step="Use a smaller size, another --dtype, or a larger device.",
            ) from error
        except RuntimeError as error:
            if self.settings.attention_backend is None:
                raise
            raise FuseproofError(
                f"attention backend {self.settings.attention_backend!r} cannot run this request on {self.device}: "
                f"{str(error).splitlines()[0]}",
                next_step="Use --attention-backend native, torch's own choice.",
            ) from error
        finally:
            self._mount.end_request()
        return GenerationResult(
            image=np.ascontiguousarray(decoded.image, dtype=np.float32),
            latents=decoded.latents.detach().float().cpu().numpy(),
            latents_dtype=str(decoded.latents.dtype).removeprefix("torch."),
            rewritten_prompt=decoded.rewritten_prompt,
            stages=tuple(clock.stages),
            denoise_steps_ms=clock.denoise_steps_ms(),
            worker_ms=clock.worker_ms,
            work=work,
        )

    def _sites(self) -> str:
        """The diffusers backend is the reference: there, ``auto`` mounts nothing."""
        if self.backend == "diffusers" and self.settings.fastpaths == "auto":
            return "off"
        return self.settings.fastpaths

    def _checkpoint_peak(self, name: str) -> None:
        self._memory[name] = memory.checkpoint(self._device)
        if not memory.reset_peaks(self._device) and not any("high-water" in text for text in self.warnings):
            self.warnings.append(
                "the kernel does not let this process reset its high-water mark: host peaks accumulate"
            )


def _quality_warnings(settings: SessionSettings) -> list[str]:
    """What the chosen quality does not promise, or does not yet change."""
    warnings = []
    if settings.enable_torch_compile:
        warnings.append(
            "torch.compile rounds differently from eager: these bits are not diffusers' eager bits, at any quality"
        )
    if settings.quality not in ("lossless", "exact"):
        warnings.append(
            f"no fast path of this release needs quality {settings.quality}: the bits are those of lossless"
        )
    return warnings


def _choose_backend(asked: str, pipe: Any) -> tuple[str, str | None]:
    if asked == "diffusers":
        return "diffusers", None
    reason = longcat_image.reject_reason(pipe)
    if reason is None:
        return "native", None
    if asked == "auto":
        return "diffusers", reason
    raise FuseproofError(
        f"the native backend cannot run this model: {reason}.",
        next_step="Use --backend diffusers, or --backend auto to allow the fallback.",
    )


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
def _counted_work(transformer: Any) -> Iterator[dict[str, int]]:
    """Count transformer calls and batch x tokens, so that unequal work between two arms shows."""
    work = {"transformer_calls": 0, "transformer_tokens": 0}

    def count(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        image, text = kwargs["hidden_states"].shape, kwargs["encoder_hidden_states"].shape
        work["transformer_calls"] += 1
        work["transformer_tokens"] += image[0] * (image[1] + text[1])

    handle = transformer.register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield work
    finally:
        handle.remove()
