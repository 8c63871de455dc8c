"""One request for one picture or clip, and the rules it must obey before a model is loaded. Torch-free.

torch and diffusers accept seed -1, guidance NaN and 427 pixels (and then run something else than was asked for), so
every value is judged here, and nothing is ever adjusted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fuseproof.errors import UsageError
from fuseproof.pipelines.checkpoints import Checkpoint
from fuseproof.pipelines.clip_lengths import refuse_frames
from fuseproof.pipelines.conditioning import ConditioningImage
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.picture_sizes import refuse_size

GeneratorDevice = Literal["cpu", "cuda"]
PromptSampling = Literal["seeded", "greedy"]

GENERATOR_DEVICES: tuple[str, ...] = ("cpu", "cuda")
PROMPT_SAMPLINGS: tuple[str, ...] = ("seeded", "greedy")
QUALITIES: tuple[str, ...] = ("lossless", "extra-high", "high")
QUALITY_ALIASES = {"exact": "lossless"}
MAXIMUM_STEPS = 1000
SMALLEST_GUIDING_SCALE = 1.0
"""Guidance up to this scale is off: one branch in every step, and no negative prompt is read."""
SEED_LIMIT = 2**64


@dataclass(frozen=True)
class GenerationRequest:
    """What one generation is asked to do.

    ``width`` and ``height`` are in pixels; ``num_frames`` is None but for families that make clips. ``seed`` feeds one
    generator on ``generator_device``, whatever device the model runs on, so the noise depends on both.
    ``negative_prompt`` None means the family's own (the empty prompt).
    ``cfg_renorm_min`` is the lower clamp of the renormalisation factor, used with ``enable_cfg_renorm``.

    ``use_pe`` lets the family's prompt enhancer write what is drawn; ``pe_sampling`` says how: ``seeded`` draws by
    ``seed``, ``greedy`` takes the likeliest token each time. ``fixed_prompt`` is such a text from an earlier run: it
    is drawn in the prompt's place, and nothing writes another one.

    Families that edit need an ``image``; ``width`` and ``height`` are then the canvas that it gives at an area of
    ``canvas_pixels`` (:func:`fuseproof.pipelines.conditioning.canvas_size`), whatever was asked for. Some that make
    clips may begin one with an image, which is scaled to ``width`` x ``height``.
    """

    prompt: str
    negative_prompt: str | None
    width: int
    height: int
    num_inference_steps: int
    guidance_scale: float
    seed: int
    generator_device: GeneratorDevice
    enable_cfg_renorm: bool
    cfg_renorm_min: float
    enable_prompt_rewrite: bool
    quality: str
    image: ConditioningImage | None = None
    canvas_pixels: int | None = None
    use_pe: bool = False
    pe_sampling: PromptSampling = "seeded"
    fixed_prompt: str | None = None
    num_frames: int | None = None

    @property
    def prompt_for_model(self) -> str:
        """What is written for the model to read, unless it rewrites or enhances that itself."""
        return self.prompt if self.fixed_prompt is None else self.fixed_prompt

    @property
    def is_guided(self) -> bool:
        """Whether a second branch runs: diffusers' pipelines run none at scale 1 and below."""
        return self.guidance_scale > SMALLEST_GUIDING_SCALE


def quality_named(text: str) -> str:
    """The quality's own name: ``exact`` is an alias of ``lossless``; anything unknown is a UsageError."""
    quality = QUALITY_ALIASES.get(text, text)
    if quality not in QUALITIES:
        allowed = ", ".join(QUALITIES)
        raise UsageError(
            f"Quality {text!r} does not exist; it is one of {allowed} (exact means lossless).",
            next_step="Leave --quality out for lossless, where every output bit equals diffusers' eager result.",
        )
    return quality


def validate_request(request: GenerationRequest, family: Family, checkpoint: Checkpoint | None = None) -> None:
    """Raise a UsageError for the first value that ``family`` cannot carry out as written.

    With a ``checkpoint``, what only its folder tells is checked too: prompt rewriting needs its text processor, prompt
    enhancement its enhancer.
    """
    _check_prompts(request)
    _check_image(request, family)
    refuse_size(request.width, request.height, family)
    refuse_frames(request.num_frames, family)
    _check_sampling(request, family)
    _check_guidance(request, family)
    _check_seed(request)
    quality_named(request.quality)
    if request.fixed_prompt is not None and (request.use_pe or request.enable_prompt_rewrite):
        raise UsageError(
            "A fixed prompt is drawn as it is, and the request asks for another text to be written as well.",
            next_step="Leave out one of them.",
        )
    if request.enable_prompt_rewrite:
        _check_prompt_rewrite(family, checkpoint)
    if request.use_pe:
        _check_prompt_enhancer(request, family, checkpoint)


def _check_prompts(request: GenerationRequest) -> None:
    if not request.prompt.strip():
        raise UsageError(
            f"The prompt {request.prompt!r} is empty.",
            next_step="Give --prompt a text; --negative-prompt may be empty.",
        )
    if request.fixed_prompt is not None and not request.fixed_prompt.strip():
        raise UsageError(
            f"The fixed prompt {request.fixed_prompt!r} is empty.", next_step="Leave it out to draw the prompt itself."
        )
    texts = (
        ("prompt", request.prompt),
        ("negative prompt", request.negative_prompt or ""),
        ("fixed prompt", request.fixed_prompt or ""),
    )
    for name, text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"The {name} is not valid text: character {error.start + 1} cannot be encoded as UTF-8.",
                next_step="Pass it in UTF-8, for example through --prompt-path and a file.",
            ) from error


def _check_image(request: GenerationRequest, family: Family) -> None:
    if family.takes_image and request.image is None:
        raise UsageError(
            f"{family.title} edits an image, and none was given.",
            next_step="Add --image-path FILE (or an http(s) URL).",
        )
    if request.image is not None and not (family.takes_image or family.accepts_image):
        made = "clips" if family.makes_video else "images"
        raise UsageError(
            f"{family.title} makes {made} from text alone, and an input image was given.",
            next_step="Leave --image-path out, or choose a model that takes one.",
        )


def _check_sampling(request: GenerationRequest, family: Family) -> None:
    if not 1 <= request.num_inference_steps <= MAXIMUM_STEPS:
        raise UsageError(
            f"{request.num_inference_steps} inference steps cannot be run; the range is 1 to {MAXIMUM_STEPS}.",
            next_step="Set --num-inference-steps.",
        )
    if family.only_steps not in (None, request.num_inference_steps):
        raise UsageError(
            f"{family.title} was distilled to {family.only_steps} steps, and {request.num_inference_steps} were asked "
            "for.",
            next_step="Leave --num-inference-steps out.",
        )
    if not family.takes_guidance and request.guidance_scale != SMALLEST_GUIDING_SCALE:
        raise UsageError(
            f"{family.title} was distilled without guidance, and scale {request.guidance_scale:g} was asked for; "
            f"{SMALLEST_GUIDING_SCALE:g} was expected.",
            next_step="Leave --guidance-scale out.",
        )
    if not (math.isfinite(request.guidance_scale) and request.guidance_scale >= 0):
        raise UsageError(
            f"Guidance scale {request.guidance_scale} cannot be used; it is a finite number from 0 on, "
            "and up to 1 it switches guidance off.",
            next_step="Set --guidance-scale.",
        )
    if not 0 <= request.cfg_renorm_min <= 1:
        raise UsageError(
            f"The renormalisation minimum {request.cfg_renorm_min} cannot be used; it lies between 0 and 1.",
            next_step="Set --cfg-renorm-min; 0 is the default.",
        )


def _check_guidance(request: GenerationRequest, family: Family) -> None:
    """What guides, where nothing does, would be without effect and unseen."""
    if not family.renormalises_guidance and (request.enable_cfg_renorm or request.cfg_renorm_min > 0):
        raise UsageError(
            f"{family.title} does not renormalise its guidance.",
            next_step="Leave --enable-cfg-renorm and --cfg-renorm-min out.",
        )
    if request.negative_prompt and not request.is_guided:
        raise _unguided("--negative-prompt", request, family)
    if request.cfg_renorm_min > 0 and not request.is_guided:
        raise _unguided("--cfg-renorm-min", request, family)
    if request.cfg_renorm_min > 0 and not request.enable_cfg_renorm:
        raise UsageError(
            f"--cfg-renorm-min {request.cfg_renorm_min:g} has no effect: renormalisation is off.",
            next_step="Leave one of --cfg-renorm-min and --enable-cfg-renorm=false out.",
        )


def refuse_renormalisation_of_nothing(request: GenerationRequest, family: Family) -> None:
    """For a request that was told in so many words to renormalise: a UsageError where guidance is off."""
    if not request.is_guided:
        raise _unguided("--enable-cfg-renorm", request, family)


def _unguided(flag: str, request: GenerationRequest, family: Family) -> UsageError:
    is_default = request.guidance_scale == family.default_guidance_scale
    scale = f"{request.guidance_scale:g}{f', the default of {family.title}' if is_default else ''}"
    instead = f", or give a --guidance-scale above {SMALLEST_GUIDING_SCALE:g}" if family.takes_guidance else ""
    return UsageError(
        f"{flag} has no effect at guidance scale {scale}: up to {SMALLEST_GUIDING_SCALE:g}, guidance is off.",
        next_step=f"Leave {flag} out{instead}.",
    )


def _check_seed(request: GenerationRequest) -> None:
    if not 0 <= request.seed < SEED_LIMIT:
        raise UsageError(
            f"Seed {request.seed} cannot be used; the range is 0 to 2**64 - 1 ({SEED_LIMIT - 1}).",
            next_step="Set --seed.",
        )
    if request.generator_device not in GENERATOR_DEVICES:
        raise UsageError(
            f"The generator device {request.generator_device!r} does not exist; it is cpu or cuda.",
            next_step="Leave --generator-device out for the default.",
        )


def _check_prompt_rewrite(family: Family, checkpoint: Checkpoint | None) -> None:
    if not family.rewrites_prompts:
        instead = ", or use --use-pe, its prompt enhancer" if family.enhances_prompts else ""
        raise UsageError(
            f"{family.title} does not rewrite prompts.", next_step=f"Leave --enable-prompt-rewrite out{instead}."
        )
    if checkpoint is None or checkpoint.has_text_processor:
        return
    raise UsageError(
        f"Prompts cannot be rewritten with {checkpoint.folder}: its text_processor slot is empty, "
        "and rewriting needs one.",
        next_step="Leave --enable-prompt-rewrite out.",
    )


def _check_prompt_enhancer(request: GenerationRequest, family: Family, checkpoint: Checkpoint | None) -> None:
    if not family.enhances_prompts:
        instead = ", or use --enable-prompt-rewrite" if family.rewrites_prompts else ""
        raise UsageError(f"{family.title} has no prompt enhancer.", next_step=f"Leave --use-pe out{instead}.")
    if request.pe_sampling not in PROMPT_SAMPLINGS:
        raise UsageError(
            f"The prompt enhancer cannot write by {request.pe_sampling!r}; it is one of {', '.join(PROMPT_SAMPLINGS)}.",
            next_step="Leave --pe-sampling out for seeded.",
        )
    if checkpoint is not None and checkpoint.absent_enhancer_parts:
        raise UsageError(
            f"Prompts cannot be enhanced with {checkpoint.folder}: it has no "
            f"{' and no '.join(checkpoint.absent_enhancer_parts)}.",
            next_step="Leave --use-pe out, or use a checkpoint with its prompt enhancer.",
        )
