"""One block of LongLive 2 over the tokens of a chunk: ``WanTransformerBlock``'s arithmetic (diffusers 0.42.1) with one
row of modulation a frame, and with keys and values that stay.
"""

from __future__ import annotations

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_wan import WanAttention, WanTransformerBlock

from fuseproof.pipelines.longlive2_caches import LongLive2Caches


def block_forward(
    block: WanTransformerBlock,
    hidden: torch.Tensor,
    modulation: torch.Tensor,
    caches: LongLive2Caches,
    index: int,
) -> torch.Tensor:
    """Block ``index`` over ``hidden`` [B, S, D]; ``modulation`` [B, F, 6, D]."""
    rows = (block.scale_shift_table.unsqueeze(0) + modulation.float()).chunk(6, dim=2)
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = rows

    normed = modulated(block.norm1(hidden.float()), shift, scale).type_as(hidden)
    update = _self_attention(block.attn1, normed, caches, index)
    hidden = (hidden.float() + _gated(update, gate)).type_as(hidden)

    normed = block.norm2(hidden.float()).type_as(hidden)
    hidden = hidden + _cross_attention(block.attn2, normed, caches.text_keys[index], caches.text_values[index])

    normed = modulated(block.norm3(hidden.float()), ffn_shift, ffn_scale).type_as(hidden)
    return (hidden.float() + _gated(block.ffn(normed).float(), ffn_gate)).type_as(hidden)


def modulated(normed: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``normed`` [B, S, D] fp32 by one ``shift`` and ``scale`` [B, F, 1, D] a frame."""
    return (normed.unflatten(1, (shift.shape[1], -1)) * (1 + scale) + shift).flatten(1, 2)


def _gated(update: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """``update`` [B, S, D] by one ``gate`` [B, F, 1, D] fp32 a frame, in fp32."""
    return (update.unflatten(1, (gate.shape[1], -1)) * gate).flatten(1, 2)


def _self_attention(attention: WanAttention, hidden: torch.Tensor, caches: LongLive2Caches, index: int) -> torch.Tensor:
    """The chunk's tokens over the clean frames before them and themselves; their keys and values stay in ``caches``."""
    query = split_heads(attention, attention.norm_q(attention.to_q(hidden)))
    key = split_heads(attention, attention.norm_k(attention.to_k(hidden)))
    value = split_heads(attention, attention.to_v(hidden))
    place, keys, values = caches.chunk_place, caches.keys[index], caches.values[index]
    keys[:, place] = _rotated(key, caches)
    values[:, place] = value
    return _attended(attention, _rotated(query, caches), keys[:, : place.stop], values[:, : place.stop])


def _cross_attention(
    attention: WanAttention, hidden: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    query = split_heads(attention, attention.norm_q(attention.to_q(hidden)))
    return _attended(attention, query, keys, values)


def _attended(attention: WanAttention, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attention without a mask and the projection behind it, [B, S, D]."""
    attended = dispatch_attention_fn(query, keys, values, backend=attention.processor._attention_backend)
    projected: torch.Tensor = attention.to_out[0](attended.flatten(2, 3).type_as(query))
    return projected


def split_heads(attention: WanAttention, projected: torch.Tensor) -> torch.Tensor:
    """[B, S, D] as [B, S, heads, head channels]."""
    return projected.unflatten(2, (attention.heads, -1))


def _rotated(heads: torch.Tensor, caches: LongLive2Caches) -> torch.Tensor:
    """``heads`` [B, S, heads, channels] turned by the chunk's tables: neighbouring channels, in fp32, rounded once."""
    even, odd = heads.unflatten(-1, (-1, 2)).unbind(-1)
    tokens = heads.shape[1]
    cosine, sine = caches.cosine[:, :tokens, :, 0::2], caches.sine[:, :tokens, :, 1::2]
    turned = torch.empty_like(heads)
    turned[..., 0::2] = even * cosine - odd * sine
    turned[..., 1::2] = even * sine + odd * cosine
    return turned
