"""One timed request of ``fuseproof generate``: run, written, hashed, recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fuseproof.cli.generate_destinations import destination_of
from fuseproof.cli.perf_record import OutputRecord, RequestRecord
from fuseproof.cli.phase_times import PhaseTimes
from fuseproof.cli.raw_arrays import keep_raw
from fuseproof.errors import FuseproofError
from fuseproof.harness.media.files import array_sha256, degenerate_reason, file_sha256, write_png

if TYPE_CHECKING:
    from fuseproof.cli.generation import Job
    from fuseproof.pipelines.request_run import GenerationResult
    from fuseproof.pipelines.session import Session

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Finished:
    """One timed request and what a reader should be told about it."""

    record: RequestRecord
    warnings: tuple[str, ...]


def to_pixels(image: npt.NDArray[np.float32]) -> Pixels:
    """The uint8 image of raw values in 0..1, rounded as diffusers' ``numpy_to_pil`` rounds; NaN becomes 0."""
    finite = np.nan_to_num(image, nan=0.0, posinf=1.0, neginf=0.0)
    pixels: Pixels = (np.clip(finite, 0.0, 1.0) * 255).round().astype(np.uint8)
    return pixels


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
        result = session.run(request)
    nonfinite = int(result.image.size - np.count_nonzero(np.isfinite(result.image)))
    keeps_file = destination is not None and (not nonfinite or job.options.asks_to_save)
    save_started = time.perf_counter()
    pixels = to_pixels(result.image)
    if destination is not None and keeps_file:
        write_png(destination, pixels)
    ended = time.perf_counter()
    if destination is not None and keeps_file:
        on_saved(destination)
    if nonfinite:
        raise _not_finite(nonfinite, result.image.size, index, session.dtype)
    if destination is not None and job.options.keep_raw:
        keep_raw(job.options, destination, result.image)
    output = _output(result, pixels, destination)
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
    )
    return Finished(record, tuple(warnings))


def _output(result: GenerationResult, pixels: Pixels, path: Path | None) -> OutputRecord:
    height, width = pixels.shape[:2]
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
    )


def _not_finite(count: int, total: int, index: int, dtype: str) -> FuseproofError:
    other = "float32" if dtype == "bfloat16" else "bfloat16"
    return FuseproofError(
        f"{count:,} of {total:,} raw values of image {index} are NaN or infinite, computed in {dtype}.",
        next_step=f"Try --dtype {other}; float16 overflows in many models.",
    )
