"""What besides its tensors decides a step of the latents, read where it begins: guidance, and the sigmas of that step.

Reading a sigma waits for the device, so it is done for the one call that is asked for, never for all.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

GUIDANCE = ("guidance_scale", "true_cfg_scale", "enable_cfg_renorm", "cfg_renorm_min")
"""Of a request, or of a loop that has them as variables of its own."""
TIMESTEPS = ("t", "timestep")
PLAIN = (bool, int, float, str)
FARTHEST = 12
"""How many callers are looked at: a loop is near what it calls."""


def step_settings(owner: Any, frame: FrameType) -> dict[str, str]:
    """Name → text, of a call of ``owner``'s method that steps the latents and has just begun in ``frame``.

    What is not there is left out; ``sigma`` and ``next sigma`` are those of the schedule between which it steps.
    """
    found = {name: _text(value) for name, value in _guidance(owner, frame).items()}
    for name in TIMESTEPS:
        value = frame.f_locals.get(name)
        if value is not None and (not isinstance(value, torch.Tensor) or value.numel() == 1):
            found["timestep"] = _text(value)
            break
    return found | _sigmas(owner)


def _guidance(owner: Any, frame: FrameType) -> dict[str, Any]:
    """Of the request that ``owner`` carries out, or of the nearest caller that knows one."""
    found = _plain_of(getattr(owner, "_request", None))
    caller: FrameType | None = frame
    for _ in range(FARTHEST):
        if found or caller is None:
            break
        names = caller.f_locals
        found = {name: names[name] for name in GUIDANCE if isinstance(names.get(name), PLAIN)}
        found = found or _plain_of(names.get("request"))
        caller = caller.f_back
    return found


def _plain_of(request: Any) -> dict[str, Any]:
    values = {name: getattr(request, name, None) for name in GUIDANCE}
    return {name: value for name, value in values.items() if isinstance(value, PLAIN)}


def _sigmas(owner: Any) -> dict[str, str]:
    scheduler = getattr(owner, "_scheduler", owner)
    sigmas = getattr(scheduler, "sigmas", getattr(scheduler, "_sigmas", None))
    index = next(
        (
            value
            for value in (getattr(scheduler, name, None) for name in ("step_index", "begin_index", "_step"))
            if isinstance(value, int)
        ),
        None,
    )
    if not isinstance(sigmas, torch.Tensor) or sigmas.ndim != 1 or index is None:
        return {}
    named = zip(("sigma", "next sigma"), sigmas[index : index + 2], strict=False)
    return {name: _text(value) for name, value in named}


def _text(value: Any) -> str:
    return str(value.item() if isinstance(value, torch.Tensor) else value)
