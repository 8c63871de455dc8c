"""What LongLive 2 cannot carry out as a request says it, refused on both backends; and what is said of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuseproof.errors import UsageError
from fuseproof.pipelines.longlive2 import PIPELINE_CLASS
from fuseproof.pipelines.longlive2_steps import STEPS, frames_made
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.wan_guards import cut_texts


def refuse_unsupported(pipe: Any, request: GenerationRequest) -> None:
    """Raise a UsageError for a request that ``pipe`` would answer with something else.

    A warm-up may have fewer steps than the 4 of a request (:func:`fuseproof.pipelines.requests.validate_request`).
    """
    patch = pipe.transformer.config.patch_size
    for name, side, sides in (("width", request.width, patch[2]), ("height", request.height, patch[1])):
        multiple = pipe.vae_scale_factor_spatial * sides
        if side % multiple:
            raise UsageError(f"The request's {name} is {side}; a multiple of {multiple} was expected.")
    if request.num_frames is None or frames_made(request.num_frames) != request.num_frames:
        raise UsageError(f"The request has {request.num_frames} frames; whole chunks were expected: 29, 61, 93, ...")
    if request.num_inference_steps > STEPS:
        raise UsageError(f"The request has {request.num_inference_steps} steps; the model was distilled to {STEPS}.")
    if request.guidance_scale != 1.0:
        raise UsageError(f"The request has guidance scale {request.guidance_scale:g}; the model knows 1 alone.")
    for is_asked, what in (
        (request.enable_cfg_renorm, "renormalised guidance"),
        (request.enable_prompt_rewrite, "prompt rewriting"),
        (request.use_pe, "a prompt enhancer"),
    ):
        if is_asked:
            raise UsageError(f"The request asks for {what}, which {PIPELINE_CLASS} does not have.")


def remarks(pipe: Any, request: GenerationRequest) -> Iterator[str]:
    """One sentence for each way in which what is made is not what the request says."""
    yield from cut_texts(pipe, request)
