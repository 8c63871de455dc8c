"""Schedules on which diffusers' own loop fails, and a loop that counts its steps does not: refused on both backends.

``FlowMatchEulerDiscreteScheduler.step`` (diffusers 0.42.1) looks its first timestep up among all of them. Where two are
equal it takes the second, and runs past the end of its own sigmas at the last step; where none is a number it finds
nothing. A shift so large that every sigma rounds to 1 does the one, a ``shift_terminal`` with a single step the other.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.requests import GenerationRequest

FIXED_SHIFT, SHIFT_BY_TOKENS = ("shift",), ("base_shift", "max_shift")


def refuse_unusable_timesteps(
    scheduler: Any, request: GenerationRequest, prepare: Callable[[Any], torch.Tensor]
) -> None:
    """Raise a FuseproofError where the request's timesteps repeat or are no numbers.

    ``prepare`` sets the timesteps of the scheduler that it is given, as the pipeline does, and returns them; it gets a
    copy, so ``scheduler`` is left as it is.
    """
    steps = request.num_inference_steps
    try:
        with np.errstate(all="ignore"):
            timesteps = prepare(copy.copy(scheduler)).tolist()
    except ArithmeticError as error:
        raise _unusable(scheduler, f"{steps} steps cannot be computed ({error})") from error
    if not np.isfinite(timesteps).all():
        raise _unusable(scheduler, f"{steps} steps have a timestep that is NaN or infinite")
    if len(set(timesteps)) < len(timesteps):
        repeated = next(t for t in timesteps if timesteps.count(t) > 1)
        raise _unusable(scheduler, f"{timesteps.count(repeated)} of {steps} steps share the timestep {repeated:g}")


def _unusable(scheduler: Any, what: str) -> FuseproofError:
    config = scheduler.config
    keys = (*(SHIFT_BY_TOKENS if config.get("use_dynamic_shifting") else FIXED_SHIFT), "shift_terminal")
    shown = ", ".join(f"{key} {config[key]}" for key in keys if config.get(key) is not None)
    return FuseproofError(
        f"With the scheduler's {shown}, {what}.",
        next_step="Use the scheduler config that the model is published with, or another --num-inference-steps.",
    )
