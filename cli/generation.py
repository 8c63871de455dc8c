"""What ``fuseproof generate`` does once its flags are known: check everything that can be, then load, run, record.

:func:`prepare` reads no weight and writes nothing; every mistake that can be found by then is found there.
:func:`execute` loads the model and runs the requests one by one. The command imports this module only after parsing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fuseproof.cli import generate_rules
from fuseproof.cli.generate_options import WARMUP_SYNTHETIC_PROMPT, GenerateOptions
from fuseproof.cli.hash_seed import hash_seed_record, hash_seed_warning
from fuseproof.cli.image_inputs import ImageInput, read_image_input
from fuseproof.cli.output_names import (
    check_distinct,
    check_dump_path,
    check_file_name,
    check_writable,
    create_folder,
    default_file_name,
    free_path,
)
from fuseproof.cli.perf_record import OutputRecord, RequestRecord, RunRecord, assemble
from fuseproof.cli.prompts import read_prompts
from fuseproof.cli.thread_count import thread_count_warning
from fuseproof.errors import FuseproofError, UsageError
from fuseproof.harness.machine.environment import describe
from fuseproof.harness.media.files import array_sha256, degenerate_reason, file_sha256, write_png
from fuseproof.pipelines.checkpoints import Checkpoint, check_checkpoint
from fuseproof.pipelines.embedded import PREFIX, ResolvedModel, resolve_model
from fuseproof.pipelines.families import FAMILIES, Family, refuse_ids_of_later_families
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.progress import ProgressObserver
from fuseproof.pipelines.requests import GenerationRequest, nearest_sizes, validate_request

if TYPE_CHECKING:
    from fuseproof.pipelines.session import GenerationResult, Session

SMALLEST_OUTPUT_BYTES = 64 * 1024
DUMP_BYTES = 256 * 1024
PNG_GROWTH = 1.05
"""The most that a PNG of noise exceeds its pixels by, with room to spare."""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Job:
    """A run that is ready to load its model."""

    options: GenerateOptions
    model: ResolvedModel
    checkpoint: Checkpoint
    requests: tuple[GenerationRequest, ...]
    warmups: tuple[GenerationRequest, ...]
    images: tuple[ImageInput, ...]


@dataclass(frozen=True)
class Finished:
    """One timed request and what a reader should be told about it."""

    record: RequestRecord
    warnings: tuple[str, ...]


def prepare(options: GenerateOptions) -> Job:
    """Check prompts, folders, images, checkpoint and requests; raises before any weight is read."""
    prompts = read_prompts(options.prompt, options.prompt_path)
    generate_rules.check_prompt_count(options, len(prompts))
    check_destinations(options, SMALLEST_OUTPUT_BYTES)
    refuse_ids_of_later_families(options.model_path)
    images = tuple(read_image_input(source) for source in options.image_path)
    expected = _expected_family(options.model_path)
    if expected is not None:
        _plan(options, prompts, expected)
    model = resolve_model(options.model_path, options.revision)
    checkpoint = check_checkpoint(model.folder)
    requests, warmups = _plan(options, prompts, checkpoint.family, checkpoint)
    check_destinations(options, sum(int(r.width * r.height * 3 * PNG_GROWTH) for r in requests) + SMALLEST_OUTPUT_BYTES)
    return Job(options, model, checkpoint, requests, warmups, images)


def check_destinations(options: GenerateOptions, output_bytes: int) -> None:
    """Whether the output folder and the perf dump can be written, without creating either."""
    if options.saves_output:
        flag = "--output-path" if options.output_file_path is None else "--output-file-path in"
        check_writable(options.output_folder, output_bytes, flag)
        if options.fixed_file_name is not None:
            check_file_name(options.output_folder / options.fixed_file_name, "the output file")
    if options.perf_dump_path is not None:
        check_dump_path(Path(options.perf_dump_path), DUMP_BYTES)
    _check_distinct_files(options)


def _check_distinct_files(options: GenerateOptions) -> None:
    """No output may replace what the run reads, and the dump may not replace the image."""
    inputs: dict[str, list[Path | None]] = {
        "--config": [None if options.config is None else Path(options.config)],
        "--prompt-path": [None if options.prompt_path is None else Path(options.prompt_path)],
        "--image-path": [Path(source) for source in options.image_path if "://" not in source],
    }
    is_named = options.saves_output and options.fixed_file_name is not None
    image = options.output_folder / str(options.fixed_file_name) if is_named else None
    dump = None if options.perf_dump_path is None else Path(options.perf_dump_path)
    check_distinct(image, "the output file", inputs)
    check_distinct(dump, "--perf-dump-path", {**inputs, "the output file": [image]})


def execute(job: Job, observer: ProgressObserver, on_saved: Callable[[Path], None]) -> dict[str, Any]:
    """Load, warm up, run every request and return the perf dump. ``on_saved`` hears of each file once it is whole."""
    machine = describe()  # before this process adds its own load and the libraries their own variables
    silence_libraries()
    from fuseproof.pipelines.session import Session, SessionSettings

    options = job.options
    settings = SessionSettings(
        backend=options.backend,
        device=None if options.device == "auto" else options.device,
        dtype=None if options.dtype == "auto" else options.dtype,
        attention_backend=options.attention_backend,
        fastpaths=options.effective_fastpaths,
        gate=options.gate,
        quality=options.quality,
        enable_torch_compile=options.enable_torch_compile,
        enable_prompt_rewrite=options.enable_prompt_rewrite,
    )
    session = Session.open(job.model, job.checkpoint, settings, observer)
    try:
        for request in job.warmups:
            session.warm_up(request, options.warmup_plan.steps)
        if options.saves_output:
            create_folder(options.output_folder, "--output-path")
        finished = [_run_one(index, job, session, on_saved) for index in range(len(job.requests))]
        return _dump(job, session, finished, machine)
    finally:
        session.close()


def to_pixels(image: npt.NDArray[np.float32]) -> Pixels:
    """The uint8 image of raw values in 0..1, rounded as diffusers' ``numpy_to_pil`` rounds; NaN becomes 0."""
    finite = np.nan_to_num(image, nan=0.0, posinf=1.0, neginf=0.0)
    pixels: Pixels = (np.clip(finite, 0.0, 1.0) * 255).round().astype(np.uint8)
    return pixels


def _nearest(side: int, family: Family) -> int:
    nearest = nearest_sizes(side, family)
    return side if side in nearest else nearest[-1]


def _check_family(options: GenerateOptions, family: Family) -> None:
    if options.image_path and not family.takes_image:
        raise UsageError(
            f"--image-path was given, but {family.title} makes images from text alone.",
            next_step="Drop --image-path, or choose an editing model once this release supports one.",
        )
    if family.makes_video:
        return
    for flag, frames in (("--num-frames", options.num_frames), ("--warmup-num-frames", options.warmup_num_frames)):
        if frames not in (None, 1):
            raise UsageError(
                f"{flag} is {frames}, but {family.title} makes single images; only 1 is possible.",
                next_step=f"Drop {flag}; this release has no video model.",
            )
    if options.fps is not None:
        raise UsageError(
            f"--fps is {options.fps:g}, but {family.title} makes single images, which have no frame rate.",
            next_step="Drop --fps; this release has no video model.",
        )


def _expected_family(model_path: str) -> Family | None:
    """The family that a model's name promises, so that a bad request is refused before anything is downloaded."""
    for family in FAMILIES.values():
        if model_path in family.model_ids or model_path == PREFIX + family.name:
            return family
    return None


def _plan(
    options: GenerateOptions, prompts: tuple[str, ...], family: Family, checkpoint: Checkpoint | None = None
) -> tuple[tuple[GenerationRequest, ...], tuple[GenerationRequest, ...]]:
    """The timed requests and the warm-ups, valid for ``family``."""
    _check_family(options, family)
    requests = tuple(_request(options, prompt, family) for prompt in prompts)
    warmups = _warmup_requests(options, requests[0])
    for request in requests:
        validate_request(request, family, checkpoint)
    for request in warmups:
        _validate_warmup(request, family, checkpoint)
    return requests, warmups


def _validate_warmup(request: GenerationRequest, family: Family, checkpoint: Checkpoint | None) -> None:
    """The timed requests have passed, so only a warm-up's own size can be wrong."""
    try:
        validate_request(request, family, checkpoint)
    except UsageError as error:
        width, height = _nearest(request.width, family), _nearest(request.height, family)
        fits = width * height <= family.maximum_pixels
        raise UsageError(
            f"--warmup-resolutions {request.width}x{request.height}: {error.message}",
            next_step=f"Use --warmup-resolutions {width}x{height}." if fits else "Use a smaller --warmup-resolutions.",
        ) from error


def _request(options: GenerateOptions, prompt: str, family: Family) -> GenerationRequest:
    is_embedded = options.model_path.startswith(PREFIX)
    width = family.embedded_width if is_embedded else family.default_width
    height = family.embedded_height if is_embedded else family.default_height
    steps = family.embedded_steps if is_embedded else family.default_steps
    guidance_scale = options.guidance_scale
    return GenerationRequest(
        prompt=prompt,
        negative_prompt=options.negative_prompt,
        width=options.width or width,
        height=options.height or height,
        num_inference_steps=options.num_inference_steps or steps,
        guidance_scale=family.default_guidance_scale if guidance_scale is None else guidance_scale,
        seed=options.seed,
        generator_device="cuda" if options.generator_device == "cuda" else "cpu",
        enable_cfg_renorm=options.enable_cfg_renorm,
        cfg_renorm_min=options.cfg_renorm_min,
        enable_prompt_rewrite=options.enable_prompt_rewrite,
        quality=options.quality,
    )


def _warmup_requests(options: GenerateOptions, first: GenerationRequest) -> tuple[GenerationRequest, ...]:
    """One warm-up per size; a compiled run must warm its own size, or it would compile inside the timed request."""
    plan = options.warmup_plan
    if plan.mode == "off":
        return ()
    sizes = plan.resolutions or ((first.width, first.height),)
    if options.enable_torch_compile and (first.width, first.height) not in sizes:
        raise UsageError(
            f"--warmup-resolutions leaves out the request's own {first.width}x{first.height}, so "
            "--enable-torch-compile would compile inside the timed request.",
            next_step=f"Add --warmup-resolutions {first.width}x{first.height}.",
        )
    prompt = WARMUP_SYNTHETIC_PROMPT if plan.mode == "server" else first.prompt
    return tuple(replace(first, prompt=prompt, width=width, height=height) for width, height in sizes)


def _run_one(index: int, job: Job, session: Session, on_saved: Callable[[Path], None]) -> Finished:
    request = job.requests[index]
    destination = _destination(job.options, request, index)
    warnings = []
    if destination is not None and destination.exists():
        warnings.append(f"{destination} existed and was replaced.")
    started = time.perf_counter()
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


def _destination(options: GenerateOptions, request: GenerationRequest, index: int) -> Path | None:
    if not options.saves_output:
        return None
    if options.fixed_file_name is not None:
        return options.output_folder / options.fixed_file_name
    name = default_file_name(request.prompt, f"{index}|{request}", datetime.now(UTC).astimezone())
    return free_path(options.output_folder, name)


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


def _dump(job: Job, session: Session, finished: list[Finished], machine: Mapping[str, Any]) -> dict[str, Any]:
    found = [
        *job.model.warnings,
        *job.options.warnings(),
        *session.warnings,
        *(text for one in finished for text in one.warnings),
    ]
    found += [text for text in (hash_seed_warning(), thread_count_warning(os.environ)) if text is not None]
    run = RunRecord(
        model=job.options.model_path,
        config=_config(job, session),
        environment={**machine, **session.environment(), **hash_seed_record()},
        load_ms=session.load_ms,
        warmup_ms=session.warmup_ms,
        compile_ms=session.compile_ms,
        memory=session.memory_checkpoints(),
        fastpaths=session.fastpaths_report(),
        graphs=session.graphs_report(),
        warnings=tuple(found),
    )
    folder = Path(job.options.perf_dump_path).parent if job.options.perf_dump_path else Path()
    return assemble([one.record for one in finished], run, folder)


def _config(job: Job, session: Session) -> dict[str, Any]:
    """Every effective flag, with what the model and the machine decided filled in."""
    first = job.requests[0]
    return job.options.as_config() | {
        "resolved_revision": job.model.revision,
        "model_source": job.model.source,
        "model_sha256": job.model.content_sha256,
        "family": job.checkpoint.family.name,
        "backend_used": session.backend,
        "fallback_reason": session.fallback_reason,
        "device": session.device,
        "dtype": session.dtype,
        "width": first.width,
        "height": first.height,
        "num_inference_steps": first.num_inference_steps,
        "guidance_scale": first.guidance_scale,
        "image_path": [image.source for image in job.images],
        "image_sha256": [image.sha256 for image in job.images],
    }
