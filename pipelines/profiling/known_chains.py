"""Which existing fast path replaces a chain of eager operations: told by what the chain is made of.

A table of what stands in the chain that each kernel replaces (its file's ``Replaces``), most telling first. It names a
candidate for a reader to look at, never decides what runs.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseproof.pipelines.profiling.launches import PIPELINE, Launch

_LAYER_NORM = r"layer_norm"
_RMS_NORM = r"rms_norm|aten::(pow|square|rsqrt)|linalg_vector_norm"
_ROTATION = r"aten::(neg|view_as_complex|complex)"

KNOWN: tuple[tuple[str, tuple[str, ...], str | None], ...] = (
    ("group_norm", (r"group_norm", r"silu"), None),
    ("norm_silu", (_RMS_NORM, r"silu"), None),
    ("qk_norm", (_ROTATION, r"aten::(cat|stack)", r"aten::mul"), None),
    ("across_heads_norm", (_RMS_NORM, r"aten::(sub|neg|complex)", r"aten::mul"), None),
    ("gated_residual", (rf"aten::mul.* aten::add.*{_LAYER_NORM}",), None),
    ("gated_residual", (rf"aten::mul.* aten::add.*({_RMS_NORM})",), r"silu|gelu"),
    ("layernorm_modulate", (rf"{_LAYER_NORM}.* aten::mul.* aten::add",), None),
    ("rmsnorm_modulate", (rf"({_RMS_NORM}).* aten::mul.* aten::add",), None),
    ("geglu", (r"aten::(gelu|silu)", r"aten::mul"), None),
    ("gelu", (r"aten::gelu",), None),
    ("guidance_step", (r"aten::sub", r"aten::(mul|add)"), None),
    ("gated_residual", (r"aten::mul", r"aten::add"), r"neg|stack|norm|silu|gelu|pow|rsqrt|cos|sin"),
)
"""Part of a kernel's name, what must stand in a chain that it replaces, in that order, and what must not."""
IN_THE_LOOP = ("guidance_step",)
MODULES: tuple[tuple[str, str], ...] = (
    (r"norm(_added)?_[qk]$", r"^(qk_norm|across_heads_norm)"),
    (r"(^|\.)(pos_embed|rope|rotary\w*)(\.|$)", r"^rotary_"),
    (r"(^|\.)(time_\w*(embed\w*|proj)|timesteps?_proj|timestep_embedder)(\.|$)", r"^timestep_"),
)
"""Modules, and how the site that does their work is called: for chains whose operations tell too little."""
OWN = "fused: these launches are its own"
RAN_EAGERLY = "its calls here ran eagerly"


@dataclass(frozen=True)
class FastPath:
    """A site that a mount knows: the component it works in, its kernels, and why it did not engage."""

    site: str
    component: str
    kernels: tuple[str, ...]
    state: str
    reason: str | None


def fast_paths(
    report: Mapping[str, Any], kernels: Mapping[str, tuple[str, ...]], components: Mapping[str, str]
) -> list[FastPath]:
    """The sites of a mount's ``report``; those that hold results or rewrite blocks have no kernels of their own."""
    return [
        FastPath(site, components.get(site, PIPELINE), kernels.get(site, ()), entry["state"], entry.get("reason"))
        for site, entry in report.get("sites", {}).items()
    ]


def fast_path_for(chain: Sequence[Launch], paths: Sequence[FastPath]) -> tuple[str, str | None] | None:
    """The site that should have taken ``chain``, and why it did not; None where none is known.

    A chain that runs inside a kernel's own reference is that kernel's. Where no kernel is known for it, it is the
    site's whose modules it comes from, or in which it runs.
    """
    by_site = {path.site: path for path in paths}
    for one in chain:
        if one.site in by_site and one.site_state == "eager" and by_site[one.site].kernels:
            return by_site[one.site].site, _why(by_site[one.site])
    if any(one.operation.startswith("triton:") for one in chain):
        return None
    return _of_kernels(chain, paths) or _of_modules(chain, paths) or _of_sites(chain, by_site)


def _of_modules(chain: Sequence[Launch], paths: Sequence[FastPath]) -> tuple[str, str | None] | None:
    """The site that does the work of the module from which at least half of ``chain`` comes."""
    for module, site in MODULES:
        if 2 * sum(bool(one.module and re.search(module, one.module)) for one in chain) >= len(chain):
            for path in paths:
                if re.search(site, path.site):
                    ran_eagerly = any(one.site == path.site and one.site_state == "eager" for one in chain)
                    return path.site, _why(path) or (RAN_EAGERLY if ran_eagerly else None)
    return None


def _of_sites(chain: Sequence[Launch], by_site: Mapping[str, FastPath]) -> tuple[str, str | None] | None:
    """The site that launched most of what any site launched in ``chain``."""
    own = [one for one in chain if one.site in by_site]
    if not own:
        return None
    site = max(own, key=lambda one: sum(other.site == one.site for other in own)).site
    assert site is not None
    if any(one.site == site and one.site_state == "eager" for one in own):
        return site, _why(by_site[site]) or RAN_EAGERLY
    return site, OWN


def _of_kernels(chain: Sequence[Launch], paths: Sequence[FastPath]) -> tuple[str, str | None] | None:
    for one in chain:
        stem = (one.line or "").partition(".py:")[0].rpartition("/")[2]
        for path in paths:
            if stem in path.kernels:
                return path.site, _why(path)
    operations = " ".join(one.operation for one in chain)
    component = statistics.mode(one.component for one in chain)
    is_loop = component == PIPELINE
    for part, needed, other in KNOWN:
        if (part in IN_THE_LOOP) is not is_loop or not all(re.search(one, operations) for one in needed):
            continue
        if other is not None and re.search(other, operations):
            continue
        for path in paths:
            is_there = is_loop or path.component == component
            if is_there and any(_fits(part, kernel) for kernel in path.kernels):
                return path.site, _why(path)
    return None


def _fits(part: str, kernel: str) -> bool:
    return part in kernel and ("residual" in kernel) is ("residual" in part)


def _why(path: FastPath) -> str | None:
    if path.reason:
        return f"{path.state}: {path.reason}"
    return None if path.state in ("fused", "certified") else path.state
