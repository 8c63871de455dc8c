"""Which native pipeline reproduces a given diffusers pipeline object: chosen by its class, refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import Mount
from fuseproof.pipelines import ernie_image, longcat_image, longcat_image_edit, longlive2, wan
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock

NATIVE_PIPELINES: Mapping[str, ModuleType] = MappingProxyType(
    {module.PIPELINE_CLASS: module for module in (longcat_image, longcat_image_edit, ernie_image, wan, longlive2)}
)


WITHOUT_DIFFUSERS = (longlive2.PIPELINE_CLASS,)
"""Pipelines that diffusers does not have: their reference is ours."""


def reject_reason(pipe: Any) -> str | None:
    """Why no native pipeline would be diffusers' own arithmetic on ``pipe``; None if one is."""
    module = NATIVE_PIPELINES.get(type(pipe).__name__)
    if module is None:
        return f"the pipeline is {type(pipe).__name__}, native loops reproduce {', '.join(NATIVE_PIPELINES)}"
    reason: str | None = module.reject_reason(pipe)
    return reason


def steps_of_every_kind(pipe: Any) -> int:
    """How many denoising steps meet every kernel of a longer run: more than one where a solver looks back."""
    looks_back = type(pipe).__name__ in (wan.PIPELINE_CLASS, longlive2.PIPELINE_CLASS)
    return wan.STEPS_OF_EVERY_KIND if looks_back else 1


def choose_backend(asked: str, pipe: Any) -> tuple[str, str | None]:
    """The backend that ``asked`` (``native``, ``diffusers``, ``reference`` or ``auto``) comes to, and why ``auto``
    fell back, if so.

    Raises :class:`FuseproofError` where ``native`` was asked for by name and cannot run ``pipe``, and for a reference
    that this pipeline does not have: diffusers' own, or ours of a model that diffusers lacks.
    """
    has_diffusers = type(pipe).__name__ not in WITHOUT_DIFFUSERS
    if asked == "reference" and has_diffusers:
        raise FuseproofError(
            f"{type(pipe).__name__} has no reference of ours, diffusers' own call is its reference.",
            next_step="Use --backend diffusers.",
        )
    if asked == "diffusers" and not has_diffusers:
        raise FuseproofError(f"diffusers has no {type(pipe).__name__}.", next_step="Use --backend reference.")
    if asked in ("diffusers", "reference"):
        return asked, None
    reason = reject_reason(pipe)
    if reason is None:
        return "native", None
    if asked == "auto" and has_diffusers:
        return "diffusers", reason
    raise FuseproofError(
        f"the native backend cannot run this model: {reason}.",
        next_step="Use --backend diffusers, or --backend auto to allow the fallback."
        if has_diffusers
        else "diffusers has no such pipeline, so there is nothing to fall back to.",
    )


def generate(
    pipe: Any,
    request: GenerationRequest,
    generator: torch.Generator,
    clock: StageClock,
    mounted: Mount | None = None,
) -> Decoded:
    """Run one request through the native stages of ``pipe``'s own class; bit-identical to its reference.

    ``mounted`` are the pipeline's fast paths: the loop announces its steps to them and ends each through their
    ``guidance_step``.
    """
    module = NATIVE_PIPELINES[type(pipe).__name__]
    decoded: Decoded = module.generate(pipe, request, generator, clock, mounted)
    return decoded
