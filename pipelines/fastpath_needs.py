"""Fast paths that have nothing to do in a request: one step has no second one to hold a result for.

"Cannot apply to this request" and "did not run" are different things, and a report must not mix them up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fuseproof.pipelines.requests import GenerationRequest

NOT_NEEDED = "not needed"
HELD_FOR_A_REQUEST = frozenset(
    {
        "context_embedding",
        "rotary_tables",
        "text_projection",
        "rotary_angles",
        "text_keys_values",
        "rotary_grid",
    }
)
HELD_FOR_A_STEP = frozenset({"timestep_embedding", "modulation"})
"""Where the blocks are rewritten, ``modulation`` has work in every call, and is seen to run."""
OF_TOKENS = {"timestep_rows": "video_blocks"}
"""What only meets timesteps that are told token by token, and the site around it: where that ran, there was none."""
ONE_TIMESTEP = "the model is told one timestep a sample, no token has one of its own"
OF_THE_NATIVE_LOOP = frozenset({"guidance_step"})
WITHOUT_A_FUSED_CALL = frozenset({"eager", "unreached"})


def without_need(site: str, request: GenerationRequest, backend: str) -> str | None:
    """Why ``site`` has nothing to do in ``request`` on ``backend``, whatever machine runs it; None where it has."""
    if site in HELD_FOR_A_REQUEST and request.num_inference_steps == 1:
        return "one step: there is no second one to hold a result for"
    if backend != "native":
        if site in OF_THE_NATIVE_LOOP:
            return "diffusers' own loop ends its steps itself"
        if site in HELD_FOR_A_STEP:
            return "diffusers' own loop makes another timestep for each branch"
    elif site in HELD_FOR_A_STEP and not request.is_guided:
        return "no guidance: each step is one call, and there is no second one to hold a result for"
    return None


def with_needs(report: Mapping[str, Any], requests: Sequence[GenerationRequest], backend: str) -> dict[str, Any]:
    """``report`` of a mount, where a site without a fused call is ``not needed`` if no request had work for it."""
    sites = {name: _with_need(name, site, requests, backend) for name, site in report["sites"].items()}
    for name, around in OF_TOKENS.items():
        ran = sites.get(around, {}).get("calls_fused")
        if requests and ran and sites.get(name, {}).get("state") == "unreached":
            sites[name] = {**sites[name], "state": NOT_NEEDED, "reason": ONE_TIMESTEP}
    return {**report, "sites": sites}


def _with_need(
    name: str, site: Mapping[str, Any], requests: Sequence[GenerationRequest], backend: str
) -> Mapping[str, Any]:
    if site["state"] not in WITHOUT_A_FUSED_CALL or not requests:
        return site
    reasons = [without_need(name, request, backend) for request in requests]
    told = list(dict.fromkeys(reason for reason in reasons if reason is not None))
    if None in reasons:
        return site
    return {**site, "state": NOT_NEEDED, "reason": "; ".join(told)}
