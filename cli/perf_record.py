"""The perf dump of one ``fuseproof generate`` run (schema ``fuseproof.perf/1``), put together from what was measured.

Times are milliseconds, memory is MiB. The top-level keys are sglang-diffusion's and describe request 0; ``timers`` sums
over the requests. Loading, warm-up and compilation stand beside the requests, never inside them.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fuseproof.harness.machine.environment import redact, redact_mapping
from fuseproof.harness.perf.dump import SCHEMA, denoise_time


@dataclass(frozen=True)
class OutputRecord:
    """One decoded image or clip and, when it was written, its file. ``path`` and ``file_sha256`` are None when not.

    Of a clip ``pixels_sha256`` and ``raw_sha256`` are over all frames [T, H, W, 3] before encoding, and
    ``frames_sha256`` has the hash of each raw frame; an image has one frame, no ``fps`` and no hashes of frames.
    """

    path: Path | None
    file_sha256: str | None
    pixels_sha256: str
    raw_sha256: str
    latents_sha256: str
    width: int
    height: int
    nonfinite: int
    """How many raw values are NaN or infinite."""
    degenerate: str | None
    frames: int = 1
    fps: float | None = None
    frames_sha256: tuple[str, ...] = ()


@dataclass(frozen=True)
class RequestRecord:
    """One timed request. ``worker_ms`` is all its stages, ``client_ms`` from request in to file on disk."""

    prompt: str
    rewritten_prompt: str | None
    seed: int
    stages: tuple[tuple[str, float], ...]
    denoise_steps_ms: tuple[float, ...]
    worker_ms: float
    save_ms: float
    client_ms: float
    work: Mapping[str, int]
    output: OutputRecord
    frame_arrivals: tuple[tuple[int, float], ...] = ()
    """Of a clip that is decoded chunk by chunk: how many frames came, and when, in ms since the request began."""

    @property
    def denoise_ms(self) -> float | None:
        """Denoise time by the naming rule; None when nothing says."""
        summed: dict[str, float] = {}
        for name, duration_ms in self.stages:
            summed[name] = summed.get(name, 0.0) + duration_ms
        return denoise_time(summed, self.denoise_steps_ms)[0]

    @property
    def unattributed_ms(self) -> float:
        """Worker time that no stage accounts for."""
        return self.worker_ms - sum(duration_ms for _, duration_ms in self.stages)


@dataclass(frozen=True)
class RunRecord:
    """What is known of the whole run besides its requests."""

    model: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    load_ms: float
    warmup_ms: float
    compile_ms: float
    memory: Mapping[str, Mapping[str, float]]
    fastpaths: Mapping[str, Any]
    graphs: Mapping[str, Any]
    warnings: tuple[str, ...]


def assemble(requests: Sequence[RequestRecord], run: RunRecord, dump_folder: Path) -> dict[str, Any]:
    """The dump as JSON-ready values. Output paths are relative to ``dump_folder``; no path names the home folder."""
    first = requests[0]
    return {
        "schema": SCHEMA,
        "timestamp": datetime.now(UTC).isoformat(),
        "request_id": uuid.uuid4().hex,
        "commit_hash": _commit_hash(run.environment),
        "tag": "cli_generate",
        "total_duration_ms": first.worker_ms,
        "steps": _steps(first),
        "denoise_steps_ms": _denoise_steps(first),
        "memory_checkpoints": {name: dict(numbers) for name, numbers in run.memory.items()},
        "meta": {"prompt": [request.prompt for request in requests], "model": redact(run.model)},
        "config": redact_mapping(run.config),
        "environment": redact_mapping(run.environment),
        "timers": _timers(requests, run),
        "requests": [_request_entry(index, request) for index, request in enumerate(requests)],
        "outputs": [_output_entry(index, request.output, dump_folder) for index, request in enumerate(requests)],
        "fastpaths": dict(run.fastpaths),
        "graphs": dict(run.graphs),
        "warnings": [redact(warning) for warning in run.warnings],
    }


def recorded_path(output: Path, folder: Path) -> str:
    """``output`` relative to ``folder``; absolute with ``~`` where the relative form would name the home folder."""
    absolute = output.absolute()
    relative = os.path.relpath(absolute, folder.absolute())
    return redact(str(absolute)) if Path.home().name in Path(relative).parts else relative


def _commit_hash(environment: Mapping[str, Any]) -> str:
    checkout = environment.get("fuseproof") or {}
    commit = checkout.get("commit")
    if not commit:
        return "N/A"
    return f"{commit}+dirty" if checkout.get("is_dirty") else str(commit)


def _timers(requests: Sequence[RequestRecord], run: RunRecord) -> dict[str, float | None]:
    denoise = [request.denoise_ms for request in requests]
    known = [duration_ms for duration_ms in denoise if duration_ms is not None]
    return {
        "load_ms": run.load_ms,
        "warmup_ms": run.warmup_ms,
        "compile_ms": run.compile_ms,
        "worker_ms": sum(request.worker_ms for request in requests),
        "denoise_ms": sum(known) if len(known) == len(denoise) else None,
        "save_ms": sum(request.save_ms for request in requests),
        "client_ms": sum(request.client_ms for request in requests),
        "unattributed_ms": sum(request.unattributed_ms for request in requests),
    }


def _request_entry(index: int, request: RequestRecord) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "index": index,
        "prompt": request.prompt,
        "seed": request.seed,
        "worker_ms": request.worker_ms,
        "denoise_ms": request.denoise_ms,
        "save_ms": request.save_ms,
        "client_ms": request.client_ms,
        "unattributed_ms": request.unattributed_ms,
        "steps": _steps(request),
        "denoise_steps_ms": _denoise_steps(request),
        "work": dict(request.work),
    }
    if request.rewritten_prompt is not None:
        entry["rewritten_prompt"] = request.rewritten_prompt
    if request.frame_arrivals:
        entry["first_frame_ms"] = request.frame_arrivals[0][1]
        entry["frame_arrivals"] = [{"frames": frames, "at_ms": at_ms} for frames, at_ms in request.frame_arrivals]
    return entry


def _output_entry(index: int, output: OutputRecord, dump_folder: Path) -> dict[str, Any]:
    entry = {
        "request": index,
        "path": None if output.path is None else recorded_path(output.path, dump_folder),
        "file_sha256": output.file_sha256,
        "pixels_sha256": output.pixels_sha256,
        "raw_sha256": output.raw_sha256,
        "latents_sha256": output.latents_sha256,
        "width": output.width,
        "height": output.height,
        "frames": output.frames,
        "fps": output.fps,
        "nonfinite": output.nonfinite,
        "degenerate": output.degenerate,
    }
    return entry | ({"frames_sha256": list(output.frames_sha256)} if output.frames_sha256 else {})


def _steps(request: RequestRecord) -> list[dict[str, Any]]:
    return [{"name": name, "duration_ms": duration_ms} for name, duration_ms in request.stages]


def _denoise_steps(request: RequestRecord) -> list[dict[str, Any]]:
    return [{"step": step, "duration_ms": duration_ms} for step, duration_ms in enumerate(request.denoise_steps_ms)]
