"""What ``fuseproof generate`` does once its flags are known: check everything that can be, then load, run, record.

:func:`prepare` reads no weight and writes nothing; every mistake that can be found by then is found there.
:func:`execute` loads the model and runs the requests one by one. The command imports this module only after parsing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fuseproof.cli import edit_inputs, generate_rules
from fuseproof.cli.edit_inputs import Canvas
from fuseproof.cli.fastpath_choices import (
    ChosenCertificate,
    choose_certificate,
    lost_coverage,
    read_user_sites,
    refuse_unmet,
    unmet_text,
)
from fuseproof.cli.generate_options import GenerateOptions
from fuseproof.cli.generate_requests import expected_family, plan_requests, request_warnings
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
from fuseproof.errors import FuseproofError
from fuseproof.harness.machine.environment import describe
from fuseproof.harness.media.files import array_sha256, degenerate_reason, file_sha256, write_png
from fuseproof.harness.perf.graphs import graph_shortfall
from fuseproof.pipelines.checkpoints import Checkpoint, check_checkpoint
from fuseproof.pipelines.dummy_geometry import family_of_dummy, weights_identity
from fuseproof.pipelines.embedded import ResolvedModel, resolve_model
from fuseproof.pipelines.families import Family, refuse_ids_of_later_families
from fuseproof.pipelines.guidance_schedule import skipped_steps
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.progress import ProgressObserver
from fuseproof.pipelines.requests import GenerationRequest

if TYPE_CHECKING:
    from fuseproof.fastpaths.user_sites import UserSites
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
    family: Family
    model: ResolvedModel | None
    checkpoint: Checkpoint | None
    """None, as ``model`` is, where ``--load-format dummy`` makes the weights."""
    requests: tuple[GenerationRequest, ...]
    warmups: tuple[GenerationRequest, ...]
    images: tuple[ImageInput, ...]
    canvas: Canvas | None = None
    """Where the family edits an image: the image as it is handed on, and the size that it gives."""
    warnings: tuple[str, ...] = ()
    user_sites: UserSites | None = None
    """The fast paths of one's own, from ``--fastpaths-from``."""


@dataclass(frozen=True)
class Finished:
    """One timed request and what a reader should be told about it."""

    record: RequestRecord
    warnings: tuple[str, ...]


def prepare(options: GenerateOptions) -> Job:
    """Check prompts, folders, images, checkpoint and requests; raises before any weight is read."""
    user_sites = read_user_sites(options)
    prompts = read_prompts(options.prompt, options.prompt_path)
    generate_rules.check_prompt_count(options, len(prompts))
    check_destinations(options, SMALLEST_OUTPUT_BYTES)
    is_dummy = options.load_format == "dummy"
    if not is_dummy:
        refuse_ids_of_later_families(options.model_path)
    images = tuple(read_image_input(source) for source in options.image_path)
    family, model, checkpoint = _dummy_model(options) if is_dummy else _found_model(options, prompts, images)
    canvas = _canvas(options, family, images, checkpoint)
    requests, warmups = plan_requests(options, prompts, family, canvas, checkpoint)
    check_destinations(options, sum(int(r.width * r.height * 3 * PNG_GROWTH) for r in requests) + SMALLEST_OUTPUT_BYTES)
    warnings = request_warnings(options, family, canvas, checkpoint)
    return Job(options, family, model, checkpoint, requests, warmups, images, canvas, warnings, user_sites)


def _found_model(
    options: GenerateOptions, prompts: tuple[str, ...], images: tuple[ImageInput, ...]
) -> tuple[Family, ResolvedModel | None, Checkpoint | None]:
    expected = expected_family(options)
    if expected is not None:
        plan_requests(options, prompts, expected, _canvas(options, expected, images, None))
    model = resolve_model(options.model_path, options.revision)
    checkpoint = check_checkpoint(model.folder, expected)
    return checkpoint.family, model, checkpoint


def _canvas(
    options: GenerateOptions, family: Family, images: tuple[ImageInput, ...], checkpoint: Checkpoint | None
) -> Canvas | None:
    edit_inputs.refuse_image_count(options, family)
    return edit_inputs.canvas_of(options, family, images, checkpoint)


def _dummy_model(options: GenerateOptions) -> tuple[Family, ResolvedModel | None, Checkpoint | None]:
    return family_of_dummy(options.model_path), None, None


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
        "--fastpaths-from": [None if options.fastpaths_from is None else Path(options.fastpaths_from)],
    }
    is_named = options.saves_output and options.fixed_file_name is not None
    image = options.output_folder / str(options.fixed_file_name) if is_named else None
    dump = None if options.perf_dump_path is None else Path(options.perf_dump_path)
    check_distinct(image, "the output file", inputs)
    check_distinct(dump, "--perf-dump-path", {**inputs, "the output file": [image]})


def execute(job: Job, observer: ProgressObserver, on_saved: Callable[[Path], None]) -> dict[str, Any]:
    """Load, warm up, run every request and return the perf dump. ``on_saved`` hears of each file once it is whole."""
    machine = describe()  # before this process adds its own load and the libraries their own variables
    certificate = choose_certificate(job.options, job.user_sites)
    session = open_session(job, observer, certificate)
    try:
        if job.options.require_fastpaths:
            refuse_unmet(session.fastpaths_report(), ("declined",))
        for request in job.warmups:
            session.warm_up(request, job.options.warmup_plan.steps)
        if job.options.saves_output:
            create_folder(job.options.output_folder, "--output-path")
        finished = [_run_one(index, job, session, on_saved) for index in range(len(job.requests))]
        return _dump(job, session, finished, machine, certificate)
    finally:
        session.close()


def open_session(
    job: Job,
    observer: ProgressObserver,
    certificate: ChosenCertificate | None = None,
    call_observers: Mapping[str, Callable[..., None]] | None = None,
) -> Session:
    """Load the job's model and mount its fast paths; ``call_observers`` hear of every kernel call at a site."""
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
        enable_breakable_cuda_graph=options.enable_breakable_cuda_graph,
        enable_prompt_rewrite=options.enable_prompt_rewrite,
        certified=certificate.keys() if certificate is not None else None,
        verify_every_step=options.verify_every_step,
        user_sites=job.user_sites.sites if job.user_sites is not None else (),
        call_observers=call_observers,
    )
    if job.checkpoint is not None and job.family.takes_image:
        from fuseproof.pipelines.edit_guards import refuse_prompts_before_loading

        refuse_prompts_before_loading(job.checkpoint, job.requests)
    if job.model is None or job.checkpoint is None:
        return Session.open_dummy(job.family, settings, observer)
    return Session.open(job.model, job.checkpoint, settings, observer)


def to_pixels(image: npt.NDArray[np.float32]) -> Pixels:
    """The uint8 image of raw values in 0..1, rounded as diffusers' ``numpy_to_pil`` rounds; NaN becomes 0."""
    finite = np.nan_to_num(image, nan=0.0, posinf=1.0, neginf=0.0)
    pixels: Pixels = (np.clip(finite, 0.0, 1.0) * 255).round().astype(np.uint8)
    return pixels


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


def _dump(
    job: Job, session: Session, finished: list[Finished], machine: Mapping[str, Any], certificate: ChosenCertificate
) -> dict[str, Any]:
    fastpaths = session.fastpaths_report()
    coverage = None if job.options.require_fastpaths else lost_coverage(fastpaths, certificate.certificate)
    found = [
        *(job.model.warnings if job.model else ()),
        *job.options.warnings(),
        *job.warnings,
        *session.warnings,
        *(text for one in finished for text in one.warnings),
    ]
    said = (certificate.warning, coverage, hash_seed_warning(), thread_count_warning(os.environ))
    found += [text for text in said if text is not None]
    run = RunRecord(
        model=job.options.model_path,
        config=_config(job, session),
        environment={**machine, **session.environment(), **hash_seed_record()},
        load_ms=session.load_ms,
        warmup_ms=session.warmup_ms,
        compile_ms=session.compile_ms,
        memory=session.memory_checkpoints(),
        fastpaths=fastpaths,
        graphs=session.graphs_report(),
        warnings=tuple(found),
    )
    folder = Path(job.options.perf_dump_path).parent if job.options.perf_dump_path else Path()
    dump = assemble([one.record for one in finished], run, folder)
    missing = [text for text in (missing_graphs(dump), missing_fastpaths(dump)) if text]
    return dump | {"warnings": [*dump["warnings"], *(f"this measurement is invalid: {text}" for text in missing)]}


def missing_fastpaths(dump: Mapping[str, Any]) -> str | None:
    """Which fast paths a run with ``--require-fastpaths`` lacks, as a sentence; None where it lacks none."""
    unmet = unmet_text(dump["fastpaths"]) if dump["config"].get("require_fastpaths") else None
    return None if unmet is None else f"--require-fastpaths: {unmet}."


def missing_graphs(dump: Mapping[str, Any]) -> str | None:
    """How the CUDA graphs that a run asked for fall short, as a sentence; None where nothing is missing."""
    shortfall = graph_shortfall(dump["config"], dump["graphs"], dump["requests"])
    return None if shortfall is None else f"CUDA graphs were asked for: {shortfall}."


def _guidance_skipped_steps(request: GenerationRequest, backend: str) -> list[int]:
    """The steps that quality has run one guidance branch instead of two; diffusers' own loop skips none."""
    if backend != "native":
        return []
    return list(skipped_steps(request.num_inference_steps, request.guidance_scale, request.quality))


def _config(job: Job, session: Session) -> dict[str, Any]:
    """Every effective flag, with what the model and the machine decided filled in."""
    first = job.requests[0]
    return job.options.as_config() | {
        "resolved_revision": job.model.revision if job.model else None,
        "model_source": job.model.source if job.model else "dummy",
        "model_sha256": job.model.content_sha256 if job.model else None,
        "weights": None if job.model else weights_identity(),
        "family": job.family.name,
        "backend_used": session.backend,
        "fallback_reason": session.fallback_reason,
        "device": session.device,
        "dtype": session.dtype,
        "width": first.width,
        "height": first.height,
        "num_inference_steps": first.num_inference_steps,
        "guidance_scale": first.guidance_scale,
        "guidance_skipped_steps": _guidance_skipped_steps(first, session.backend),
        "enable_cfg_renorm": first.enable_cfg_renorm,
        "image_path": [image.source for image in job.images],
        "image_sha256": [image.sha256 for image in job.images],
        "image_conversions": list(job.canvas.image.conversions) if job.canvas else [],
        "canvas_pixels": first.canvas_pixels,
        "requested_size": edit_inputs.requested_size(job.options),
        "fastpaths_from_sha256": job.user_sites.sha256 if job.user_sites is not None else None,
    }
