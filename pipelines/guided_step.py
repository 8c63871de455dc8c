"""The end of a denoising step: guidance, renormalisation and the scheduler's Euler step, eager or as one kernel."""

from __future__ import annotations

from typing import Any

import torch

from fuseproof.fastpaths import Mount
from fuseproof.fastpaths.foreign_code import foreign_method_reason
from fuseproof.fastpaths.module_state import call_reason
from fuseproof.pipelines.longcat_arithmetic import guide
from fuseproof.pipelines.requests import GenerationRequest

EULER = "FlowMatchEulerDiscreteScheduler"
STEP = ("step", "_init_step_index")
"""The methods whose work the kernel does, or that tell it which step this is."""


class GuidedStep:
    """One request's step: ``latents`` [1, tokens, channels] at the next sigma, from both branches' velocities.

    Where ``mounted`` has the ``guidance_step`` site, that is one kernel, whose reference is the same arithmetic written
    out; the scheduler's own counter is kept as ``scheduler.step`` would. A scheduler whose ``step`` is anything but
    diffusers' plain Euler step steps by itself, and the site's report says why.
    """

    def __init__(self, scheduler: Any, request: GenerationRequest, mounted: Mount | None) -> None:
        self._scheduler = scheduler
        self._request = request
        self._operation = None if mounted is None else mounted.operation("guidance_step")
        self._step_sizes: _StepSizes | None = None

    def __call__(
        self, velocity: torch.Tensor, velocity_uncond: torch.Tensor | None, t: torch.Tensor, latents: torch.Tensor
    ) -> torch.Tensor:
        """Advance ``latents`` by one step; ``velocity_uncond`` None means: no guidance in this one."""

        def eager() -> torch.Tensor:
            guided = velocity if velocity_uncond is None else guide(velocity, velocity_uncond, self._request)
            stepped: torch.Tensor = self._scheduler.step(guided, t, latents, return_dict=False)[0]
            return stepped

        operation = self._operation
        if operation is None:
            return eager()
        reason = reject_reason(self._scheduler)
        if reason is not None:
            result: torch.Tensor = eager() if operation.gate is None else operation.gate.decline(reason, eager)
            return result
        request = self._request
        fused: torch.Tensor = operation(
            velocity,
            velocity_uncond,
            latents,
            self._next_sigma_step(t),
            request.guidance_scale,
            request.enable_cfg_renorm,
            request.cfg_renorm_min,
        )
        return fused

    def _next_sigma_step(self, t: torch.Tensor) -> torch.Tensor:
        """sigma of the next step minus this one's, a 0-dim tensor; the scheduler counts the step."""
        scheduler = self._scheduler
        if scheduler.step_index is None:
            scheduler._init_step_index(t)
        if self._step_sizes is None or not self._step_sizes.are_of(scheduler.sigmas):
            self._step_sizes = _StepSizes(scheduler.sigmas)
        index = scheduler.step_index
        scheduler._step_index = index + 1
        return self._step_sizes[index]


def reject_reason(scheduler: Any) -> str | None:
    """Why the kernel's arithmetic is not that of ``scheduler.step``, or None; asked at every step."""
    kind = type(scheduler).__name__
    if kind != EULER:
        return f"the scheduler is {kind}; the kernel does the step of {EULER}"
    if scheduler.config.stochastic_sampling:
        return "the scheduler samples stochastically; the kernel does the plain Euler step"
    foreign = foreign_method_reason(scheduler, STEP)
    return call_reason() if foreign is None else f"the scheduler {foreign}"


class _StepSizes:
    """All differences of neighbouring ``sigmas``, taken in one go.

    Each lies at the start of 16 bytes: a kernel is compiled again for a pointer of another alignment.
    """

    def __init__(self, sigmas: torch.Tensor) -> None:
        steps = sigmas[1:] - sigmas[:-1]
        self._aligned = torch.stack([steps, steps, steps, steps], dim=1)
        self._sigmas = sigmas
        self._written = _times_written(sigmas)

    def are_of(self, sigmas: torch.Tensor) -> bool:
        """Whether these are still the differences of ``sigmas``: the same tensor, not written to since."""
        return sigmas is self._sigmas and _times_written(sigmas) == self._written

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._aligned[index, 0]


def _times_written(sigmas: torch.Tensor) -> int | None:
    return None if sigmas.is_inference() else sigmas._version
