"""Whether a Wan transformer is the plain one that the rewritten blocks reproduce: asked at mount.

As for the other families, whatever code that reads ``module.weight`` itself would bypass makes the rewrite decline, by
name. That it stays so is what :mod:`fuseproof.fastpaths.module_state` compares at every call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
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

TRANSFORMER_CLASS = "WanTransformer3DModel"
AROUND_THE_BLOCKS = ("patch_embedding", "norm_out", "proj_out")
"""Modules that the rewrite reads the weights of while they are plain, or calls; somebody may hook these."""
CONDITION = "condition_embedder"
HELD = {
    "text_keys_values": ("text_embedder",),
    "timestep_rows": ("timesteps_proj", "time_embedder", "act_fn", "time_proj"),
}
"""Inside ``condition_embedder``: the modules whose results are held."""
PROCESSOR = "WanAttnProcessor"
PLAIN_CLASSES = {
    "Linear",
    "Conv3d",
    "RMSNorm",
    "FP32LayerNorm",
    "Dropout",
    "ModuleList",
    "FeedForward",
    "GELU",
    "WanAttention",
    "WanTransformerBlock",
}


def family_reason(transformer: Any) -> str | None:
    """Why this transformer cannot carry any site, naming what was seen and what is needed; None if it can."""
    from diffusers import WanTransformer3DModel

    if type(transformer) is not WanTransformer3DModel:
        kind = type(transformer)
        return (
            f"transformer is {kind.__module__}.{kind.__qualname__}, the sites need diffusers' own {TRANSFORMER_CLASS}"
        )
    if is_replaced(transformer):
        return "the transformer's own forward was replaced (by offloading?), which the fast paths would pass by"
    outside = ((name, module) for name, module in transformer.named_modules() if not name.startswith("blocks."))
    return foreign_reason((name or "transformer", module) for name, module in outside)


def reject_reason(transformer: Any) -> str | None:
    """Why the blocks of this transformer cannot be rewritten, naming the module; None if they can."""
    embedder = transformer.condition_embedder
    if is_hooked(embedder):
        return hook_reason(CONDITION, embedder)
    if embedder.image_embedder is not None:
        return f"{CONDITION}.image_embedder is there (Wan 2.1 image-to-video); the rewritten blocks read text alone"
    for name, module in _checked_modules(transformer):
        reason = _module_reason(name, module)
        if reason is not None:
            return reason
    kept = frozenset(transformer._keep_in_fp32_modules or ())
    return (
        weights_reason(transformer, kept)
        or _tables_reason(transformer)
        or foreign_reason(_checked_modules(transformer))
        or packing_reason(transformer, packed_linears(transformer))
    )


def held_reasons(transformer: Any) -> dict[str, str]:
    """Hoisting sites with somebody's hook or forward on what they would hold: its effect would be held too."""
    embedder = transformer.condition_embedder
    reasons: dict[str, str] = {}
    for site, names in HELD.items():
        plain = plain_children(embedder, names)
        for name in names:
            if name not in plain:
                reasons[site] = f"{CONDITION}.{name} has a hook or another forward, whose effect would be held"
    if is_hooked(transformer.rope):
        reasons["rotary_grid"] = "rope has a hook or another forward, whose effect would be held"
    return reasons


def plain(transformer: Any) -> frozenset[str]:
    """Which of :data:`AROUND_THE_BLOCKS` do nothing besides their classes' own forwards."""
    return plain_children(transformer, AROUND_THE_BLOCKS)


def modules_around(transformer: Any) -> Iterator[nn.Module]:
    """Every module of :data:`AROUND_THE_BLOCKS`: hooks on these are heard, whenever they come."""
    return modules_of_children(transformer, AROUND_THE_BLOCKS)


def rewritten_modules(transformer: Any) -> Iterator[tuple[str, nn.Module]]:
    """Every module with parameters that the rewrite reads, by its name in the transformer, which has a table too."""
    yield "", transformer
    yield from _checked_modules(transformer)


def packed_linears(transformer: Any) -> Iterator[nn.Linear]:
    """The linears whose weights are packed: query, key and value of each self-attention."""
    for block in transformer.blocks:
        yield from (block.attn1.to_q, block.attn1.to_k, block.attn1.to_v)


def _checked_modules(transformer: Any) -> Iterator[tuple[str, nn.Module]]:
    for index, block in enumerate(transformer.blocks):
        yield from block.named_modules(prefix=f"blocks.{index}")
    for name in AROUND_THE_BLOCKS:
        yield from getattr(transformer, name).named_modules(prefix=name)


def _module_reason(name: str, module: Any) -> str | None:
    kind = type(module).__name__
    if is_hooked(module) and name.startswith("blocks."):
        return hook_reason(name, module)
    if kind == "Linear" and (type(module) is not nn.Linear or module.bias is None):
        return f"{name} is not a plain Linear with bias"
    if kind == "Dropout" and module.training and module.p:
        return f"{name} drops {module.p:.0%}; the rewritten blocks need the model in eval mode"
    if kind not in PLAIN_CLASSES:
        return f"{name} is {kind}, which the rewritten blocks do not know (an adapter or a quantised layer?)"
    checks = {
        "WanAttention": _attention_reason,
        "FeedForward": _feed_forward_reason,
        "WanTransformerBlock": _block_reason,
    }
    return checks[kind](name, module) if kind in checks else None


def _attention_reason(name: str, attention: Any) -> str | None:
    if getattr(attention, "fused_projections", False):
        return f"{name} has fused projections; call unfuse_projections() first"
    if type(attention.processor).__name__ != PROCESSOR:
        return f"{name}.processor is {type(attention.processor).__name__}, the rewritten blocks need {PROCESSOR}"
    if attention.processor._parallel_config is not None:
        return f"{name}.processor runs in parallel over several devices"
    if attention.add_k_proj is not None:
        return f"{name}.add_k_proj is there; the rewritten blocks attend to text alone"
    norms = attention.norm_q, attention.norm_k
    if any(type(norm) is not nn.RMSNorm or norm.weight is None for norm in norms):
        kinds = " and ".join(type(norm).__name__ for norm in norms)
        return f"{name}.norm_q and norm_k are {kinds}; the rewritten blocks need RMSNorm with weights"
    if None in (eps := {norm.eps for norm in norms}) or len(eps) != 1:
        seen = ", ".join(str(norm.eps) for norm in norms)
        return f"eps of {name}.norm_q and norm_k are {seen}; the rewritten blocks need one value"
    return None


def _feed_forward_reason(name: str, feed_forward: Any) -> str | None:
    kinds = [type(module).__name__ for module in feed_forward.net]
    if kinds != ["GELU", "Dropout", "Linear"] or feed_forward.net[0].approximate != "tanh":
        return f"{name}.net is {', '.join(kinds)}; the rewritten blocks need a tanh GELU, Dropout and Linear"
    return None


def _block_reason(name: str, block: Any) -> str | None:
    """The three norms: without weights, with weight and bias, without."""
    wanted = {"norm1": False, "norm2": True, "norm3": False}
    for norm, is_affine in wanted.items():
        module = getattr(block, norm)
        seen = [getattr(module, part, None) is not None for part in ("weight", "bias")]
        if type(module).__name__ != "FP32LayerNorm" or seen != [is_affine, is_affine]:
            return f"{name}.{norm} is not an FP32LayerNorm {'with' if is_affine else 'without'} weight and bias"
    return None


def _tables_reason(transformer: Any) -> str | None:
    """Modulation is a sum in float32 only where the tables are, as ``from_pretrained`` leaves them."""
    named = dict(transformer.named_parameters())
    kept = {name: weight for name, weight in named.items() if name.endswith(("scale_shift_table", "norm2.weight"))}
    for name, weight in kept.items():
        if weight.dtype != torch.float32:
            dtype = str(weight.dtype).removeprefix("torch.")
            return f"{name} is {dtype}; the rewritten blocks need it in float32, as from_pretrained leaves it"
    if transformer.norm_out.weight is not None:
        return "norm_out has a weight; the rewritten forward's LayerNorm has none"
    return None
