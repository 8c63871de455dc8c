"""Which denoising steps run both guidance branches. Pure; torch-free.

Guidance above 1 costs a second transformer call a step. At quality ``high`` the last fifth of the steps does without:
there guided = conditional, that branch's velocity as it is. Late steps have little noise left and settle
detail, which guidance steers least; how much a trained model's pictures change is for a campaign to say, not for this
file. Every other quality guides every step, as diffusers does.

Fifty steps guide 40 and skip steps 40 to 49: 90 transformer calls instead of 100. Eight skip one, four none.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from fuseproof.pipelines.requests import SMALLEST_GUIDING_SCALE, quality_named

SKIPPED_SHARE: Mapping[str, float] = MappingProxyType({"lossless": 0.0, "extra-high": 0.0, "high": 0.2})
"""The share of steps, counted from the end and rounded down, that run the conditional branch alone."""

Branch = TypeVar("Branch")


def skipped_steps(steps: int, guidance_scale: float, quality: str) -> tuple[int, ...]:
    """The steps (from 0) of a guided request that run one branch only; empty where guidance is off.

    An unknown ``quality`` is a UsageError.
    """
    share = SKIPPED_SHARE[quality_named(quality)]
    if not guidance_scale > SMALLEST_GUIDING_SCALE:
        return ()
    # Counted in whole numbers: 0.2 * 5 must not become 0.999... of a step.
    skipped = steps * round(share * 1000) // 1000
    return tuple(range(steps - skipped, steps))


def warmup_steps(steps: int, request_steps: int, guidance_scale: float, quality: str) -> int:
    """``steps``, or as many more as a warm-up needs to meet both kinds of step, guided and not, that a request has."""
    if skipped_steps(request_steps, guidance_scale, quality):
        while not skipped_steps(steps, guidance_scale, quality):
            steps += 1
    return steps


def unconditional_branches(
    unconditional: Branch | None, steps: int, guidance_scale: float, quality: str
) -> tuple[Branch | None, ...]:
    """For each step, the branch that guidance is measured against; None where the conditional one stands alone."""
    skipped = frozenset(skipped_steps(steps, guidance_scale, quality))
    return tuple(None if step in skipped else unconditional for step in range(steps))
