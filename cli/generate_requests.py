"""From the flags of ``fuseproof generate`` to its requests: which family, which sizes and steps, what to warm up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.cli import clip_warmups, edit_inputs
from fuseproof.cli.edit_inputs import Canvas
from fuseproof.cli.fastpath_sites import refuse_unknown_sites
from fuseproof.cli.generate_options import WARMUP_SYNTHETIC_PROMPT
from fuseproof.errors import UsageError
from fuseproof.pipelines.checkpoint_marker import RANDOM, RANDOM_WARNING
from fuseproof.pipelines.embedded import PREFIX
from fuseproof.pipelines.families import FAMILIES, closest_name, families_of_pipeline_class, family_of_model_id
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.picture_sizes import nearest_canvas
from fuseproof.pipelines.requests import GenerationRequest, refuse_renormalisation_of_nothing, validate_request

if TYPE_CHECKING:
    from fuseproof.cli.generate_options import GenerateOptions
    from fuseproof.pipelines.checkpoints import Checkpoint


NOISE_WRITTEN = "random weights write noise: a text without sense is drawn in the prompt's place"


@dataclass(frozen=True)
class Prompt:
    """What one request is asked to draw, and the ``fixed`` text that is drawn in its place, if any."""

    text: str
    fixed: str | None = None


def expected_family(options: GenerateOptions) -> Family | None:
    """The family that --model-id or a model's name promises, so that a bad request is refused before a download."""
    if options.model_id is not None:
        named = family_of_model_id(options.model_id)
        if named is None:
            raise UsageError(
                f"--model-id is {options.model_id!r}, which is no published model that fuseproof runs; "
                f"{', '.join(family.model_ids[0] for family in FAMILIES.values())} are.",
                next_step=f"{closest_name(options.model_id)}Leave it out: a folder's own files say what it is, except "
                "for the Turbo of a family.",
            )
        return named
    for family in FAMILIES.values():
        if options.model_path in family.model_ids or options.model_path == PREFIX + family.name:
            return family
    return None


def plan_requests(
    options: GenerateOptions,
    prompts: tuple[Prompt, ...],
    family: Family,
    canvas: Canvas | None,
    checkpoint: Checkpoint | None = None,
) -> tuple[tuple[GenerationRequest, ...], tuple[GenerationRequest, ...]]:
    """The timed requests and the warm-ups, valid for ``family``; raises for the first that it cannot carry out."""
    _check_family(options, family)
    requests = tuple(_request(options, prompt, family, canvas) for prompt in prompts)
    warmups = _warmup_requests(options, requests, family, canvas)
    for request in requests:
        validate_request(request, family, checkpoint)
        if options.enable_cfg_renorm:
            refuse_renormalisation_of_nothing(request, family)
    for request in warmups:
        _validate_warmup(request, family, checkpoint)
    return requests, warmups


def _validate_warmup(request: GenerationRequest, family: Family, checkpoint: Checkpoint | None) -> None:
    """The timed requests have passed, so only a warm-up's own size can be wrong."""
    try:
        validate_request(request, family, checkpoint)
    except UsageError as error:
        width, height = nearest_canvas(request.width, request.height, family)
        raise UsageError(
            f"--warmup-resolutions {request.width}x{request.height}: {error.message}",
            next_step=f"Use --warmup-resolutions {width}x{height}.",
        ) from error


def _request(options: GenerateOptions, prompt: Prompt, family: Family, canvas: Canvas | None) -> GenerationRequest:
    is_embedded = options.model_path.startswith(PREFIX)
    width = family.embedded_width if is_embedded else family.default_width
    height = family.embedded_height if is_embedded else family.default_height
    steps = family.embedded_steps if is_embedded else family.default_steps
    guidance_scale = family.guidance_scale(is_embedded=is_embedded)
    return GenerationRequest(
        prompt=prompt.text,
        negative_prompt=options.negative_prompt,
        width=canvas.width if canvas else options.width or width,
        height=canvas.height if canvas else options.height or height,
        num_inference_steps=options.num_inference_steps or steps,
        guidance_scale=guidance_scale if options.guidance_scale is None else options.guidance_scale,
        seed=options.seed,
        generator_device="cuda" if options.generator_device == "cuda" else "cpu",
        enable_cfg_renorm=family.renormalises_guidance and options.enable_cfg_renorm is not False,
        cfg_renorm_min=options.cfg_renorm_min,
        enable_prompt_rewrite=options.enable_prompt_rewrite,
        quality=options.quality,
        image=canvas.image if canvas else None,
        canvas_pixels=canvas.area if canvas else None,
        num_frames=_frames(options, family, is_embedded=is_embedded),
        use_pe=options.use_pe,
        pe_sampling="greedy" if options.pe_sampling == "greedy" else "seeded",
        fixed_prompt=prompt.fixed,
    )


def _frames(options: GenerateOptions, family: Family, *, is_embedded: bool) -> int | None:
    """How many frames a request asks for; None for a family that makes single images."""
    if not family.makes_video:
        return None
    return options.num_frames or (family.embedded_frames if is_embedded else family.default_frames)


def _warmup_requests(
    options: GenerateOptions, requests: tuple[GenerationRequest, ...], family: Family, canvas: Canvas | None
) -> tuple[GenerationRequest, ...]:
    """One warm-up per size. Graphs are captured for the request's own size whatever else is asked for; a compiled run
    must name its own size, or it would compile inside the timed request. Where prompts keep their own length, each is
    warmed: another length means other kernels, graphs and first sights.
    """
    plan = options.warmup_plan
    if plan.mode == "off":
        return ()
    first = requests[0]
    own = (first.width, first.height)
    sizes = plan.resolutions or (own,)
    if options.enable_breakable_cuda_graph:
        sizes = tuple(dict.fromkeys((own, *plan.resolutions)))
    if options.enable_torch_compile and own not in sizes:
        raise UsageError(
            f"--warmup-resolutions leaves out the request's own {first.width}x{first.height}, so "
            "--enable-torch-compile would compile inside the timed request.",
            next_step=f"Add --warmup-resolutions {first.width}x{first.height}.",
        )
    warmed = [clip_warmups.with_frames(options, one, family) for one in _warmed_prompts(options, requests, family)]
    if canvas is None:
        return tuple(replace(one, width=width, height=height) for one in warmed for width, height in sizes)
    canvases = [edit_inputs.resized(canvas, width, height) for width, height in sizes]
    return tuple(replace(warmed[0], width=one.width, height=one.height, image=one.image) for one in canvases)


def _warmed_prompts(
    options: GenerateOptions, requests: tuple[GenerationRequest, ...], family: Family
) -> tuple[GenerationRequest, ...]:
    """The requests whose prompts a warm-up takes: the first, or every different one where lengths differ."""
    if options.warmup_plan.mode == "server":
        if options.enable_breakable_cuda_graph and family.text_tokens is None:
            raise UsageError(
                f"--warmup-mode=server captures graphs for the length of the prompt {WARMUP_SYNTHETIC_PROMPT!r}, and "
                f"{family.title} keeps the length of each prompt, so timed requests would miss them.",
                next_step="Use --warmup-mode=request.",
            )
        return (replace(requests[0], prompt=WARMUP_SYNTHETIC_PROMPT, fixed_prompt=None),)
    if family.text_tokens is not None:
        return requests[:1]
    by_text: dict[str, GenerationRequest] = {}
    for request in requests:
        by_text.setdefault(request.prompt_for_model, request)
    return tuple(by_text.values())


def request_warnings(
    options: GenerateOptions, family: Family, canvas: Canvas | None, checkpoint: Checkpoint | None
) -> tuple[str, ...]:
    """What the request asked for and will not get, weights that mean nothing, and a family that its folder's name
    contradicts.
    """
    found = [edit_inputs.unadvised_size_warning(options, family)]
    if canvas is not None:
        found.append(edit_inputs.size_warning(options, family, canvas))
    if checkpoint is not None:
        found.append(unnamed_turbo_warning(options, checkpoint))
    if checkpoint is not None and checkpoint.weights == RANDOM:
        found.append(RANDOM_WARNING)
        found.append(NOISE_WRITTEN if options.use_pe or options.enable_prompt_rewrite else None)
    return tuple(text for text in found if text is not None)


def unnamed_turbo_warning(options: GenerateOptions, checkpoint: Checkpoint) -> str | None:
    """A folder called Turbo that runs with the defaults of the model it was distilled from; its files do not tell."""
    family, name = checkpoint.family, Path(options.model_path).name
    is_named = options.model_id is not None or checkpoint.marker.family is not None
    if is_named or "turbo" not in name.lower() or "turbo" in family.name:
        return None
    twins = [twin for twin in families_of_pipeline_class(family.pipeline_class) if "turbo" in twin.name]
    if not twins:
        return None
    return (
        f"{name} runs as {family.title}, whose files look the same as {twins[0].title}'s; "
        f"--model-id {twins[0].model_ids[0]} would run it as that."
    )


def _check_backend(options: GenerateOptions, family: Family) -> None:
    """Each model has one reference: diffusers' own pipeline, or ours where there is none."""
    if options.backend == "diffusers" and not family.is_in_diffusers:
        raise UsageError(
            f"--backend diffusers cannot run {family.title}, which diffusers does not have; its eager reference is "
            "--backend reference.",
            next_step="Use --backend reference.",
        )
    if options.backend == "reference" and family.is_in_diffusers:
        raise UsageError(
            f"--backend reference is for models that diffusers does not have, and {family.title}'s reference is "
            "diffusers' own pipeline.",
            next_step="Use --backend diffusers.",
        )
    if options.enable_torch_compile and not family.is_in_diffusers:
        raise UsageError(
            f"--enable-torch-compile compiles a model's blocks as diffusers calls them, and {family.title} has a loop "
            "of its own over their parts, so nothing would be compiled.",
            next_step="Drop --enable-torch-compile.",
        )


def _check_family(options: GenerateOptions, family: Family) -> None:
    _check_backend(options, family)
    if options.enable_cfg_renorm and not family.renormalises_guidance:
        raise UsageError(
            f"--enable-cfg-renorm was given, but {family.title} does not renormalise its guidance.",
            next_step="Drop --enable-cfg-renorm.",
        )
    refuse_unknown_sites(options, family)
    if family.makes_video:
        return
    for flag, frames in (("--num-frames", options.num_frames), ("--warmup-num-frames", options.warmup_num_frames)):
        if frames not in (None, 1):
            raise UsageError(
                f"{flag} is {frames}, but {family.title} makes single images; only 1 is possible.",
                next_step=f"Drop {flag}, or choose a model that makes videos; `fuseproof models list` shows them.",
            )
    if options.fps is not None:
        raise UsageError(
            f"--fps is {options.fps:g}, but {family.title} makes single images, which have no frame rate.",
            next_step="Drop --fps, or choose a model that makes videos; `fuseproof models list` shows them.",
        )
