"""ERNIE-Image: what is computed once for a request, and the blocks rewritten on one stream with fused kernels between.

``text_projection`` and ``rotary_angles`` hold what does not change (:mod:`request_tensors`). ``stream_blocks`` is the
rewrite of the blocks (:mod:`blocks`, :mod:`forward`), verified block by block against diffusers' own; all other sites
work inside it. ``unmasked_attention`` and ``fp8_linear`` are not exact: they give the blocks another form
(:mod:`forms`) while a quality permits it.

Modulation is one product a forward and each step is one forward, both guidance branches in it: there is nothing to
hold from one call to the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.installation import GraphTarget, Installation, taken_off_if_it_fails
from fuseproof.fastpaths.kernels import triton_missing_reason
from fuseproof.fastpaths.module_state import Guard, Snapshot
from fuseproof.fastpaths.replacements import Forward, Replacement
from fuseproof.fastpaths.sites.ernie_image import soundness
from fuseproof.fastpaths.sites.plain_modules import kernels_reason

COMPONENT = "transformer"
CLASS_NAME = "ErnieImageTransformer2DModel"
HOISTING_SITES = ("text_projection", "rotary_angles")
PRODUCT_SITES = ("packed_projections", "image_rows")
"""Rewrites of matrix products inside the blocks' rewrite, each behind a gate of its own."""
KERNELS_OF_SITE = {
    "rmsnorm_modulate": ("rmsnorm_modulate",),
    "gated_residual": ("gated_residual", "gated_residual_rmsnorm_modulate"),
    "qk_norm_rotate_half": ("qk_norm_rotate_half",),
    "geglu": ("geglu",),
    "layernorm_modulate": ("layernorm_modulate",),
}
APPROXIMATE_SITES = {"unmasked_attention": "extra-high", "fp8_linear": "high"}
HELPER_KERNELS = {"fp8_linear": ("row_quantize",)}
"""Kernels beside the matrix products of sites that are not exact; each is exact by its own reference."""
SITES = (*HOISTING_SITES, "stream_blocks", *PRODUCT_SITES, *KERNELS_OF_SITE, *APPROXIMATE_SITES)
QUALITY_OF_SITE = {**dict.fromkeys(SITES, "lossless"), **APPROXIMATE_SITES}
REQUIRES = {site: "stream_blocks" for site in SITES if site != "stream_blocks"}
"""Everything works between the rewritten blocks' matrices: asking for one asks for the rewrite too."""
READ_BY = {"rotary_angles": "stream_blocks"}
"""The rewritten blocks read held cosines and sines, the eager block takes its own from the angles: other bits of the
one may show in the other, although it is not called inside it."""
LARGEST_ERROR_OF_SITE = {"unmasked_attention": 0.05, "fp8_linear": 0.3}
"""Relative error of what a block adds to its stream, beyond which it is not the same computation."""
TAKEN_OVER_BY = {"unmasked_attention": ("fp8_linear",), "packed_projections": ("fp8_linear",)}
"""Where the latter is in force, its blocks leave a full mask out too, and have products of their own."""


def reject_reason(transformer: Any) -> str | None:
    """Why this transformer cannot carry any of the sites; None if it can."""
    return soundness.family_reason(transformer)


def site_reasons(transformer: Any) -> dict[str, str]:
    """Sites that decline on this transformer although the family does not, and why: the device first."""
    kernel = kernels_reason(next(transformer.parameters()))
    kernels = dict.fromkeys(KERNELS_OF_SITE, kernel) if kernel is not None else {}
    blocked = triton_missing_reason() or soundness.reject_reason(transformer)
    reasons = dict.fromkeys(SITES, blocked) if blocked is not None else soundness.held_reasons(transformer)
    return reasons | kernels | _approximate_reasons(transformer, blocked)


def install(transformer: Any, gates: Mapping[str, Gate]) -> Installation:
    """Put the chosen sites into ``transformer``; the gates of declining sites are not among ``gates``."""
    if "stream_blocks" not in gates:
        return Installation()
    guard = Guard()
    installation = _rewritten(transformer, gates, guard)
    with taken_off_if_it_fails(installation):
        fixed = soundness.rewritten_modules(transformer)
        guard.seal(Snapshot(transformer, fixed, _libraries(), soundness.modules_around(transformer)))
    return installation


def _rewritten(transformer: Any, gates: Mapping[str, Gate], guard: Guard) -> Installation:
    from fuseproof.fastpaths.hoisting import HeldResults
    from fuseproof.fastpaths.sites.ernie_image.forward import RewrittenForward
    from fuseproof.fastpaths.sites.ernie_image.kernels import gated_operations

    held = HeldResults()
    made: list[RewrittenForward] = []  # the replacement calls ``make`` at once

    def make(eager: Forward) -> Forward:
        forward = RewrittenForward(transformer, gated_operations(gates), gates, held, guard, eager)
        made.append(forward)
        return forward

    replacement = Replacement(transformer, make)
    forward = made[0]
    target = GraphTarget(forward, "core", forward.graph_state)
    forms = forward.forms
    return Installation([replacement], [held], target, forms.choose, undo=forms.release)


def _libraries() -> tuple[ModuleType, ...]:
    """Where the functions live that diffusers' own forward calls by name, and the rewritten one does not."""
    import torch.nn.functional as F
    from diffusers.models import attention_dispatch, embeddings, normalization
    from diffusers.models.transformers import transformer_ernie_image

    return F, attention_dispatch, embeddings, normalization, transformer_ernie_image


def _approximate_reasons(transformer: Any, blocked: str | None) -> dict[str, str]:
    """Why the blocks cannot have another form: the device, then the blocks, then their matrices."""
    device = next(transformer.parameters()).device
    if device.type != "cuda":
        return dict.fromkeys(APPROXIMATE_SITES, f"the model is on {device}; approximate forms need a CUDA device")
    if blocked is not None:
        return dict.fromkeys(APPROXIMATE_SITES, blocked)
    from fuseproof.fastpaths.matmuls import fp8_linear

    found = (fp8_linear.reject_reason(linear.weight) for linear in soundness.block_linears(transformer))
    reason = next((one for one in found if one is not None), None)
    return {} if reason is None else {"fp8_linear": reason}
