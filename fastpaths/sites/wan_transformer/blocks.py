"""Wan's blocks with what is pointwise fused, and each token's modulation read from the few rows that a step has.

Same matrices, same order of operations and roundings as ``WanTransformerBlock`` (diffusers 0.42.1); what differs:

- modulation is a sum of a table and of the step's embedding, [B, R, 6, D] for R unique timesteps; a kernel adds the two
  where it needs them, so that [B, S, 6, D] never exists;
- a gated residual and the norm that follows are one pass, across blocks too;
- query and key are normalised across heads and rotated in one pass, as they leave their projection;
- keys and values of the text are handed in, computed once a request.

:class:`Block` leaves the attention itself to whoever runs it: a causal model puts its cache there.

Site: video_blocks
Formula: the blocks' own; products keep the rows, their order and the layout that diffusers gives the library.
Shapes: hidden rows [B, S, D], any S and B; bf16 or fp32, with tables and affine norms in fp32.
Rounds: where eager does; the stream is rounded to its dtype after every residual.
Replaces: ``WanTransformerBlock.forward`` of diffusers 0.42.1, ``norm_out`` included.
Exact: every bit where each piece is; each block's gate compares it whole with the eager block, and the whole forward is
    compared once.
Declines: adapters, quantised, hooked, offloaded or replaced modules (by name), fused projections, other attention
    processors, image embeddings (Wan 2.1 image-to-video), tables that are not fp32, autocast, gradients. Weights that
    have moved since mounting decline at the next call.
Bytes: the products' own, and those of the kernels between: about 70 B S D bytes a block; eager's table of modulations
    alone is 36 B S D, made anew in every block where each token is told its timestep.
Check first: if the trace shows ``vectorized_layer_norm_kernel`` in a block, read the site's reason in the report: one
    hooked or replaced module makes all blocks decline.
Source: diffusers transformer_wan.py, 0.42.1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.sites.side_by_side import SideBySide

SHIFT, SCALE, GATE, SHIFT_FFN, SCALE_FFN, GATE_FFN = range(6)
"""Rows of a block's ``scale_shift_table``."""
SHIFT_OUT, SCALE_OUT = range(2)
"""Rows of the transformer's own."""

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Query, key and value [B, S, H, head_dim] to [B, S, H, head_dim]."""
CrossAttention = Callable[[torch.Tensor], torch.Tensor]
"""Query [B, S, H, head_dim] to [B, S, H, head_dim]; it knows the text's keys and values."""


@dataclass(frozen=True)
class Operations:
    """The pointwise work of a forward, each behind its gate (or its reference alone, where the site is off)."""

    table_layernorm_modulate: GatedOperation
    table_gated_residual: GatedOperation
    table_gated_residual_layernorm: GatedOperation
    residual_table_layernorm_modulate: GatedOperation
    table_gated_residual_table_layernorm_modulate: GatedOperation
    across_heads_norm: GatedOperation
    across_heads_norm_rope: GatedOperation
    gelu_tanh: GatedOperation


@dataclass(frozen=True)
class Step:
    """What all blocks of one forward share.

    ``temb`` [B, R, D] and ``projection`` [B, R, 6, D] of the R unique timesteps; ``row_of_token`` [S] int32 says which
    a token has, None where R is 1. ``cosine`` and ``sine`` [1, S, 1, head_dim] as the rotary embedding makes them.
    """

    temb: torch.Tensor
    projection: torch.Tensor
    row_of_token: torch.Tensor | None
    cosine: torch.Tensor
    sine: torch.Tensor
    numerics: Hashable


@dataclass
class Stream:
    """``hidden`` [B, S, D] between two blocks, and ``normed``, what the next one reads, where the last one took it."""

    hidden: torch.Tensor
    normed: torch.Tensor | None = None

    def take_normed(self) -> torch.Tensor | None:
        """``normed``, once."""
        normed, self.normed = self.normed, None
        return normed


@dataclass(frozen=True)
class NextNorm:
    """The modulated norm that follows a block: the next one's first, or the output's."""

    table: torch.Tensor
    temb: torch.Tensor
    shift: int
    scale: int
    eps: float


class Block:
    """One ``WanTransformerBlock``; ``qkv`` applies its three self-attention projections."""

    def __init__(self, block: Any, operations: Operations, qkv: SideBySide) -> None:
        self.block = block
        self._operations = operations
        self._qkv = qkv

    def first_norm(self, step: Step) -> NextNorm:
        """What this block begins with."""
        return NextNorm(self.block.scale_shift_table, step.projection, SHIFT, SCALE, self.block.norm1.eps)

    def run(
        self,
        stream: Stream,
        step: Step,
        attend: Attention,
        attend_to_text: CrossAttention,
        following: NextNorm | None = None,
        keys: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Advance ``stream`` by this block and leave the norm that is ``following`` (None: none).

        ``attend`` is given the turned keys in ``keys`` [B, S, H, head_dim] where that is given.
        """
        operations, block = self._operations, self.block
        rows = block.scale_shift_table, step.projection, step.row_of_token
        normed = stream.take_normed()
        if normed is None:
            normed = operations.table_layernorm_modulate(stream.hidden, *rows, SHIFT, SCALE, block.norm1.eps)
        update = self._self_attended(normed, step, attend, keys)
        hidden, normed = self._residual_and_affine_norm(stream.hidden, update, rows)
        update = self._text_attended(normed, attend_to_text)
        hidden, normed = operations.residual_table_layernorm_modulate(
            hidden, update, *rows, SHIFT_FFN, SCALE_FFN, block.norm3.eps
        )
        update = self._fed_forward(normed)
        if following is None:
            stream.hidden = operations.table_gated_residual(hidden, update, *rows, GATE_FFN)
        else:
            stream.hidden, stream.normed = operations.table_gated_residual_table_layernorm_modulate(
                hidden, update, *rows, GATE_FFN,
                following.table, following.temb, following.shift, following.scale, following.eps,
            )  # fmt: skip
        return stream.hidden

    def _residual_and_affine_norm(self, hidden: torch.Tensor, update: torch.Tensor, rows: Any) -> Any:
        norm = self.block.norm2
        return self._operations.table_gated_residual_layernorm(
            hidden, update, *rows, GATE, norm.weight, norm.bias, norm.eps
        )

    def _self_attended(
        self, normed: torch.Tensor, step: Step, attend: Attention, keys: torch.Tensor | None
    ) -> torch.Tensor:
        attention = self.block.attn1
        query, key, value = self._qkv.of(normed, step.numerics)
        outputs = {} if keys is None else {"out_key": keys}
        query, key = self._operations.across_heads_norm_rope(
            query, key, attention.norm_q.weight, attention.norm_k.weight, step.cosine, step.sine, attention.norm_q.eps,
            attention.heads, **outputs,
        )  # fmt: skip
        if keys is not None and key.data_ptr() != keys.data_ptr():  # what a reference returns is its own
            key = keys.copy_(key)
        return _through(attention.to_out[0], attend(query, key, value.unflatten(2, (attention.heads, -1))))

    def _text_attended(self, normed: torch.Tensor, attend_to_text: CrossAttention) -> torch.Tensor:
        attention = self.block.attn2
        query = F.linear(normed, attention.to_q.weight, attention.to_q.bias)
        query = self._operations.across_heads_norm(query, attention.norm_q.weight, attention.norm_q.eps)
        return _through(attention.to_out[0], attend_to_text(query.unflatten(2, (attention.heads, -1))))

    def _fed_forward(self, normed: torch.Tensor) -> torch.Tensor:
        first, last = self.block.ffn.net[0].proj, self.block.ffn.net[2]
        inner = F.linear(normed, first.weight, first.bias)
        return F.linear(self._operations.gelu_tanh(inner, out=inner), last.weight, last.bias)


def wan_block(
    block: Block, hidden: torch.Tensor, step: Step, self_attention: Attention, cross_attention: CrossAttention
) -> torch.Tensor:
    """``hidden`` [B, S, D] after one block by itself, without the norm of the next."""
    return block.run(Stream(hidden), step, self_attention, cross_attention)


def _through(linear: Any, attended: torch.Tensor) -> torch.Tensor:
    """An attention's output matrix over its heads, side by side."""
    return F.linear(attended.flatten(2, 3), linear.weight, linear.bias)
