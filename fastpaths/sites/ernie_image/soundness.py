"""Whether a transformer is the plain one that the rewritten blocks reproduce: asked at mount.

Adapters replace linears, offloading and caching hook modules, quantisation changes weights: each would be bypassed by
code that reads ``module.weight`` itself, so each makes the rewrite decline, by name. That it stays so is what
:mod:`fuseproof.fastpaths.module_state` compares at every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from fuseproof.fastpaths.foreign_code import foreign_reason
from fuseproof.fastpaths.replacements import is_replaced
from fuseproof.fastpaths.sites.packed_weights import packing_reason
from fuseproof.fastpaths.sites.plain_modules import (
    hook_reason,
    is_hooked,
    modules_of_children,
    plain_children,
    weights_reason,
)

TRANSFORMER_CLASS = "ErnieImageTransformer2DModel"
AROUND_THE_BLOCKS = ("final_norm", "x_embedder", "final_linear")
"""Modules that the rewrite reads the weights of while they are plain, or calls; somebody may hook these."""
HELD = {"text_projection": "text_proj", "rotary_angles": "pos_embed"}
"""The modules whose results are held."""
PROCESSOR = "ErnieImageSingleStreamAttnProcessor"
PLAIN_CLASSES = {
    "Linear",
    "Conv2d",
    "LayerNorm",
    "RMSNorm",
    "ModuleList",
    "ErnieImageAttention",
    "ErnieImageFeedForward",
    "ErnieImageSharedAdaLNBlock",
    "ErnieImageAdaLNContinuous",
    "ErnieImagePatchEmbedDynamic",
}


def family_reason(transformer: Any) -> str | None:
    """Why this transformer cannot carry any site, naming what was seen and what is needed; None if it can."""
    from diffusers import ErnieImageTransformer2DModel

    if type(transformer) is not ErnieImageTransformer2DModel:
        kind = type(transformer)
        return (
            f"transformer is {kind.__module__}.{kind.__qualname__}, the sites need diffusers' own {TRANSFORMER_CLASS}"
        )
    if is_replaced(transformer):
        return "the transformer's own forward was replaced (by offloading?), which the fast paths would pass by"
    outside = ((name, module) for name, module in transformer.named_modules() if not name.startswith("layers."))
    return foreign_reason((name or "transformer", module) for name, module in outside)


def reject_reason(transformer: Any) -> str | None:
    """Why the blocks of this transformer cannot be rewritten, naming the module; None if they can."""
    for name, module in rewritten_modules(transformer):
        reason = _module_reason(name, module)
        if reason is not None:
            return reason
    return (
        weights_reason(transformer)
        or foreign_reason(rewritten_modules(transformer))
        or _norm_reason(transformer)
        or packing_reason(transformer, block_linears(transformer))
    )


def held_reasons(transformer: Any) -> dict[str, str]:
    """Hoisting sites with somebody's hook or forward on what they would hold: its effect would be held too."""
    reasons: dict[str, str] = {}
    for site, name in HELD.items():
        module = getattr(transformer, name)
        if module is not None and is_hooked(module):
            reasons[site] = f"{name} has a hook or another forward, whose effect would be held"
    return reasons


def plain(transformer: Any) -> frozenset[str]:
    """Which of :data:`AROUND_THE_BLOCKS` do nothing besides their classes' own forwards."""
    return plain_children(transformer, AROUND_THE_BLOCKS)


def modules_around(transformer: Any) -> Iterator[nn.Module]:
    """Every module of :data:`AROUND_THE_BLOCKS`: hooks on these are heard, whenever they come."""
    return modules_of_children(transformer, AROUND_THE_BLOCKS)


def rewritten_modules(transformer: Any) -> Iterator[tuple[str, nn.Module]]:
    """Every module whose arithmetic the rewrite takes over, by its name in the transformer."""
    for index, block in enumerate(transformer.layers):
        yield from block.named_modules(prefix=f"layers.{index}")
    for name in AROUND_THE_BLOCKS:
        yield from getattr(transformer, name).named_modules(prefix=name)


def block_linears(transformer: Any) -> Iterator[nn.Linear]:
    """Every linear of the blocks, in the order in which they run."""
    for block in transformer.layers:
        attention, mlp = block.self_attention, block.mlp
        yield from (attention.to_q, attention.to_k, attention.to_v, attention.to_out[0])
        yield from (mlp.gate_proj, mlp.up_proj, mlp.linear_fc2)


def _module_reason(name: str, module: Any) -> str | None:
    kind, is_around = type(module).__name__, not name.startswith("layers.")
    if is_hooked(module) and not is_around:
        return hook_reason(name, module)
    if kind == "ErnieImageAttention":
        return _attention_reason(name, module)
    if kind == "Linear" and (type(module) is not nn.Linear or (module.bias is not None) is not is_around):
        return f"{name} is not a plain Linear {'with' if is_around else 'without'} bias"
    if kind not in PLAIN_CLASSES:
        return f"{name} is {kind}, which the rewritten blocks do not know (an adapter or a quantised layer?)"
    return None


def _attention_reason(name: str, attention: Any) -> str | None:
    if getattr(attention, "fused_projections", False):
        return f"{name} has fused projections; call unfuse_qkv_projections() first"
    if type(attention.processor).__name__ != PROCESSOR:
        return f"{name}.processor is {type(attention.processor).__name__}, the rewritten blocks need {PROCESSOR}"
    if attention.processor._parallel_config is not None:
        return f"{name}.processor runs in parallel over several devices"
    norms = attention.norm_q, attention.norm_k
    if any(type(norm) is not nn.RMSNorm or norm.weight is None for norm in norms):
        kinds = " and ".join(type(norm).__name__ for norm in norms)
        return f"{name}.norm_q and norm_k are {kinds}; the rewritten blocks need RMSNorm with weights"
    if None in (eps := {norm.eps for norm in norms}) or len(eps) != 1:
        seen = ", ".join(str(norm.eps) for norm in norms)
        return f"eps of {name}.norm_q and norm_k are {seen}; the rewritten blocks need one value"
    return None


def _norm_reason(transformer: Any) -> str | None:
    for index, block in enumerate(transformer.layers):
        for name, norm in (("adaLN_sa_ln", block.adaLN_sa_ln), ("adaLN_mlp_ln", block.adaLN_mlp_ln)):
            if (
                type(norm).__module__ != "diffusers.models.normalization"
                or norm.weight is None
                or norm.bias is not None
            ):
                return f"layers.{index}.{name} is not diffusers' RMSNorm with a weight and no bias"
    if transformer.final_norm.norm.weight is not None:
        return "final_norm.norm has a weight; the rewritten forward's LayerNorm has none"
    return None
