"""What diffusers' Wan pipelines change, cut or get wrong without a word, refused or said on both backends.

A size that is no multiple of the patches is rounded down; a number of frames is too; an image is scaled to the clip's
size whatever its aspect; a prompt over 512 tokens is cut. And ``WanImageToVideoPipeline`` looks for the step of its
first timestep, rounded to a whole number: where many steps share that number it takes the second, and runs past the end
of its own sigmas (diffusers 0.42.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines import flow_unipc
from fuseproof.pipelines.conditioning import ConditioningImage
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.wan import PIPELINE_CLASS, TEXT_TOKENS, frames_made

SAME_ASPECT = 0.01
"""How far an image's aspect may be from the clip's, as a share, before its scaling is worth a word."""


def refuse_unsupported(pipe: Any, request: GenerationRequest) -> None:
    """Raise for a request that the Wan ``pipe`` cannot carry out as written."""
    patch = pipe.transformer.config.patch_size
    for name, side, sides in (("width", request.width, patch[2]), ("height", request.height, patch[1])):
        multiple = pipe.vae_scale_factor_spatial * sides
        if side % multiple:
            raise UsageError(f"The request's {name} is {side}; a multiple of {multiple} was expected.")
    if request.num_frames is None or request.num_frames < 1:
        raise UsageError(f"The request has {request.num_frames} frames; 1 or more were expected.")
    for is_asked, what in (
        (request.enable_cfg_renorm, "renormalised guidance"),
        (request.enable_prompt_rewrite, "prompt rewriting"),
        (request.use_pe, "a prompt enhancer"),
    ):
        if is_asked:
            raise UsageError(f"The request asks for {what}, which {PIPELINE_CLASS} does not have.")
    if pipe.scheduler.config.get("use_dynamic_shifting"):
        raise FuseproofError(
            f"The scheduler shifts its sigmas by a number (use_dynamic_shifting), and {PIPELINE_CLASS} tells it none.",
            next_step="Use a scheduler config with a fixed flow_shift, as Wan is published with.",
        )
    if request.image is not None:
        _refuse_image(pipe, request)


def remarks(pipe: Any, request: GenerationRequest, *, is_native: bool) -> Iterator[str]:
    """One sentence for each way in which what is made is not what the request says, or not how it is made."""
    asked = request.num_frames or 1
    made = frames_made(asked, pipe.vae_scale_factor_temporal)
    if made != asked:
        scale = pipe.vae_scale_factor_temporal
        yield f"{asked} frames were asked for and {made} were made: a clip has {scale}n + 1, and diffusers rounds"
    if request.image is not None and is_squeezed(request.image, request):
        image = request.image
        yield (
            f"the input image is {image.width}x{image.height} and was scaled to {request.width}x{request.height}, "
            "another aspect"
        )
    yield from cut_texts(pipe, request)
    reason = flow_unipc.reject_reason(pipe.scheduler)
    if is_native and reason is not None:
        yield f"the scheduler's steps are diffusers' own, which wait for the device in the loop: {reason}"


def cut_texts(pipe: Any, request: GenerationRequest) -> Iterator[str]:
    """One sentence for each text of ``request`` of which the tokenizer leaves the end out."""
    texts = [("a prompt", request.prompt_for_model)]
    if request.is_guided:
        texts.append(("a negative prompt", request.negative_prompt or ""))
    for name, text in texts:
        tokens = _tokens(pipe.tokenizer, text)
        if tokens > TEXT_TOKENS:
            yield f"{name} has {tokens} tokens and only its first {TEXT_TOKENS} were used"


def is_squeezed(image: ConditioningImage, request: GenerationRequest) -> bool:
    """Whether scaling ``image`` to the request's size changes its aspect to be seen."""
    return abs(math.log(image.width * request.height / (image.height * request.width))) > SAME_ASPECT


def _refuse_image(pipe: Any, request: GenerationRequest) -> None:
    if not pipe.config.expand_timesteps:
        raise UsageError(
            f"The request has an input image, and this {PIPELINE_CLASS} makes clips from text alone.",
            next_step="Leave it out, or use Wan 2.2 TI2V-5B.",
        )
    scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config)
    scheduler.set_timesteps(request.num_inference_steps)
    first = scheduler.timesteps[:2].tolist()
    if len(set(first)) < len(first):
        raise UsageError(
            f"With {request.num_inference_steps} steps the first two timesteps are both {first[0]}, and diffusers' "
            "image-to-video pipeline then starts at the second and fails at the last.",
            next_step="Use fewer steps.",
        )


def _tokens(tokenizer: Any, text: str) -> int:
    """How many tokens the pipeline makes of ``text`` before it cuts; 0 where they are surely few enough."""
    # No tokenizer makes more tokens of a text than it has bytes, and one in front of and behind it.
    if len(text.encode()) + 2 <= TEXT_TOKENS:
        return 0
    from diffusers.pipelines.wan.pipeline_wan import prompt_clean

    return len(tokenizer(prompt_clean(text), add_special_tokens=True, truncation=False)["input_ids"])
