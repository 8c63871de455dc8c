"""Wan's transformer: what is computed once for a request or a step, and the blocks with fused kernels between.

``text_keys_values`` and ``rotary_grid`` hold what a request does not change (:mod:`held_tensors`), ``timestep_rows``
what tokens and guidance branches of a step share (:mod:`timestep_rows`). ``video_blocks`` is the rewrite of the blocks
(:mod:`blocks`, :mod:`forward`), verified block by block against diffusers' own; all other sites work inside it.

Site: packed_qkv
Formula: query, key and value of a self-attention as one product with a [3 D, D] matrix: the same dot products, each
    output column by itself, with their own biases.
Shapes: [B, S, D] -> [B, S, 3 D].
Rounds: where eager does, once a product.
Replaces: ``to_q``, ``to_k`` and ``to_v`` of ``attn1`` in ``WanTransformerBlock``, diffusers 0.42.1: three products a
    block become one.
Exact: where the gate says so, by shape: the library may choose another tile for a wider matrix. Where it differs, the
    separate products run, on the same weights.
Declines: nothing by itself; see ``video_blocks``.
Bytes: the products' own, with the rows read once instead of three times: 4 B S D less. Parameters become views of the
    wider matrix under their own names, so nothing is held twice.
Check first: if the trace shows three products a block before the first attention, read the site's reason.
Source: diffusers transformer_wan.py, 0.42.1.
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
from fuseproof.fastpaths.sites.plain_modules import kernels_reason
from fuseproof.fastpaths.sites.wan_transformer import soundness

COMPONENT = "transformer"
CLASS_NAME = "WanTransformer3DModel"
HOISTING_SITES = ("text_keys_values", "rotary_grid", "timestep_rows")
KERNELS_OF_SITE = {
    "table_layernorm_modulate": ("table_layernorm_modulate",),
    "table_gated_residual": (
        "table_gated_residual",
        "table_gated_residual_layernorm",
        "residual_table_layernorm_modulate",
        "table_gated_residual_table_layernorm_modulate",
    ),
    "across_heads_norm_rope": ("across_heads_norm_rope", "across_heads_norm"),
    "gelu_tanh": ("gelu_tanh",),
}
SITES = (*HOISTING_SITES, "video_blocks", "packed_qkv", *KERNELS_OF_SITE)
QUALITY_OF_SITE = dict.fromkeys(SITES, "lossless")
REQUIRES = {site: "video_blocks" for site in SITES if site != "video_blocks"}
"""Everything works between the rewritten blocks' matrices: asking for one asks for the rewrite too."""
READ_BY = dict.fromkeys(HOISTING_SITES, "video_blocks")
"""What is held is made outside of the blocks, and the eager block makes some of it by itself: other bits of the one may
show in the other."""


def reject_reason(transformer: Any) -> str | None:
    """Why this transformer cannot carry any of the sites; None if it can."""
    return soundness.family_reason(transformer)


def site_reasons(transformer: Any) -> dict[str, str]:
    """Sites that decline on this transformer although the family does not, and why: the device first."""
    kernel = kernels_reason(transformer.proj_out.weight)
    kernels = dict.fromkeys(KERNELS_OF_SITE, kernel) if kernel is not None else {}
    blocked = triton_missing_reason() or soundness.reject_reason(transformer)
    reasons = dict.fromkeys(SITES, blocked) if blocked is not None else soundness.held_reasons(transformer)
    return reasons | kernels


def install(transformer: Any, gates: Mapping[str, Gate]) -> Installation:
    """Put the chosen sites into ``transformer``; the gates of declining sites are not among ``gates``."""
    if "video_blocks" not in gates:
        return Installation()
    guard = Guard()
    installation = _rewritten(transformer, gates, guard)
    with taken_off_if_it_fails(installation):
        fixed = soundness.rewritten_modules(transformer)
        guard.seal(Snapshot(transformer, fixed, _libraries(), soundness.modules_around(transformer)))
    return installation


def _rewritten(transformer: Any, gates: Mapping[str, Gate], guard: Guard) -> Installation:
    from fuseproof.fastpaths.sites.wan_transformer.forward import RewrittenForward
    from fuseproof.fastpaths.sites.wan_transformer.kernels import gated_operations

    made: list[RewrittenForward] = []  # the replacement calls ``make`` at once

    def make(eager: Forward) -> Forward:
        operations = gated_operations(gates, KERNELS_OF_SITE)
        made.append(RewrittenForward(transformer, operations, gates, guard, eager))
        return made[0]

    replacement = Replacement(transformer, make)
    forward = made[0]
    return Installation(
        [replacement],
        [forward.held, forward.rows],
        GraphTarget(forward, "core", forward.graph_state),
        announce_steps=forward.rows.announce,
        undo=forward.blocks.release,
    )


def _libraries() -> tuple[ModuleType, ...]:
    """Where the functions live that diffusers' own forward calls by name, and the rewritten one does not."""
    import torch.nn.functional as F
    from diffusers.models import activations, attention, attention_dispatch, embeddings, normalization
    from diffusers.models.transformers import transformer_wan

    return F, activations, attention, attention_dispatch, embeddings, normalization, transformer_wan
