"""What the rewritten blocks take for granted beyond their modules' kinds, asked once at mount.

Each block is compared whole with diffusers' own before it may run, but only for one set of inputs; what is known to
compute something else, or to lose something by being packed, is declined here by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from fuseproof.fastpaths.foreign_code import foreign_reason
from fuseproof.fastpaths.sites.longcat_image.linears import block_linears
from fuseproof.fastpaths.sites.longcat_image.soundness import rewritten_modules
from fuseproof.fastpaths.sites.packed_weights import packing_reason


def reject_reason(transformer: Any) -> str | None:
    """Why the blocks of this transformer cannot be rewritten, naming the module; None if they can."""
    return (
        foreign_reason(rewritten_modules(transformer))
        or _norm_reason(transformer)
        or packing_reason(transformer, block_linears(transformer))
    )


def _norm_reason(transformer: Any) -> str | None:
    for name, module in rewritten_modules(transformer):
        if isinstance(module, nn.LayerNorm) and module.weight is not None:
            return f"{name} has a weight; the rewritten blocks' LayerNorms have none"
    for name, norms in _same_eps(transformer):
        values = [norm.eps for norm in norms]
        if None in values or len(set(values)) != 1:
            return f"eps of {name} are {', '.join(map(str, values))}; the rewritten blocks need one value"
    return None


def _same_eps(transformer: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Norms that one pass takes with one ``eps``."""
    for index, block in enumerate(transformer.transformer_blocks):
        path, attention = f"transformer_blocks.{index}", block.attn
        yield f"{path}.norm1 and norm1_context", (block.norm1.norm, block.norm1_context.norm)
        yield f"{path}.norm2 and norm2_context", (block.norm2, block.norm2_context)
        norms = (attention.norm_q, attention.norm_k, attention.norm_added_q, attention.norm_added_k)
        yield f"{path}.attn.norm_q, norm_k, norm_added_q and norm_added_k", norms
    for index, block in enumerate(transformer.single_transformer_blocks):
        path = f"single_transformer_blocks.{index}"
        yield f"{path}.attn.norm_q and norm_k", (block.attn.norm_q, block.attn.norm_k)
