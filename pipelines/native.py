"""Which native pipeline reproduces a given diffusers pipeline object: chosen by its class, refused with a reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Any

import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import Mount
from fuseproof.pipelines import ernie_image, longcat_image, longcat_image_edit, wan
from fuseproof.pipelines.decoded import Decoded
from fuseproof.pipelines.requests import GenerationRequest
from fuseproof.pipelines.stages import StageClock

NATIVE_PIPELINES: Mapping[str, ModuleType] = MappingProxyType(
    {module.PIPELINE_CLASS: module for module in (longcat_image, longcat_image_edit, ernie_image, wan)}
)


def reject_reason(pipe: Any) -> str | None:
    """Why no native pipeline would be diffusers' own arithmetic on ``pipe``; None if one is."""
    module = NATIVE_PIPELINES.get(type(pipe).__name__)
    if module is None:
        return f"the pipeline is {type(pipe).__name__}, native loops reproduce {', '.join(NATIVE_PIPELINES)}"
    reason: str | None = module.reject_reason(pipe)
    return reason


def steps_of_every_kind(pipe: Any) -> int:
    """How many denoising steps meet every kernel of a longer run: more than one where a solver looks back."""
    return wan.STEPS_OF_EVERY_KIND if type(pipe).__name__ == wan.PIPELINE_CLASS else 1


def choose_backend(asked: str, pipe: Any) -> tuple[str, str | None]:
    """The backend that ``asked`` (``native``, ``diffusers`` or ``auto``) comes to, and why ``auto`` fell back, if so.

    Raises :class:`FuseproofError` where ``native`` was asked for by name and cannot run ``pipe``.
    """
    if asked == "diffusers":
        return "diffusers", None
    reason = reject_reason(pipe)
    if reason is None:
        return "native", None
    if asked == "auto":
        return "diffusers", reason
    raise FuseproofError(
        f"the native backend cannot run this model: {reason}.",
        next_step="Use --backend diffusers, or --backend auto to allow the fallback.",
    )


def generate(
    pipe: Any,
    request: GenerationRequest,
    generator: torch.Generator,
    clock: StageClock,
    mounted: Mount | None = None,
) -> Decoded:
    """Run one request through the native stages of ``pipe``'s own class; bit-identical to ``pipe(...)``.

    ``mounted`` are the pipeline's fast paths: the loop announces its steps to them and ends each through their
    ``guidance_step``.
    """
    module = NATIVE_PIPELINES[type(pipe).__name__]
    decoded: Decoded = module.generate(pipe, request, generator, clock, mounted)
    return decoded
