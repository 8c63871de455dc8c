"""Which calls a model makes at its sites, without its weights: one forward on the meta device, layouts noted.

The sites are installed as a mount installs them, with gates that never launch anything, so strides, shared buffers and
the places of outputs are the real ones at any size, in a second and without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.call_layouts import CallLayout, layout_of
from fuseproof.fastpaths.families import family_of, kernels_of_site
from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.installation import Installation
from fuseproof.fastpaths.replacements import Forward, Replacement
from fuseproof.fastpaths.tiers import LOSSLESS
from fuseproof.fastpaths.trials import Computation
from fuseproof.fastpaths.user_families import modules_matching
from fuseproof.fastpaths.user_sites import UserSite

Run = Callable[[Installation], Any]
"""Calls a component once; an installation with a graph target has rewritten the component's forward."""


@dataclass(frozen=True)
class SiteCall:
    """One distinct call at ``site``. ``user_site`` is set where the fused form is one's own.

    ``module`` is the (meta) module whose forward is called, for a site on modules; else the call is a kernel's.
    """

    site: str
    layout: CallLayout
    user_site: UserSite | None = None
    module: nn.Module | None = None


class TracingGate(Gate):
    """The gate of a kernel while tracing: the call is noted, and the reference gives the shapes that follow."""

    def run(self, key: Hashable, fused: Computation, reference: Computation, **options: Any) -> Any:
        """Never fused: kernels do not run on the meta device."""
        return reference()

    def decline(self, reason: str, reference: Computation) -> Any:
        """The meta device is no reason."""
        return reference()


@torch.no_grad()
def trace(component: Any, run: Run) -> list[SiteCall]:
    """The distinct kernel calls of one ``run`` of ``component`` on the meta device, in order of appearance."""
    family = family_of(component)
    if family is None:
        return []
    calls: dict[tuple[str, CallLayout], SiteCall] = {}
    kernels = kernels_of_site(family)
    gates: dict[str, Gate] = {}
    for site in family.SITES:
        if family.QUALITY_OF_SITE[site] != LOSSLESS:
            continue
        gates[site] = TracingGate(site) if site in kernels else Gate(site, GateMode.OFF)
        gates[site].call_observer = _noting(site, calls)
    installation = family.install(component, gates)
    try:
        run(installation)
    finally:
        for replacement in reversed(installation.replacements):
            replacement.take_off()
    return list(calls.values())


@torch.no_grad()
def trace_modules(component: Any, sites: Sequence[UserSite], run: Run) -> list[SiteCall]:
    """The distinct calls of the modules that ``sites`` name, in one plain ``run`` on the meta device."""
    calls: dict[tuple[str, CallLayout], SiteCall] = {}
    replacements: list[Replacement] = []
    try:
        for site in sites:
            for name, module in modules_matching(component, site):
                replacements.append(Replacement(module, _noted_forward(site, name, module, calls)))
        run(Installation())
    finally:
        for replacement in reversed(replacements):
            replacement.take_off()
    return list(calls.values())


def with_stand_ins(calls: Sequence[SiteCall], sites: Sequence[UserSite]) -> list[SiteCall]:
    """The calls that ``sites`` take over from built-in kernels, as calls of theirs."""
    by_kernel = {site.replaces: site for site in sites if site.replaces is not None}
    return [
        replace(call, site=by_kernel[call.layout.operation].name, user_site=by_kernel[call.layout.operation])
        for call in calls
        if call.layout.operation in by_kernel
    ]


def _noting(site: str, calls: dict[tuple[str, CallLayout], SiteCall]) -> Callable[..., None]:
    def note(operation: Any, arguments: tuple[Any, ...], outputs: Any) -> None:
        call = SiteCall(site, layout_of(operation.name, arguments, outputs))
        calls.setdefault((site, without_offsets(call.layout)), call)

    return note


def _noted_forward(
    site: UserSite, name: str, module: nn.Module, calls: dict[tuple[str, CallLayout], SiteCall]
) -> Callable[[Forward], Forward]:
    def make(eager: Forward) -> Forward:
        def forward(*args: Any, **kwargs: Any) -> Any:
            call = SiteCall(site.name, layout_of(name, args, kwargs), site, module)
            calls.setdefault((site.name, without_offsets(call.layout)), call)
            return eager(*args, **kwargs)

        return forward

    return make


def without_offsets(layout: CallLayout) -> CallLayout:
    """Two calls that differ only in where a slice begins are one to a gate, as long as it is as aligned."""

    def moved(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(moved(part) for part in value)
        if hasattr(value, "memory"):
            return replace(value, memory=0, offset=value.offset * value.dtype.itemsize % 16)
        return value

    keywords = tuple((name, moved(value)) for name, value in layout.keywords)
    return replace(layout, arguments=tuple(map(moved, layout.arguments)), keywords=keywords, memory_bytes=())
