"""What ``fuseproof generate`` does once its flags are known: check everything that can be, then load, run, record.

:func:`prepare` reads no weight and writes nothing; every mistake that can be found by then is found there.
:func:`execute` loads the model and runs the requests one by one. The command imports this module only after parsing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.cli import clip_outputs, edit_inputs, generate_rules
from fuseproof.cli.edit_inputs import Canvas
from fuseproof.cli.fastpath_choices import (
    ChosenCertificate,
    choose_certificate,
    read_user_sites,
    refuse_fallback,
    refuse_unmet_at_once,
)
from fuseproof.cli.fixed_prompts import read_fixed_prompts
from fuseproof.cli.generate_destinations import check_destinations
from fuseproof.cli.generate_images import run_one
from fuseproof.cli.generate_options import GenerateOptions
from fuseproof.cli.generate_record import perf_dump
from fuseproof.cli.generate_requests import Prompt, expected_family, plan_requests, request_warnings
from fuseproof.cli.image_inputs import ImageInput, read_image_input
from fuseproof.cli.output_names import made_folder
from fuseproof.cli.phase_times import PhaseTimes
from fuseproof.cli.prompts import read_prompts
from fuseproof.harness.machine.environment import describe
from fuseproof.pipelines.checkpoint_marker import WeightsKind
from fuseproof.pipelines.checkpoints import Checkpoint, check_checkpoint
from fuseproof.pipelines.dummy_geometry import family_of_dummy
from fuseproof.pipelines.embedded import ResolvedModel, resolve_model
from fuseproof.pipelines.families import refuse_ids_of_later_families
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.progress import ProgressObserver
from fuseproof.pipelines.requests import GenerationRequest

if TYPE_CHECKING:
    from fuseproof.fastpaths.user_sites import UserSites
    from fuseproof.pipelines.session import Session, SessionSettings

SMALLEST_OUTPUT_BYTES = 64 * 1024
PNG_GROWTH = 1.05
"""The most that a PNG of noise exceeds its pixels by, with room to spare."""


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

    @property
    def weights_kind(self) -> WeightsKind:
        """What the weights are, as the checkpoint says; ``dummy`` where there is none."""
        return "dummy" if self.checkpoint is None else self.checkpoint.weights


def prepare(options: GenerateOptions) -> Job:
    """Check prompts, folders, images, checkpoint and requests; raises before any weight is read."""
    user_sites = read_user_sites(options)
    texts = read_prompts(options.prompt, options.prompt_path)
    prompts = tuple(map(Prompt, texts, read_fixed_prompts(options, texts)))
    generate_rules.check_prompt_count(options, len(prompts))
    check_destinations(options, SMALLEST_OUTPUT_BYTES)
    is_dummy = options.load_format == "dummy"
    if not is_dummy:
        refuse_ids_of_later_families(options.model_path)
    if any("://" in source for source in options.image_path):
        promised = family_of_dummy(options.model_path) if is_dummy else expected_family(options)
        if promised is not None:
            edit_inputs.refuse_image_count(options, promised)  # before anything is fetched
    images = tuple(read_image_input(source) for source in options.image_path)
    family, model, checkpoint = _dummy_model(options) if is_dummy else _found_model(options, prompts, images)
    canvas = _canvas(options, family, images, checkpoint)
    options = clip_outputs.named_for(options, family)
    requests, warmups = plan_requests(options, prompts, family, canvas, checkpoint)
    for request in requests:
        clip_outputs.refuse_unwritable_clip(options, request)
    written = sum(map(clip_outputs.largest_bytes, requests))
    check_destinations(options, int(written * PNG_GROWTH) + SMALLEST_OUTPUT_BYTES)
    warnings = request_warnings(options, family, canvas, checkpoint)
    return Job(options, family, model, checkpoint, requests, warmups, images, canvas, warnings, user_sites)


def _found_model(
    options: GenerateOptions, prompts: tuple[Prompt, ...], images: tuple[ImageInput, ...]
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


def execute(job: Job, observer: ProgressObserver, on_saved: Callable[[Path], None]) -> dict[str, Any]:
    """Load, warm up, run every request and return the perf dump. ``on_saved`` hears of each file once it is whole."""
    machine = describe()  # before this process adds its own load and the libraries their own variables
    certificate = choose_certificate(job.options, job.user_sites)
    times = PhaseTimes()
    with times.during("load"):
        session = open_session(job, observer, certificate)
    try:
        if job.options.require_fastpaths:
            refuse_unmet_at_once(session.fastpaths_report())
        for request in job.warmups:
            with times.during("warm-up"):
                session.warm_up(request, job.options.warmup_plan.steps)
        folder = made_folder(job.options.output_folder, "--output-path") if job.options.saves_output else nullcontext()
        with folder:
            finished = [run_one(index, job, session, on_saved, times) for index in range(len(job.requests))]
        return perf_dump(job, session, finished, machine, certificate) | {"phases": times.to_json()}
    finally:
        session.close()


def open_session(
    job: Job,
    observer: ProgressObserver,
    certificate: ChosenCertificate | None = None,
    call_observers: Mapping[str, Callable[..., None]] | None = None,
) -> Session:
    """Load the job's model and mount its fast paths; ``call_observers`` hear of every kernel call at a site."""
    settings = session_settings(job, certificate, call_observers)
    from fuseproof.pipelines.session import Session

    refuse_unreadable_prompts(job)
    if job.model is None or job.checkpoint is None:
        session = Session.open_dummy(job.family, settings, observer)
    else:
        session = Session.open(job.model, job.checkpoint, settings, observer)
    try:
        refuse_fallback(job.options, session.backend)
    except BaseException:
        session.close()
        raise
    return session


def session_settings(
    job: Job,
    certificate: ChosenCertificate | None = None,
    call_observers: Mapping[str, Callable[..., None]] | None = None,
) -> SessionSettings:
    """What the job's flags ask of a session. The first thing that loads torch and the libraries, which it silences."""
    silence_libraries()
    from fuseproof.pipelines.session import SessionSettings

    options = job.options
    return SessionSettings(
        backend=options.backend,
        device=None if options.device == "auto" else options.device,
        dtype=None if options.dtype == "auto" else options.dtype,
        attention_backend=options.attention_backend,
        fastpaths=options.fastpaths,
        gate=options.gate,
        quality=options.quality,
        enable_torch_compile=options.enable_torch_compile,
        enable_breakable_cuda_graph=options.enable_breakable_cuda_graph,
        enable_prompt_rewrite=options.enable_prompt_rewrite,
        use_pe=options.use_pe,
        certified=certificate.keys() if certificate is not None else None,
        verify_every_step=options.verify_every_step,
        user_sites=job.user_sites.sites if job.user_sites is not None else (),
        call_observers=call_observers,
    )


def refuse_unreadable_prompts(job: Job) -> None:
    """Raise for a prompt that an editing model's tokenizer would cut, before any weight is read."""
    if job.checkpoint is not None and job.family.takes_image:
        from fuseproof.pipelines.edit_guards import refuse_prompts_before_loading

        refuse_prompts_before_loading(job.checkpoint, job.requests)
