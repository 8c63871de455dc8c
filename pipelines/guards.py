"""What a pipeline cannot carry out as a request says it, refused on both backends before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from fuseproof.errors import UsageError
from fuseproof.pipelines import (
    edit_guards,
    ernie_guards,
    ernie_image,
    longcat_arithmetic,
    longcat_image,
    longcat_image_edit,
    longlive2,
    longlive2_guards,
    wan,
    wan_guards,
)
from fuseproof.pipelines.guided_step import EULER
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.timestep_guards import refuse_unusable_timesteps


def refuse_unsupported(pipe: Any, request: GenerationRequest) -> None:
    """Raise a UsageError for a request that ``pipe`` would fail on, or would answer with something else."""
    kind = type(pipe).__name__
    if kind == wan.PIPELINE_CLASS:
        wan_guards.refuse_unsupported(pipe, request)
        return
    if kind == longlive2.PIPELINE_CLASS:
        longlive2_guards.refuse_unsupported(pipe, request)
        return
    if request.num_frames is not None:
        raise UsageError(f"The request has {request.num_frames} frames, and {kind} makes single images.")
    if kind in (longcat_image.PIPELINE_CLASS, longcat_image_edit.PIPELINE_CLASS):
        _refuse_rounded_sides_of_longcat(pipe, request)
        _refuse_unusable_timesteps_of_longcat(pipe, request)
    if kind == longcat_image_edit.PIPELINE_CLASS:
        edit_guards.refuse_unsupported(pipe, request)
        return
    if request.image is not None:
        raise UsageError(f"The request has an input image, and {kind} takes none.", next_step="Leave it out.")
    if kind == ernie_image.PIPELINE_CLASS:
        ernie_guards.refuse_unsupported(pipe, request)
    elif request.use_pe:
        raise UsageError(f"The request asks for a prompt enhancer, which {kind} does not have.")


def remarks(pipe: Any, request: GenerationRequest, written: str | None, *, is_native: bool) -> Iterator[str]:
    """One sentence for each way in which a finished ``request`` was not carried out as it says.

    ``written`` is the text that was drawn in the prompt's place, if any. Other pipelines say so where it happens.
    """
    kind = type(pipe).__name__
    if kind == wan.PIPELINE_CLASS:
        yield from wan_guards.remarks(pipe, request, is_native=is_native)
    elif kind == longlive2.PIPELINE_CLASS:
        yield from longlive2_guards.remarks(pipe, request)
    elif kind == ernie_image.PIPELINE_CLASS:
        yield from ernie_guards.cut_texts(pipe, request, written)


def _refuse_rounded_sides_of_longcat(pipe: Any, request: GenerationRequest) -> None:
    """diffusers rounds other sides to whole patches, with a word in its log."""
    multiple = pipe.vae_scale_factor * 2
    for name, side in (("width", request.width), ("height", request.height)):
        if side % multiple:
            raise UsageError(f"The request's {name} is {side}; a multiple of {multiple} was expected.")


def _refuse_unusable_timesteps_of_longcat(pipe: Any, request: GenerationRequest) -> None:
    if type(pipe.scheduler).__name__ != EULER:
        return
    tokens = math.prod(side // (pipe.vae_scale_factor * 2) for side in (request.width, request.height))
    refuse_unusable_timesteps(
        pipe.scheduler,
        request,
        lambda scheduler: longcat_arithmetic.prepare_timesteps(
            scheduler, request.num_inference_steps, tokens, torch.device("cpu")
        ),
    )
