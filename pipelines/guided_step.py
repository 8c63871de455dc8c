"""The end of a denoising step: guidance, renormalisation and the scheduler's Euler step, eager or as one kernel."""

from __future__ import annotations

from typing import Any

import torch

from fuseproof.fastpaths import Mount
from fuseproof.pipelines.longcat_arithmetic import guide
from fuseproof.pipelines.requests import GenerationRequest


class GuidedStep:
    """One request's step: ``latents`` [1, tokens, channels] at the next sigma, from both branches' velocities.

    Where ``mounted`` has the ``guidance_step`` site, that is one kernel, whose reference is the same arithmetic written
    out; the scheduler's own counter is kept as ``scheduler.step`` would.
    """

    def __init__(self, scheduler: Any, request: GenerationRequest, mounted: Mount | None) -> None:
        self._scheduler = scheduler
        self._request = request
        self._operation = None
        if mounted is not None and _is_plain_euler(scheduler):
            self._operation = mounted.operation("guidance_step")
        self._sigma_steps: torch.Tensor | None = None

    def __call__(
        self, velocity: torch.Tensor, velocity_uncond: torch.Tensor | None, t: torch.Tensor, latents: torch.Tensor
    ) -> torch.Tensor:
        """Advance ``latents`` by one step; ``velocity_uncond`` None means: no guidance in this one."""
        if self._operation is None:
            guided = velocity if velocity_uncond is None else guide(velocity, velocity_uncond, self._request)
            stepped: torch.Tensor = self._scheduler.step(guided, t, latents, return_dict=False)[0]
            return stepped
        request = self._request
        fused: torch.Tensor = self._operation(
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
        """sigma of the next step minus this one's, a 0-dim fp32 tensor; all are taken in one go at the first step.

        Each lies at the start of 16 bytes: a kernel is compiled again for a pointer of another alignment.
        """
        scheduler = self._scheduler
        if scheduler.step_index is None:
            scheduler._init_step_index(t)
        if self._sigma_steps is None:
            steps = scheduler.sigmas[1:] - scheduler.sigmas[:-1]
            self._sigma_steps = torch.stack([steps, steps, steps, steps], dim=1)
        index = scheduler.step_index
        scheduler._step_index = index + 1
        return self._sigma_steps[index, 0]


def _is_plain_euler(scheduler: Any) -> bool:
    return not getattr(scheduler.config, "stochastic_sampling", False)
