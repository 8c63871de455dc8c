"""One timed request of ``fuseproof generate``: run, written, hashed, recorded. Its image may be a clip."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fuseproof.cli import clip_outputs
from fuseproof.cli.clip_outputs import Pixels
from fuseproof.cli.generate_destinations import destination_of
from fuseproof.cli.perf_record import OutputRecord, RequestRecord
from fuseproof.cli.phase_times import PhaseTimes
from fuseproof.cli.profile_capture import run_profiled
from fuseproof.cli.raw_arrays import keep_raw
from fuseproof.errors import FuseproofError
from fuseproof.harness.media.files import array_sha256, degenerate_reason, file_sha256

if TYPE_CHECKING:
    from fuseproof.cli.generation import Job
    from fuseproof.pipelines.request_run import GenerationResult
    from fuseproof.pipelines.session import Session


@dataclass(frozen=True)
class Finished:
    """One timed request and what a reader should be told about it."""

    record: RequestRecord
    warnings: tuple[str, ...]


def run_one(index: int, job: Job, session: Session, on_saved: Callable[[Path], None], times: PhaseTimes) -> Finished:
    """Run request ``index``, noting its ``times``, and save its image.

    Raises :class:`FuseproofError` where a raw value is not finite.
    """
    request = job.requests[index]
    destination = destination_of(job.options, request, index)
    warnings = []
    if destination is not None and destination.exists():
        warnings.append(f"{destination} existed and was replaced.")
    started = time.perf_counter()
    with times.during("request"):
        result = run_profiled(job, session, destination) if job.options.profile else session.run(request)
    nonfinite = int(result.image.size - np.count_nonzero(np.isfinite(result.image)))
    keeps_file = destination is not None and (not nonfinite or job.options.asks_to_save)
    fps = clip_outputs.rate_of(job.options, job.family) if request.num_frames is not None else None
    save_started = time.perf_counter()
    pixels = clip_outputs.pixels_of(result.image)
    if destination is not None and keeps_file:
        clip_outputs.write(destination, pixels, fps, job.options.output_quality)
    ended = time.perf_counter()
    if destination is not None and keeps_file:
        on_saved(destination)
    if nonfinite:
        raise _not_finite(nonfinite, result.image.size, index, session.dtype, request.is_guided)
    if destination is not None and job.options.keep_raw:
        keep_raw(job.options, destination, result.image)
    output = _output(result, pixels, destination, fps)
    if output.degenerate:
        warnings.append(f"image {index} is {output.degenerate}: equality with another one would prove nothing.")
    record = RequestRecord(
        prompt=request.prompt,
        rewritten_prompt=result.rewritten_prompt,
        seed=request.seed,
        stages=tuple((stage.name, stage.milliseconds) for stage in result.stages),
        denoise_steps_ms=tuple(result.denoise_steps_ms),
        worker_ms=result.worker_ms,
        save_ms=(ended - save_started) * 1e3 if destination is not None else 0.0,
        client_ms=(ended - started) * 1e3,
        work=result.work,
        output=output,
        frame_arrivals=tuple((arrival.frames, arrival.milliseconds) for arrival in result.frame_arrivals),
    )
    return Finished(record, tuple(warnings))


def _output(result: GenerationResult, pixels: Pixels, path: Path | None, fps: float | None) -> OutputRecord:
    height, width = pixels.shape[-3:-1]
    return OutputRecord(
        path=path,
        file_sha256=None if path is None else file_sha256(path),
        pixels_sha256=array_sha256(pixels),
        raw_sha256=array_sha256(result.image),
        latents_sha256=array_sha256(result.latents),
        width=width,
        height=height,
        nonfinite=0,
        degenerate=degenerate_reason(result.image),
        frames=1 if fps is None else len(pixels),
        fps=fps,
        frames_sha256=tuple(clip_outputs.frame_hashes(result.image)),
    )


def _not_finite(count: int, total: int, index: int, dtype: str, is_guided: bool) -> FuseproofError:
    if dtype == "float16":
        advice = "Try --dtype bfloat16; float16 overflows in many models."
    else:
        advice = f"Compare the weight files with the published ones; {dtype} itself seldom overflows."
        advice = f"Try a smaller --guidance-scale, or {advice[0].lower()}{advice[1:]}" if is_guided else advice
    return FuseproofError(
        f"{count:,} of {total:,} raw values of image {index} are NaN or infinite, computed in {dtype}.",
        next_step=advice,
    )
