"""LongLive 2's transformer: Wan's fused blocks over one chunk, its KV cache between query, key and value.

The model itself holds what a request and a chunk do not change (keys and values of the text, rotary tables, room for
the chunk). ``chunk_blocks`` is the rewrite of its blocks (:mod:`forward`): Wan's, of
:mod:`fuseproof.fastpaths.sites.wan_transformer.blocks`, verified block by block against the model's own forward.

Site: packed_chunk_qkv
Formula: query, key and value of a self-attention as one product with a [3 D, D] matrix: the same dot products, each
    output column by itself, with their own biases.
Shapes: [B, S, D] -> [B, S, 3 D], S the tokens of a chunk.
Rounds: where eager does, once a product.
Replaces: ``to_q``, ``to_k`` and ``to_v`` of ``attn1`` in fuseproof's LongLive 2: three products a block become one.
Exact: where the gate says so, by shape: the library may choose another tile for a wider matrix. Where it differs, the
    separate products run, on the same weights.
Declines: nothing by itself; see ``chunk_blocks``.
Bytes: the products' own, with the rows read once instead of three times: 4 B S D less. Parameters become views of the
    wider matrix under their own names, so nothing is held twice.
Check first: if the trace shows three products a block before the first attention, read the site's reason.
Source: fuseproof's pipelines/longlive2_model.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from fuseproof.fastpaths.foreign_code import foreign_reason
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.installation import GraphTarget, Installation, taken_off_if_it_fails
from fuseproof.fastpaths.kernels import triton_missing_reason
from fuseproof.fastpaths.module_state import Guard, Snapshot
from fuseproof.fastpaths.replacements import Forward, Replacement, is_replaced
from fuseproof.fastpaths.sites.plain_modules import kernels_reason
from fuseproof.fastpaths.sites.wan_transformer import soundness

COMPONENT = "transformer"
CLASS_NAME = "LongLive2Transformer3DModel"
OWN_MODULE = "fuseproof.pipelines.longlive2_model"
OWN_BLOCKS = "fuseproof.pipelines.longlive2_blocks"
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
SITES = ("chunk_blocks", "packed_chunk_qkv", *KERNELS_OF_SITE)
QUALITY_OF_SITE = dict.fromkeys(SITES, "lossless")
REQUIRES = {site: "chunk_blocks" for site in SITES if site != "chunk_blocks"}
"""Everything works between the rewritten blocks' matrices: asking for one asks for the rewrite too."""


def reject_reason(transformer: Any) -> str | None:
    """Why this transformer cannot carry any of the sites; None if it can."""
    kind = type(transformer)
    if (kind.__module__, kind.__qualname__) != (OWN_MODULE, CLASS_NAME):
        return f"transformer is {kind.__module__}.{kind.__qualname__}, the sites need fuseproof's own {CLASS_NAME}"
    if is_replaced(transformer):
        return "the transformer's own forward was replaced (by offloading?), which the fast paths would pass by"
    modules = ((name, module) for name, module in transformer.named_modules() if name)
    return foreign_reason((name, module) for name, module in modules if not name.startswith("blocks."))


def site_reasons(transformer: Any) -> dict[str, str]:
    """Sites that decline on this transformer although the family does not, and why: the device first."""
    kernel = kernels_reason(transformer.proj_out.weight)
    kernels = dict.fromkeys(KERNELS_OF_SITE, kernel) if kernel is not None else {}
    blocked = triton_missing_reason() or soundness.reject_reason(transformer)
    return (dict.fromkeys(SITES, blocked) if blocked is not None else {}) | kernels


def install(transformer: Any, gates: Mapping[str, Gate]) -> Installation:
    """Put the chosen sites into ``transformer``; the gates of declining sites are not among ``gates``."""
    if "chunk_blocks" not in gates:
        return Installation()
    guard = Guard()
    installation = _rewritten(transformer, gates, guard)
    with taken_off_if_it_fails(installation):
        fixed = soundness.rewritten_modules(transformer)
        guard.seal(Snapshot(transformer, fixed, _libraries(), soundness.modules_around(transformer)))
    return installation


def _rewritten(transformer: Any, gates: Mapping[str, Gate], guard: Guard) -> Installation:
    from fuseproof.fastpaths.sites.longlive2_transformer.forward import RewrittenChunk
    from fuseproof.fastpaths.sites.wan_transformer.kernels import gated_operations

    made: list[RewrittenChunk] = []  # the replacement calls ``make`` at once

    def make(eager: Forward) -> Forward:
        made.append(RewrittenChunk(transformer, gated_operations(gates, KERNELS_OF_SITE), gates, guard, eager))
        return made[0]

    replacement = Replacement(transformer, make)
    forward = made[0]
    return Installation(
        [replacement],
        [forward, forward.told_alike],
        GraphTarget(forward, "core", forward.graph_state),
        announce_steps=forward.told_alike.announce,
        undo=forward.blocks.release,
    )


def _libraries() -> tuple[ModuleType, ...]:
    """Where the functions live that the model's own forward calls by name, and the rewritten one does not."""
    import sys

    import torch.nn.functional as F
    from diffusers.models import activations, attention, attention_dispatch, embeddings, normalization
    from diffusers.models.transformers import transformer_wan

    own = (sys.modules[name] for name in (OWN_MODULE, OWN_BLOCKS))
    return *own, F, activations, attention, attention_dispatch, embeddings, normalization, transformer_wan
