"""What LongLive 2 cannot carry out as a request says it, refused on both backends; and what is said of the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.absent_features import refuse_absent_features
from fuseproof.pipelines.longlive2 import PIPELINE_CLASS
from fuseproof.pipelines.longlive2_steps import FRAMES_OF_ONE, STEPS, frames_made
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.wan_guards import (
    cut_texts,
    refuse_beyond_rotary_table,
    refuse_rounded_sides,
    refuse_vae_of_other_scales,
)


def refuse_unsupported(pipe: Any, request: GenerationRequest) -> None:
    """Raise for a request that ``pipe`` would answer with something else.

    A warm-up may have fewer steps than the 4 of a request (:func:`fuseproof.pipelines.requests.validate_request`).
    """
    refuse_vae_of_other_scales(pipe)
    if pipe.vae_scale_factor_temporal != FRAMES_OF_ONE:
        raise FuseproofError(
            f"The VAE makes {pipe.vae_scale_factor_temporal} frames of one; chunks are counted in {FRAMES_OF_ONE}.",
            next_step="Use the VAE that the model is published with.",
        )
    refuse_rounded_sides(pipe, request)
    if request.num_frames is None or frames_made(request.num_frames) != request.num_frames:
        raise UsageError(f"The request has {request.num_frames} frames; whole chunks were expected: 29, 61, 93, ...")
    refuse_beyond_rotary_table(pipe, request)
    if request.num_inference_steps > STEPS:
        raise UsageError(f"The request has {request.num_inference_steps} steps; the model was distilled to {STEPS}.")
    if request.guidance_scale != 1.0:
        raise UsageError(f"The request has guidance scale {request.guidance_scale:g}; the model knows 1 alone.")
    refuse_absent_features(request, PIPELINE_CLASS)


def remarks(pipe: Any, request: GenerationRequest) -> Iterator[str]:
    """One sentence for each way in which what is made is not what the request says."""
    yield from cut_texts(pipe, request)
