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

import numpy as np

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines import flow_unipc
from fuseproof.pipelines.absent_features import refuse_absent_features
from fuseproof.pipelines.conditioning import ConditioningImage
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.wan import PIPELINE_CLASS, TEXT_TOKENS, frames_made, latent_shape
from fuseproof.pipelines.wan_configs import vae_scale_faults

SAME_ASPECT = 0.01
"""How far an image's aspect may be from the clip's, as a share, before its scaling is worth a word."""


def refuse_unsupported(pipe: Any, request: GenerationRequest) -> None:
    """Raise for a request that the Wan ``pipe`` cannot carry out as written."""
    refuse_vae_of_other_scales(pipe)
    refuse_rounded_sides(pipe, request)
    if request.num_frames is None or request.num_frames < 1:
        raise UsageError(f"The request has {request.num_frames} frames; 1 or more were expected.")
    refuse_absent_features(request, PIPELINE_CLASS)
    if pipe.scheduler.config.get("use_dynamic_shifting"):
        raise FuseproofError(
            f"The scheduler shifts its sigmas by a number (use_dynamic_shifting), and {PIPELINE_CLASS} tells it none.",
            next_step="Use a scheduler config with a fixed flow_shift, as Wan is published with.",
        )
    refuse_beyond_rotary_table(pipe, request)
    if type(pipe.scheduler).__name__ == flow_unipc.UNIPC:
        refuse_sigmas_without_logarithms(pipe.scheduler, request.num_inference_steps)
    if request.image is not None:
        _refuse_image(pipe, request)


def refuse_vae_of_other_scales(pipe: Any) -> None:
    """Raise a FuseproofError where the VAE would decode another size or length than the pipeline reckons with."""
    for fault in vae_scale_faults(pipe.vae.config):
        raise FuseproofError(f"The VAE's config {fault}.", next_step="Use the VAE that the model is published with.")


def refuse_rounded_sides(pipe: Any, request: GenerationRequest) -> None:
    """Raise a UsageError for a side that is no multiple of the patches, which the pipeline would round down."""
    patch = pipe.transformer.config.patch_size
    for name, side, sides in (("width", request.width, patch[2]), ("height", request.height, patch[1])):
        multiple = pipe.vae_scale_factor_spatial * sides
        if side % multiple:
            raise UsageError(f"The request's {name} is {side}; a multiple of {multiple} was expected.")


def refuse_beyond_rotary_table(pipe: Any, request: GenerationRequest) -> None:
    """Raise a UsageError for a clip with more places along an axis than the transformer's rotary table has rows."""
    rows = pipe.transformer.config.rope_max_seq_len
    axes = zip(
        ("frames", "rows", "columns"), latent_shape(pipe, request)[2:], pipe.transformer.config.patch_size, strict=True
    )
    for axis, latents, patch in axes:
        if latents // patch > rows:
            raise UsageError(
                f"The request has {latents // patch} latent {axis}, and the transformer's rotary table ends at {rows}.",
                next_step="Ask for a smaller or shorter clip, or use the published config.",
            )


def refuse_sigmas_without_logarithms(scheduler: Any, num_inference_steps: int) -> None:
    """Raise a FuseproofError unless the sigmas of UniPC's steps fall, strictly, between 1 and 0.

    It takes the logarithms of sigma and of 1 - sigma, and divides by their differences: a shift so large that two
    sigmas round to one, and a schedule of too few trained timesteps, make NaN of all latents.
    """
    fresh = type(scheduler).from_config(scheduler.config)
    with np.errstate(all="ignore"):
        fresh.set_timesteps(num_inference_steps)
    sigmas = fresh.sigmas[:-1].double()
    if not bool((sigmas > 0).all() and (sigmas < 1).all() and (sigmas.diff() < 0).all()):
        keys = ("flow_shift", "shift_terminal", "num_train_timesteps")
        shown = ", ".join(f"{key} {scheduler.config[key]}" for key in keys if scheduler.config.get(key) is not None)
        raise FuseproofError(
            f"With the scheduler's {shown}, the sigmas of {num_inference_steps} steps do not fall from below 1 to "
            "above 0.",
            next_step="Use the scheduler config that the model is published with, or another --num-inference-steps.",
        )


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
