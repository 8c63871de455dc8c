"""Which sites would mount on a model on this machine, and why the others would not, without its weights.

The families' own reasons are asked, on a skeleton: every parameter has its real shape, dtype and device, and one
element of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.families import family_of, kernels_of_site
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.mounted import COMPONENTS, Part
from fuseproof.fastpaths.tiers import permits, quality_level, tier_reasons
from fuseproof.fastpaths.user_families import UserFamily, decline_unreachable, user_families
from fuseproof.fastpaths.user_sites import UserSite

WOULD_MOUNT = "would mount"
DECLINES = "declines"


@dataclass(frozen=True)
class Prediction:
    """One site on one component: ``state`` is ``would mount`` or ``declines``; ``kernels`` may be empty."""

    site: str
    component: str
    quality: str
    state: str
    reason: str | None
    kernels: tuple[str, ...]


def make_skeleton(component: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """Give a meta ``component`` parameters on ``device`` in ``dtype`` that share one element each; returns it.

    What the component's class keeps in fp32 when it is loaded is fp32 here too.
    """
    kept = frozenset(getattr(component, "_keep_in_fp32_modules", None) or ())
    for path, module in component.named_modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    is_kept = not kept.isdisjoint((*path.split("."), name))
                    tensors[name] = _expanded(tensor, device, torch.float32 if is_kept else dtype)
    return component.eval()


def predict(pipe: Any, quality: str = "lossless", user_sites: Sequence[UserSite] = ()) -> list[Prediction]:
    """One entry for each site of each component of ``pipe`` that has any, sites of one's own last."""
    parts = [
        Part(getattr(pipe, name), family)
        for name in COMPONENTS
        if (family := family_of(getattr(pipe, name, None))) is not None
    ]
    own = [Part(pipe.transformer, family) for family in user_families(pipe, parts, user_sites)]
    gates = {site: Gate(site) for part in (*parts, *own) for site in part.family.SITES}
    installations = [part.family.install(part.component, gates) for part in own]
    try:
        for part in parts:
            reason = part.rejected = part.family.reject_reason(part.component)
            sites = part.family.SITES
            part.declined = dict.fromkeys(sites, reason) if reason else part.family.site_reasons(part.component)
            part.declined |= tier_reasons(part.family, sites, part.declined)
        decline_unreachable([*parts, *own], gates)
    finally:
        for installation in reversed(installations):
            installation.take_off()
    return [prediction for part in (*parts, *own) for prediction in _predictions(part, quality)]


def _predictions(part: Part, quality: str) -> list[Prediction]:
    found = []
    for site in part.family.SITES:
        needed = part.family.QUALITY_OF_SITE[site]
        reason = part.declined.get(site)
        if not permits(quality_level(quality), needed):
            reason = f"needs --quality {needed}"
        state = WOULD_MOUNT if reason is None else DECLINES
        found.append(Prediction(site, part.family.COMPONENT, needed, state, reason, _kernels(part, site)))
    return found


def _kernels(part: Part, site: str) -> tuple[str, ...]:
    if isinstance(part.family, UserFamily):
        return tuple(one.replaces for one in part.family.sites if one.name == site and one.replaces is not None)
    return kernels_of_site(part.family).get(site, ())


def _expanded(tensor: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    kind = dtype if tensor.is_floating_point() else tensor.dtype
    thin = torch.empty((1,) * tensor.ndim, dtype=kind, device=device).expand(tensor.shape)
    return nn.Parameter(thin, requires_grad=False) if isinstance(tensor, nn.Parameter) else thin
