"""Any diffusers pipeline as an arm, also of a family without a native one: diffusers' own call, followed step by step.

The pipeline tells where a step has ended (``callback_on_step_end``); the loop begins where its denoiser is first
called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.divergence.following import RequestFollower, latents_of_the_loop
from fuseproof.pipelines.divergence.subject import Subject

CALLBACK = "callback_on_step_end"
GUIDANCE_NAMES = ("true_cfg_scale", "guidance_scale")
"""What pipelines call the scale of two branches; the first that this one has is meant by ``--guidance-scale``."""


@dataclass(frozen=True)
class GenericRequest:
    """A request in the words of ``generate``'s flags; None leaves a value to the pipeline."""

    prompt: str
    seed: int
    negative_prompt: str | None = None
    width: int | None = None
    height: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    num_frames: int | None = None
    images: tuple[Any, ...] = ()

    def arguments(self, call: Callable[..., Any]) -> dict[str, Any]:
        """What ``call`` takes of it; raises :class:`UsageError` for a given value that it does not take."""
        known = inspect.signature(call).parameters
        given = {
            "prompt": self.prompt,
            "negative_prompt": self.negative_prompt,
            "width": self.width,
            "height": self.height,
            "num_inference_steps": self.num_inference_steps,
            "num_frames": self.num_frames,
            "image": (self.images[0] if len(self.images) == 1 else list(self.images)) if self.images else None,
            next((name for name in GUIDANCE_NAMES if name in known), GUIDANCE_NAMES[-1]): self.guidance_scale,
        }
        wanted = {name: value for name, value in given.items() if value is not None}
        unknown = [name for name in wanted if name not in known]
        if unknown:
            raise UsageError(f"the pipeline takes no {', '.join(unknown)}.", next_step="Leave the flag out.")
        return wanted | ({"output_type": "np"} if "output_type" in known else {})


def load(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """diffusers' own pipeline object of a folder; raises :class:`FuseproofError` with diffusers' reason."""
    from diffusers import DiffusionPipeline

    try:
        pipe = DiffusionPipeline.from_pretrained(str(folder), dtype=dtype, local_files_only=True)
        pipe = pipe.to(device)
    except (OSError, ValueError, RuntimeError, AttributeError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise FuseproofError(f"diffusers cannot load {folder}: {reason}") from error
    pipe.set_progress_bar_config(disable=True)
    return pipe


def reject_reason(pipe: Any) -> str | None:
    """Why the steps of ``pipe`` cannot be followed, or None."""
    if CALLBACK not in inspect.signature(type(pipe).__call__).parameters:
        return f"{type(pipe).__name__} has no {CALLBACK}, so nobody can tell where its steps end"
    if Subject.of(pipe).denoiser is None:
        return f"{type(pipe).__name__} has no transformer and no unet"
    return None


def run(pipe: Any, request: GenericRequest, follower: RequestFollower) -> np.ndarray[Any, Any]:
    """Carry ``request`` out once by ``pipe``'s own call, telling ``follower``; the raw pictures as an array."""
    subject = Subject.of(pipe)
    assert subject.denoiser is not None, "asked of reject_reason before"
    has_begun = False

    def begins(*_: Any) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            follower.told(latents_of_the_loop())

    def step_ended(_pipe: Any, _step: int, _timestep: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
        follower.told(tensors["latents"])
        return {}

    handle = subject.denoiser.register_forward_pre_hook(begins)
    try:
        generator = torch.Generator("cpu").manual_seed(request.seed)
        result = pipe(generator=generator, **{CALLBACK: step_ended}, **request.arguments(type(pipe).__call__))
    finally:
        handle.remove()
    return np.asarray(_raw(result))


def _raw(result: Any) -> Any:
    for name in ("images", "frames"):
        if hasattr(result, name):
            return getattr(result, name)
    return result[0]
