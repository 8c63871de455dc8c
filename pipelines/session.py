"""One loaded model and the requests it answers: load, compile, mount, warm up, run, report.

A session owns everything that must stay out of a request's time. It never falls back by itself: only
``backend="auto"`` may, and then ``fallback_reason`` says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch

from fuseproof.errors import UsageError
from fuseproof.fastpaths import Mount, UserSite, mount
from fuseproof.fastpaths.gates import CallObserver
from fuseproof.fastpaths.graph_device import CudaCapture
from fuseproof.pipelines import dummy_geometry, fastpath_needs, guidance_schedule, memory, native, session_warnings
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.compilation import CompileWatch, compile_blocks
from fuseproof.pipelines.devices import choose_device, choose_dtype, set_attention_backend
from fuseproof.pipelines.dummy import load_dummy_pipeline
from fuseproof.pipelines.dummy_geometry import DummyGeometry
from fuseproof.pipelines.embedded import ResolvedModel
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.graphs import NOT_ASKED_FOR, TransformerGraphs, refuse_graphs_without_cuda
from fuseproof.pipelines.host_allocator import keep_freed_memory
from fuseproof.pipelines.loading import load_pipeline
from fuseproof.pipelines.progress import SILENT, ProgressObserver
from fuseproof.pipelines.request_run import GenerationResult, RequestRunner
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session_environment import environment, residency, scheduler_identity


@dataclass(frozen=True)
class SessionSettings:
    """How to load and run; ``None`` means: choose by the machine (fp32 on a CPU, bf16 on CUDA)."""

    backend: str = "native"
    device: str | None = None
    dtype: str | None = None
    attention_backend: str | None = None
    fastpaths: str | None = None
    """``auto``, ``off`` or names; None is ``auto`` on the native backend and ``off`` on a reference."""
    gate: str = "enforce"
    quality: str = "lossless"
    enable_torch_compile: bool = False
    enable_breakable_cuda_graph: bool = False
    enable_prompt_rewrite: bool = False
    """Load what prompt rewriting needs; whether a request uses it is the request's own property."""
    use_pe: bool = False
    """Load the prompt enhancer; whether a request uses it is the request's own property."""
    certified: Mapping[str, frozenset[str]] | None = None
    """Keys that a valid certificate vouches for, by site: they run fused without a first sight."""
    verify_every_step: bool = False
    """Run fused and reference side by side at every call: for checks, never for times."""
    user_sites: tuple[UserSite, ...] = ()
    call_observers: Mapping[str, CallObserver] | None = None
    """Told of every kernel call at a site, by its name."""


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
        self.warmup_steps: int | None = None
        self.is_profiled = False
        """Whether a request of it ran under a profiler: its times are then no measurement."""
        self.host_allocator: dict[str, int] | None = None
        self._device = device
        self._memory: dict[str, dict[str, float]] = {}
        self._timed_requests: list[GenerationRequest] = []
        self._untrusted: list[str] = []
        self.backend, self.fallback_reason = native.choose_backend(settings.backend, pipe)
        if self.fallback_reason:
            self.warnings.append(f"fell back from native to diffusers: {self.fallback_reason}")
        self._mount = self._mounted(pipe)
        self.warnings += self._mount.displaced()
        self._runner = RequestRunner(
            pipe, device, self.backend, self._mount, settings.attention_backend, observer, self.warnings
        )
        self._graphs: TransformerGraphs | None = None
        if settings.enable_breakable_cuda_graph:
            self._graphs = TransformerGraphs(pipe.transformer, self._mount, CudaCapture(device))
        self._compile_watch = CompileWatch() if settings.enable_torch_compile else None
        if settings.enable_torch_compile:
            self.warnings.append(session_warnings.COMPILED)

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
                checkpoint,
                dtype=dtype,
                device=device,
                with_text_processor=settings.enable_prompt_rewrite,
                with_prompt_enhancer=settings.use_pe,
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

        Where the request's quality skips guidance, or a solver looks back, it takes as many steps as meet every kind of
        step; ``warmup_steps`` says how many it took. Under ``torch.compile`` this is where compilation happens, and it
        counts as ``compile_ms``. CUDA graphs are captured here, and only here.
        """
        self.warmup_steps = self._steps_of_a_warm_up(request, steps)
        sights_before = self._mount.first_sights()
        elapsed = self._run_untimed(replace(request, num_inference_steps=self.warmup_steps))
        if self.settings.enable_torch_compile and not self.compile_ms:
            self.compile_ms = elapsed
        else:
            self.warmup_ms += elapsed
        if self._mount.first_sights() != sights_before and memory.give_back_unused(self._device):
            # First sights held both results. What a request itself needs is allocated anew here, not while it is timed.
            again = self._run_untimed(replace(request, num_inference_steps=1))
            self.warmup_ms += again
            elapsed += again
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
        result = self._runner.run(request)
        self._timed_requests.append(request)
        self._memory["after_forward"] = memory.checkpoint(self._device)
        self._warn_of_first_sights(sights_before)
        self._warn_of_other_bits(request)
        if self._compile_watch and self._compile_watch.compilations() > seen:
            self.warnings.append(session_warnings.COMPILED_INSIDE)
        return result

    @property
    def pipe(self) -> Any:
        """The loaded pipeline."""
        return self._runner.pipe

    @property
    def mounted(self) -> Mount:
        """Its fast paths."""
        return self._mount

    @contextmanager
    def followed_by(self, make: Callable[[ProgressObserver], ProgressObserver]) -> Iterator[None]:
        """Within this context requests tell what ``make`` makes of the session's own observer."""
        runner = self._runner
        self._runner = replace(runner, observer=make(runner.observer))
        try:
            yield
        finally:
            self._runner = runner

    def without_replays(self, call: Callable[..., Any]) -> AbstractContextManager[None]:
        """Within this context no CUDA graph answers: ``call`` gets what would be graphed, and its arguments."""
        return self._graphs.bypassed(call) if self._graphs else nullcontext()

    def run_uncounted(self, request: GenerationRequest) -> None:
        """Run a request that is no result: it is neither timed nor warned of."""
        self._runner.run(request)

    def memory_checkpoints(self) -> dict[str, dict[str, float]]:
        """Peaks at load, warm-up, before and after the requests, and over the whole process, in MiB."""
        return {**self._memory, "runtime_peak": memory.largest(self._memory.values())}

    def fastpaths_report(self) -> dict[str, Any]:
        """Each site's state and reason, and its calls in timed requests; first-sight time includes warm-ups.

        A site that no timed request had work for is ``not needed``, and its reason says why.
        """
        return fastpath_needs.with_needs(self._mount.report(), self._timed_requests, self.backend)

    def mismatches(self) -> dict[str, str]:
        """By site, what comparisons with eager found wrong so far, warm-ups included; empty where bits agreed."""
        return session_warnings.mismatches(self._mount.gates)

    def guidance_skipped_steps(self, request: GenerationRequest) -> tuple[int, ...]:
        """The steps of a guided ``request`` that run one branch only; diffusers' own loop skips none."""
        if self.backend != "native":
            return ()
        return guidance_schedule.skipped_steps(request.num_inference_steps, request.guidance_scale, request.quality)

    def verified_keys(self) -> dict[str, frozenset[str]]:
        """What every gate verified so far, by site, as a certificate holds it."""
        texts = {name: gate.verified_key_texts() for name, gate in self._mount.gates.items()}
        return {name: keys for name, keys in texts.items() if keys}

    def graphs_report(self) -> dict[str, Any]:
        """CUDA graphs captured (warm-ups), and how the transformer's calls in timed requests were answered."""
        return self._graphs.report() if self._graphs else dict(NOT_ASKED_FOR)

    def environment(self) -> dict[str, Any]:
        """What torch and the libraries say of themselves: versions, device, threads, numerics flags."""
        return environment(self._device) | {
            "host_allocator": self.host_allocator,
            "attention_backend": self.settings.attention_backend or "native",
            "scheduler": scheduler_identity(self._runner.pipe.scheduler),
            "residency": residency(self._runner.pipe),
        }

    def _run_untimed(self, request: GenerationRequest) -> float:
        started = time.perf_counter()
        with self._graphs.capturing() if self._graphs else nullcontext():
            self._runner.run(request)
        return (time.perf_counter() - started) * 1e3

    def _steps_of_a_warm_up(self, request: GenerationRequest, steps: int | None) -> int:
        whole = request.num_inference_steps
        needed = native.steps_of_every_kind(self._runner.pipe)
        if steps is not None and steps < needed:
            steps = min(needed, whole)
        if steps is None or self.backend != "native":  # diffusers' own loop has one kind of step
            return steps or whole
        return guidance_schedule.warmup_steps(steps, whole, request.guidance_scale, request.quality)

    def _mounted(self, pipe: Any) -> Mount:
        settings = self.settings
        sites = settings.fastpaths or ("auto" if self.backend == "native" else "off")
        self._compares_every_call = sites != "off" and (settings.verify_every_step or settings.gate == "observe")
        if self._compares_every_call:
            self.warnings.append(session_warnings.VERIFIES_EVERY_STEP)
        return mount(
            pipe,
            quality=settings.quality,
            sites=sites,
            gate=settings.gate,
            verifies_every_call=settings.verify_every_step,
            certified=settings.certified,
            user_sites=settings.user_sites,
            call_observers=settings.call_observers,
            per_request=True,
        )

    def _warn_of_first_sights(self, before: tuple[int, float]) -> None:
        now = self._mount.first_sights()
        if now[0] > before[0] and not self._compares_every_call:
            self.warnings.append(session_warnings.first_sights(now[0] - before[0], now[1] - before[1]))

    def _warn_of_other_bits(self, request: GenerationRequest) -> None:
        """Of what quality permitted, and of what a gate that does not enforce let through; each once."""
        sites, skipped = self._mount.approximate_sites_that_ran(), self.guidance_skipped_steps(request)
        untrusted = session_warnings.untrusted(self._mount.gates, self._mount.mode, self._mount.differed_inside())
        for text in self._untrusted:  # what was observed by now replaces what was observed before
            self.warnings.remove(text)
        self._untrusted = untrusted
        for text in (*session_warnings.approximation(request, sites, skipped), *untrusted):
            if text not in self.warnings:
                self.warnings.append(text)

    def _checkpoint_peak(self, name: str) -> None:
        self._memory[name] = memory.checkpoint(self._device)
        if not memory.reset_peaks(self._device) and session_warnings.PEAKS_ACCUMULATE not in self.warnings:
            self.warnings.append(session_warnings.PEAKS_ACCUMULATE)
