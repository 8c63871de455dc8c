"""One loaded model and the requests it answers: load, compile, mount, warm up, run, report.

A session owns everything that must stay out of a request's time. It never falls back by itself: only
``backend="auto"`` may, and then ``fallback_reason`` says why.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.fastpaths import Mount, UserSite, mount
from fuseproof.fastpaths.gates import CallObserver
from fuseproof.fastpaths.graph_device import CudaCapture
from fuseproof.fastpaths.tiers import LOSSLESS
from fuseproof.pipelines import dummy_geometry, guidance_schedule, longcat_image, memory, native, reference
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.compilation import CompileWatch, compile_blocks
from fuseproof.pipelines.devices import choose_device, choose_dtype, set_attention_backend
from fuseproof.pipelines.dummy import load_dummy_pipeline
from fuseproof.pipelines.dummy_geometry import DummyGeometry
from fuseproof.pipelines.edit_guards import refuse_unsupported
from fuseproof.pipelines.embedded import ResolvedModel
from fuseproof.pipelines.families import Family
from fuseproof.pipelines.graphs import NOT_ASKED_FOR, TransformerGraphs, refuse_graphs_without_cuda
from fuseproof.pipelines.guidance_schedule import skipped_steps
from fuseproof.pipelines.host_allocator import keep_freed_memory
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.longcat_arithmetic import Decoded
from fuseproof.pipelines.progress import SILENT, ProgressObserver
from fuseproof.pipelines.requests import GenerationRequest, quality_named
from fuseproof.pipelines.stages import StageClock, StageTime

VERIFIES_EVERY_STEP = "every call of a fast path ran fused and eager, side by side: these times are no measurement"


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
    enable_breakable_cuda_graph: bool = False
    enable_prompt_rewrite: bool = False
    """Load what prompt rewriting needs; whether a request uses it is the request's own property."""
    certified: Mapping[str, frozenset[str]] | None = None
    """Keys that a valid certificate vouches for, by site: they run fused without a first sight."""
    verify_every_step: bool = False
    """Run fused and reference side by side at every call: for checks, never for times."""
    user_sites: tuple[UserSite, ...] = ()
    call_observers: Mapping[str, CallObserver] | None = None
    """Told of every kernel call at a site, by its name."""


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
        self._mount = self._mounted(pipe)
        self._graphs: TransformerGraphs | None = None
        if settings.enable_breakable_cuda_graph:
            self._graphs = TransformerGraphs(pipe.transformer, self._mount, CudaCapture(device))
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

        def load(device: torch.device, dtype: torch.dtype) -> Any:
            return load_pipeline(
                checkpoint, dtype=dtype, device=device, with_text_processor=settings.enable_prompt_rewrite
            )

        return cls._opened(load, settings, observer)

    @classmethod
    def open_dummy(
        cls,
        family: Family,
        settings: SessionSettings,
        observer: ProgressObserver = SILENT,
        geometry: DummyGeometry | None = None,
    ) -> Session:
        """Make ``family``'s pipeline on seeded random weights (``--load-format dummy``); reads no file.

        ``geometry`` replaces the released sizes. Raises :class:`FuseproofError` where the weights do not fit.
        """

        def load(device: torch.device, dtype: torch.dtype) -> Any:
            return load_dummy_pipeline(family, dtype=dtype, device=device, geometry=geometry)

        session = cls._opened(load, settings, observer)
        session.warnings.append(dummy_geometry.WARNING)
        return session

    @classmethod
    def _opened(
        cls,
        load: Callable[[torch.device, torch.dtype], Any],
        settings: SessionSettings,
        observer: ProgressObserver,
    ) -> Session:
        started = time.perf_counter()
        device = choose_device(settings.device)
        if settings.enable_breakable_cuda_graph:
            refuse_graphs_without_cuda(device)
        dtype = choose_dtype(settings.dtype, device)
        host_allocator = keep_freed_memory() if device.type == "cpu" else None
        pipe = load(device, dtype)
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
        """Free the graphs and unmount the fast paths; the pipeline is left as it was loaded."""
        if self._graphs:
            self._graphs.close()
        self._mount.unmount()

    def warm_up(self, request: GenerationRequest, steps: int | None = None) -> float:
        """Run ``request`` untimed with ``steps`` steps (None: all of them) and return how long it took, in ms.

        Where the request's quality skips guidance, it takes as many steps as meet both kinds of step.

        Under ``torch.compile`` this is where compilation happens, and it counts as ``compile_ms``. CUDA graphs are
        captured here, and only here.
        """
        if steps is not None:
            steps = guidance_schedule.warmup_steps(
                steps, request.num_inference_steps, request.guidance_scale, request.quality
            )
        shorter = request if steps is None else replace(request, num_inference_steps=steps)
        started = time.perf_counter()
        with self._graphs.capturing() if self._graphs else nullcontext():
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
            if self._graphs:
                self._graphs.restart_counting()
            memory.reset_peaks(self._device)
            self._memory["before_forward"] = memory.checkpoint(self._device)
        seen = self._compile_watch.compilations() if self._compile_watch else 0
        sights_before = self._mount.first_sights()
        result = self._run(request)
        self._warn_of_first_sights(sights_before)
        self._warn_of_approximation(request)
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

    def guidance_skipped_steps(self, request: GenerationRequest) -> tuple[int, ...]:
        """The steps of a guided ``request`` that run one branch only; diffusers' own loop skips none."""
        if self.backend != "native":
            return ()
        return skipped_steps(request.num_inference_steps, request.guidance_scale, request.quality)

    def verified_keys(self) -> dict[str, frozenset[str]]:
        """What every gate verified so far, by site, as a certificate holds it."""
        texts = {name: gate.verified_key_texts() for name, gate in self._mount.gates.items()}
        return {name: keys for name, keys in texts.items() if keys}

    def graphs_report(self) -> dict[str, Any]:
        """CUDA graphs captured (warm-ups), and how the transformer's calls in timed requests were answered."""
        return self._graphs.report() if self._graphs else dict(NOT_ASKED_FOR)

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
        refuse_unsupported(self._pipe, request)
        generator = torch.Generator(device=_generator_device(request, self._device)).manual_seed(request.seed)
        clock = StageClock(self._device, self._observer)
        run: Callable[..., Decoded] = reference.generate
        if self.backend == "native":
            run = functools.partial(native.generate, mounted=self._mount)
        try:
            with (
                _heard_truncation(self.warnings),
                _counted_work(self._pipe.transformer) as work,
                self._mount.at(request.quality),
                clock.request(),
            ):
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

    def _mounted(self, pipe: Any) -> Mount:
        settings = self.settings
        if settings.verify_every_step:
            self.warnings.append(VERIFIES_EVERY_STEP)
        return mount(
            pipe,
            quality=settings.quality,
            sites=self._sites(),
            gate=settings.gate,
            verifies_every_call=settings.verify_every_step,
            certified=settings.certified,
            user_sites=settings.user_sites,
            call_observers=settings.call_observers,
            per_request=True,
        )

    def _warn_of_first_sights(self, before: tuple[int, float]) -> None:
        """A first sight runs both forms and may compile: inside a timed request it makes the time wrong."""
        count, milliseconds = (now - then for now, then in zip(self._mount.first_sights(), before, strict=True))
        if count and not self.settings.verify_every_step:
            self.warnings.append(
                f"{count} first sight(s) of fast paths fell inside a timed request, {milliseconds:.1f} ms of it; "
                "a warm-up (--warmup) or a certificate keeps them out"
            )

    def _warn_of_approximation(self, request: GenerationRequest) -> None:
        """What made this request's bits other than those of lossless, or that nothing did."""
        if quality_named(request.quality) == LOSSLESS:
            return
        ran = list(self._mount.approximate_sites_that_ran())
        if self.guidance_skipped_steps(request):
            ran.append(guidance_schedule.SITE)
        text = (
            f"approximate sites ran: {', '.join(ran)}: these bits are not those of lossless"
            if ran
            else f"quality {request.quality}: no approximate site ran, so these bits are those of lossless"
        )
        if text not in self.warnings:
            self.warnings.append(text)

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
    """What the chosen quality does not promise; which approximate sites ran is said after the request."""
    warnings = []
    if settings.enable_torch_compile:
        warnings.append(
            "torch.compile rounds differently from eager: these bits are not diffusers' eager bits, at any quality"
        )
    return warnings


def _choose_backend(asked: str, pipe: Any) -> tuple[str, str | None]:
    if asked == "diffusers":
        return "diffusers", None
    reason = native.reject_reason(pipe)
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
