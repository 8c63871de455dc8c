"""LongCat-Image: what is computed once, and the blocks rewritten on one stream buffer with fused kernels between.

``context_embedding``, ``rotary_tables``, ``timestep_embedding`` and ``modulation`` hold what does not change
(:mod:`hoists`, :mod:`modulation`). ``packed_blocks`` is the rewrite of the blocks (:mod:`blocks`, :mod:`forward`),
verified block by block against diffusers' own; the kernel sites work inside it. ``linear_gelu`` and ``fp8_linear``
are not exact: they give the blocks other matrices (:mod:`epilogue`, :mod:`fp8`) while a quality permits it.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.hoisting import HeldResults
from fuseproof.fastpaths.installation import GraphTarget, Installation, taken_off_if_it_fails
from fuseproof.fastpaths.kernels import triton_missing_reason
from fuseproof.fastpaths.module_state import Guard, Snapshot
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.replacements import Forward, Replacement
from fuseproof.fastpaths.sites.longcat_image import hoists, soundness
from fuseproof.fastpaths.sites.plain_modules import kernels_reason

COMPONENT = "transformer"
CLASS_NAME = "LongCatImageTransformer2DModel"
HOISTING_SITES = ("context_embedding", "rotary_tables", "timestep_embedding", "modulation")
KERNELS_OF_SITE = {
    "layernorm_modulate": ("layernorm_modulate",),
    "gated_residual": ("gated_residual", "gated_residual_layernorm_modulate"),
    "qk_norm_rope": ("qk_norm_rope",),
    "gelu_tanh": ("gelu_tanh", "attention_mlp_gelu"),
}
LOOP_OPERATIONS = ("guidance_step",)
"""What no module's forward does: a native loop asks the mount for these and calls them itself."""
APPROXIMATE_SITES = {"linear_gelu": "extra-high", "fp8_linear": "high"}
HELPER_KERNELS = {"fp8_linear": ("row_quantize",)}
"""Kernels beside the matrix products of sites that are not exact; each is exact by its own reference."""
SITES = (*HOISTING_SITES, "packed_blocks", *KERNELS_OF_SITE, *LOOP_OPERATIONS, *APPROXIMATE_SITES)
QUALITY_OF_SITE = {**dict.fromkeys(SITES, "lossless"), **APPROXIMATE_SITES}
REQUIRES = dict.fromkeys((*KERNELS_OF_SITE, *APPROXIMATE_SITES), "packed_blocks")
"""The kernels work between the rewritten blocks' matrices: asking for one asks for the rewrite too."""
READ_BY = {"modulation": "packed_blocks"}
"""A table that the rewritten blocks read, and whose product the eager block computes by itself: other bits of the one
show in the other, although it is not called inside it."""
LARGEST_ERROR_OF_SITE = {"linear_gelu": 0.05, "fp8_linear": 0.3}
"""Relative error of what a block adds to its stream, beyond which it is not the same computation. Roundings that move
cost some tenths of a percent, e4m3 operands about a tenth; a matrix in the wrong layout costs more than the whole."""
TAKEN_OVER_BY = {"linear_gelu": ("fp8_linear",), "gelu_tanh": ("fp8_linear", "linear_gelu")}
"""Where one of the latter is in force, it does the former's work: one kind of matrices at a time, its GELU included."""


def reject_reason(transformer: Any) -> str | None:
    """Why this transformer cannot carry any of the sites; None if it can."""
    return hoists.reject_reason(transformer)


def site_reasons(transformer: Any) -> dict[str, str]:
    """Sites that decline on this transformer although the family does not, and why: the device first."""
    kernel = kernels_reason(next(transformer.parameters()))
    kernels = dict.fromkeys((*KERNELS_OF_SITE, *LOOP_OPERATIONS), kernel) if kernel is not None else {}
    missing = triton_missing_reason()
    blocked = missing or _rewrite_reason(transformer)
    held = hoists.site_reasons(transformer)
    if missing is not None:
        held |= dict.fromkeys(LOOP_OPERATIONS, missing)
    if blocked is None:
        return held | kernels | _approximate_reasons(transformer)
    reasons = held | dict.fromkeys(("packed_blocks", *KERNELS_OF_SITE, *APPROXIMATE_SITES), blocked)
    return reasons | kernels | _approximate_device_reasons(transformer)


def install(transformer: Any, gates: Mapping[str, Gate]) -> Installation:
    """Put the chosen sites into ``transformer``; the gates of declining sites are not among ``gates``."""
    installation = Installation()
    rewrites = "packed_blocks" in gates
    call, guard = hoists.CurrentCall(), Guard()
    hoisted = tuple(site for site in HOISTING_SITES if site in gates and not (rewrites and site == "modulation"))
    with taken_off_if_it_fails(installation):
        for hoist in hoists.hoists(transformer, hoisted):
            held = HeldResults()
            installation.held.append(held)
            make = functools.partial(hoists.hoisted_forward, hoist, call, gates[hoist.site], held)
            installation.replacements.append(Replacement(hoist.module, make))
        if rewrites:
            installation = _rewritten(transformer, gates, call, guard, installation)
        else:
            watch = functools.partial(hoists.watched_forward, call, guard)
            installation.replacements.append(Replacement(transformer, watch))
    with taken_off_if_it_fails(installation):  # with what undoes the rewrite
        fixed = soundness.rewritten_modules(transformer) if rewrites else ()
        guard.seal(Snapshot(transformer, fixed, _libraries(), soundness.modules_around(transformer)))
    return installation


def loop_operation(name: str, gate: Gate) -> GatedOperation:
    """The operation of a site that a native loop calls itself."""
    kernel = importlib.import_module(f"fuseproof.fastpaths.kernels.{name}")
    return GatedOperation(name, kernel, gate)


def _rewritten(
    transformer: Any,
    gates: Mapping[str, Gate],
    call: hoists.CurrentCall,
    guard: Guard,
    installation: Installation,
) -> Installation:
    from fuseproof.fastpaths.sites.longcat_image.forward import RewrittenForward
    from fuseproof.fastpaths.sites.longcat_image.kernels import gated_operations

    held = HeldResults()
    made: list[RewrittenForward] = []  # the replacement calls ``make`` at once

    def make(eager: Forward) -> Forward:
        forward = RewrittenForward(transformer, gated_operations(gates), gates, call, held, guard, eager)
        made.append(forward)
        return forward

    installation.replacements.append(Replacement(transformer, make))
    installation.held.append(held)
    target = GraphTarget(made[0], "core", made[0].graph_state)
    announce = None
    if made[0].ahead is not None:
        installation.held.append(made[0].ahead)
        announce = made[0].ahead.announce
    forms = made[0].forms
    return Installation(
        installation.replacements, installation.held, target, forms.choose, announce, undo=forms.release
    )


def _rewrite_reason(transformer: Any) -> str | None:
    from fuseproof.fastpaths.sites.longcat_image import plainness

    return soundness.reject_reason(transformer) or plainness.reject_reason(transformer)


def _libraries() -> tuple[ModuleType, ...]:
    """Where the functions live that diffusers' own forward calls by name, and the rewritten one does not."""
    import torch.nn.functional as F
    from diffusers.models import activations, attention, attention_dispatch, embeddings, normalization
    from diffusers.models.transformers import transformer_longcat_image

    return F, activations, attention, attention_dispatch, embeddings, normalization, transformer_longcat_image


def _approximate_device_reasons(transformer: Any) -> dict[str, str]:
    """The device, where it is one that no other kind of matrices can run on, whatever the blocks are."""
    device = next(transformer.parameters()).device
    if device.type == "cuda":
        return {}
    return dict.fromkeys(APPROXIMATE_SITES, f"the model is on {device}; FP8 and epilogue matmuls need a CUDA device")


def _approximate_reasons(transformer: Any) -> dict[str, str]:
    """Why the blocks of a transformer that can be rewritten cannot have other matrices: the first reason found."""
    from fuseproof.fastpaths.matmuls import fp8_linear, linear_gelu
    from fuseproof.fastpaths.sites.longcat_image.linears import block_linears

    reasons: dict[str, str] = {}
    for linear in block_linears(transformer):
        found = {
            "linear_gelu": linear_gelu.reject_reason(linear.weight),
            "fp8_linear": fp8_linear.reject_reason(linear.weight),
        }
        reasons = {name: reason for name, reason in found.items() if reason is not None} | reasons
    return reasons
