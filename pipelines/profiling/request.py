"""Running a request under torch's profiler and telling where its time went."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from fuseproof.errors import FuseproofError
from fuseproof.pipelines import session_warnings
from fuseproof.pipelines.divergence.following import StopHere
from fuseproof.pipelines.divergence.subject import Subject
from fuseproof.pipelines.families import FAMILIES
from fuseproof.pipelines.profiling import events, names, profile
from fuseproof.pipelines.profiling.bandwidth import CopyBandwidth, copy_bandwidth
from fuseproof.pipelines.profiling.disturbance import MachineWatch, StepClock, disturbance_warnings
from fuseproof.pipelines.profiling.events import Recording
from fuseproof.pipelines.profiling.following import ProfilingFollower, Window
from fuseproof.pipelines.profiling.known_chains import fast_paths
from fuseproof.pipelines.profiling.trace_files import LARGEST_BYTES, TraceKeeper
from fuseproof.pipelines.profiling.watching import SiteWatch, mark, uncounted
from fuseproof.pipelines.progress import SILENT
from fuseproof.pipelines.request_run import GenerationResult
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.session import Session
from fuseproof.pipelines.stages import DENOISING

COMPILED = "under torch.compile the calls of fast paths are not marked: their kernels are joined to modules only"
ONE_STEP = "the request has {whole} step(s): {profiled} were profiled, {asked} were asked for"
OWN_PIPELINE = "--backend {backend} runs diffusers' own pipeline and mounts fast paths only with --fastpaths"
KINDS = "quality {quality} skips guidance in some steps of this request: the profiled steps do not stand for all"


def profile_and_run(
    session: Session,
    request: GenerationRequest,
    *,
    steps: int = 3,
    all_stages: bool = False,
    trace_file: Path,
    about: Mapping[str, Any] | None = None,
    largest_trace_bytes: int = LARGEST_BYTES,
    machine: MachineWatch | None = None,
) -> tuple[dict[str, Any], GenerationResult]:
    """Run ``request`` with ``steps`` complete denoising steps under a profiler: the profile, JSON-ready, and result.

    ``all_stages`` profiles every other stage too, each as a whole. The Chrome trace goes to ``trace_file``
    (``.json.gz``, below ``largest_trace_bytes``), those of other stages beside it. ``about`` says what a session does
    not know of its request: ``model``, ``family``, ``weights``, ``flags``; ``machine`` tells what other processes used
    meanwhile. A session that has not been warmed up is warmed up first. The result's times are a profiler's, and the
    session says so. Raises :class:`FuseproofError` where no step could be profiled.

    What it costs: nothing of it touches a request that is not profiled. Under the profiler the host is slowed down by
    every Python call and operation that is noted; the time of kernels on a device is not.
    """
    if session.warmup_steps is None:
        session.warm_up(request, steps=steps + 1)
    window = window_of(request.num_inference_steps, steps, all_stages=all_stages)
    run = _ProfiledRun(session, request, window, machine)
    traces = TraceKeeper(trace_file, largest_trace_bytes)
    result, follower = run.whole(traces)
    if not any(profile.windows(recording) for recording in follower.recordings):
        raise FuseproofError(
            "no complete denoising step could be profiled: the pipeline told of none.",
            next_step="Use --backend native, or a pipeline whose steps are timed.",
        )
    report = _report(session)
    graphs = session.graphs_report()
    eager = run.without_replay() if graphs.get("replayed") else None
    device, pipe = torch.device(session.device), session.pipe
    bandwidth = copy_bandwidth(device)
    components = names.site_components(pipe)
    found = profile.tables(
        profile.Seen(tuple(follower.recordings), eager),
        names.names_of(run.subject, session.mounted),
        report,
        steps_of_request={DENOISING: follower.steps_of_request},
        bandwidth_gb_s=bandwidth.gb_s,
        paths=fast_paths(report, names.site_kernels(pipe), components),
    )
    on_device = device.type == "cuda"
    found["disturbance"] = follower.clock.to_json(on_device=on_device, outliers=found["disturbance"])
    warnings = [
        *run.warnings(steps, follower.steps_of_request),
        *disturbance_warnings(found["disturbance"], found["attribution"]["device_us"], on_device=on_device),
        *found.pop("warnings"),
        *traces.warnings,
        *session.warnings,
    ]
    head = {
        "schema": profile.SCHEMA,
        "request": _request_entry(session, request, about or {}),
        "environment": session.environment(),
        "device": _device_entry(device, bandwidth),
        "timed": False,
        "note": profile.NOTE,
    }
    return head | found | {"trace": traces.to_json(), "warnings": warnings}, result


def window_of(whole: int, steps: int, *, all_stages: bool) -> Window:
    """Which of ``whole`` steps to profile; of a clip made in chunks ``whole`` are those of its first.

    Not the first step, where others suffice: what is held for a whole request is made in it, so it stands for no other.
    """
    return Window(first=1 if whole > steps else 0, count=min(steps, whole), all_stages=all_stages)


class _ProfiledRun:
    """One request on one session, under a profiler."""

    def __init__(
        self, session: Session, request: GenerationRequest, window: Window, machine: MachineWatch | None = None
    ) -> None:
        self._machine = machine
        self.subject = Subject.of(session.pipe)
        self._session = session
        self._request = request
        self._window = window
        self._device = torch.device(session.device)
        self._watch = SiteWatch(session.mounted.gates)

    def whole(self, traces: TraceKeeper) -> tuple[GenerationResult, ProfilingFollower]:
        """Run the request to its end; its result, and who followed it."""
        session = self._session
        session.is_profiled = True
        if session_warnings.PROFILED not in session.warnings:
            session.warnings.append(session_warnings.PROFILED)
        follower = self._follower(self._window)
        follower.keep_trace = traces.keep
        follower.clock = StepClock(self._machine)
        with self._marked(), session.followed_by(follower.beside):
            try:
                return session.run(self._request), follower
            finally:
                follower.close()

    def without_replay(self) -> Recording | None:
        """The first profiled step once more, with the same branches and no graph; what it launches tells of replays."""
        session, window = self._session, Window(self._window.first, 1, ends_there=True)
        follower = self._follower(window)

        def marked(function: Any, *args: Any, **kwargs: Any) -> Any:
            with mark(events.GRAPHED_MARK):
                return function(*args, **kwargs)

        gates = session.mounted.gates
        with uncounted(gates), self._marked(), session.followed_by(follower.beside), session.without_replays(marked):
            try:
                session.run_uncounted(self._request)
            except StopHere:
                pass
            finally:
                follower.close()
        return follower.recordings[0] if follower.recordings else None

    def warnings(self, asked: int, whole: int) -> list[str]:
        """What a reader should know of which steps were profiled, and how."""
        session, request, found = self._session, self._request, []
        if self._window.count < asked:
            found.append(ONE_STEP.format(whole=whole, profiled=self._window.count, asked=asked))
        if session.guidance_skipped_steps(request):
            found.append(KINDS.format(quality=request.quality))
        if session.settings.enable_torch_compile:
            found.append(COMPILED)
        return found

    def _follower(self, window: Window) -> ProfilingFollower:
        return ProfilingFollower(window, self._device, self._watch, SILENT)

    def _marked(self) -> Any:
        return nullcontext() if self._session.settings.enable_torch_compile else self._watch.watching()


def _report(session: Session) -> dict[str, Any]:
    """The sites; where a backend that runs diffusers' own pipeline mounts none, that is their reason."""
    report = session.fastpaths_report()
    if session.backend == "native" or session.mounted.requested != "off":
        return report
    sites = {
        name: {**site, "reason": OWN_PIPELINE.format(backend=session.backend)} if site["state"] == "off" else site
        for name, site in report["sites"].items()
    }
    return {**report, "sites": sites}


def _request_entry(session: Session, request: GenerationRequest, about: Mapping[str, Any]) -> dict[str, Any]:
    settings, kind = session.settings, type(session.pipe).__name__
    family = next((one.name for one in FAMILIES.values() if one.pipeline_class == kind), kind)
    return {
        "model": about.get("model", family),
        "family": about.get("family", family),
        "backend": session.backend,
        "weights": about.get("weights", "given"),
        "width": request.width,
        "height": request.height,
        "frames": request.num_frames,
        "steps": request.num_inference_steps,
        "guidance": float(request.guidance_scale),
        "seed": request.seed,
        "quality": request.quality,
        "fastpaths": session.mounted.requested,
        "cuda_graph": settings.enable_breakable_cuda_graph,
        "compile": settings.enable_torch_compile,
        "batch": 1,
        "flags": list(about.get("flags", ())),
    }


def _device_entry(device: torch.device, bandwidth: CopyBandwidth) -> dict[str, Any]:
    on_cuda = device.type == "cuda"
    return {
        "kind": "cuda" if on_cuda else "cpu",
        "name": torch.cuda.get_device_name(device) if on_cuda else "cpu",
        "copy_bandwidth_gb_s": bandwidth.gb_s,
        "copy_buffer_bytes": bandwidth.buffer_bytes,
        "no_saving_reason": None if on_cuda else profile.NO_SAVING,
        "kernel_word": "kernel" if on_cuda else "CPU operation",
    }
