"""LongCat-Image's blocks on one stream buffer: text rows first, image rows after them, no cat and no split between.

Same matrices, same order of operations and roundings as ``LongCatImageTransformerBlock`` and
``LongCatImageSingleTransformerBlock`` (diffusers 0.42.1); what differs is where results are written:

- query, key and value of all rows land in one [B, S, 3 D] buffer, and normalisation and rotation happen in place;
- a gated residual is added to the stream in place, and the LayerNorm that follows is taken in the same pass;
- a single block's projections share one [B, S, 7 D] buffer; attention is laid over its value columns, beside the
  activated MLP columns, where ``proj_out`` reads both.

How the matrices are applied is not decided here but by the :class:`Linears` that a block is made with.

Site: packed_blocks
Formula: the blocks' own, each matrix product the same dot products: query, key and value as one [3 D, D] matrix, a
    single block's four projections as one [7 D, D], linears that read and write rows of wider buffers.
Shapes: the stream [B, S, D] with its text rows first; bf16 or fp32 throughout.
Rounds: where eager does; nothing is carried in another precision between two operations.
Replaces: ``LongCatImageTransformerBlock.forward`` and ``LongCatImageSingleTransformerBlock.forward`` of diffusers
    0.42.1: nine or four projections become fewer, wider ones, and 3 ``cat``, 2 splits and the copies that they cost go.
Exact: every bit where the library's product of the wider matrix is; each block's gate compares it whole with the eager
    block. It agreed at M = 512, 859, 4096, 4608, 8374 and 9233 on an H200 (torch 2.11).
Declines: adapters, quantised, hooked, offloaded or replaced modules (by name), fused projections, other attention
    processors, mixed dtypes, autocast, gradients. Weights that have moved since mounting decline at the next call.
Bytes: the products' own. Parameters become views of the wider matrices under their own names, so nothing is held twice.
Check first: if the trace shows ``CatArrayBatchedCopy`` or three separate q, k and v products a block, read the site's
    reason in the report: one hooked or replaced module makes all blocks decline.
Source: diffusers transformer_longcat_image.py, 0.42.1; docs/evidence for what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.sites.attention import attend
from fuseproof.fastpaths.sites.longcat_image.linears import Linears
from fuseproof.fastpaths.sites.longcat_image.modulation import JointModulation, NormModulation


@dataclass(frozen=True)
class Operations:
    """The pointwise work of a block, each behind its gate (or its reference alone, where the site is off)."""

    layernorm_modulate: GatedOperation
    gated_residual: GatedOperation
    gated_residual_layernorm_modulate: GatedOperation
    qk_norm_rope: GatedOperation
    gelu_tanh: GatedOperation
    attention_mlp_gelu: GatedOperation


@dataclass
class Stream:
    """All rows of all samples between two blocks.

    ``hidden`` [B, S, D], of which the first ``text_rows`` are text; ``cos`` and ``sin`` [S, head_dim] fp32;
    ``normed`` [B, S, D] is the modulated LayerNorm that the next block begins with, where the last one already took it.
    """

    hidden: torch.Tensor
    text_rows: int
    cos: torch.Tensor
    sin: torch.Tensor
    normed: torch.Tensor | None = None

    def take_normed(self, operations: Operations, modulation: NormModulation, eps: float) -> torch.Tensor:
        """The LayerNorm that a block begins with, computed now unless the last block left it."""
        normed, self.normed = self.normed, None
        if normed is not None:
            return normed
        result: torch.Tensor = operations.layernorm_modulate(
            self.hidden, modulation.scale, modulation.shift, eps, *self._text_norm(modulation)
        )
        return result

    def add(self, operations: Operations, update: torch.Tensor, gate: torch.Tensor, text_gate: Any) -> None:
        """``hidden`` += gate * update, in place where the gate allows."""
        rows = self.text_rows if text_gate is not None else 0
        self.hidden = operations.gated_residual(self.hidden, update, gate, text_gate, rows, out=self.hidden)

    def add_and_norm(
        self,
        operations: Operations,
        update: torch.Tensor,
        gates: tuple[torch.Tensor, torch.Tensor | None],
        modulation: NormModulation,
        eps: float,
    ) -> torch.Tensor:
        """``hidden`` += gate * update and its modulated LayerNorm, [B, S, D], in one pass over the rows."""
        gate, text_gate = gates
        if operations.gated_residual_layernorm_modulate.gate is None:
            self.add(operations, update, gate, text_gate)
            return self.take_normed(operations, modulation, eps)
        has_text = text_gate is not None or modulation.text_scale is not None
        text_scale, text_shift = modulation.text_scale, modulation.text_shift
        if has_text and text_gate is None:
            text_gate = gate
        if has_text and text_scale is None:
            text_scale, text_shift = modulation.scale, modulation.shift
        self.hidden, normed = operations.gated_residual_layernorm_modulate(
            self.hidden, update, gate, modulation.scale, modulation.shift, eps,
            text_gate, text_scale, text_shift, self.text_rows if has_text else 0,
            out=self.hidden,
        )  # fmt: skip
        result: torch.Tensor = normed
        return result

    def _text_norm(self, modulation: NormModulation) -> tuple[torch.Tensor | None, torch.Tensor | None, int]:
        rows = self.text_rows if modulation.text_scale is not None else 0
        return modulation.text_scale, modulation.text_shift, rows


class JointBlock:
    """One ``LongCatImageTransformerBlock``: text and image have their own matrices and meet in attention."""

    def __init__(self, block: Any, operations: Operations, linears: Linears) -> None:
        attention = block.attn
        self.block = block
        self._operations = operations
        self._qkv = linears.streams(
            [attention.to_q, attention.to_k, attention.to_v],
            [attention.add_q_proj, attention.add_k_proj, attention.add_v_proj],
        )
        self._out = linears.streams([attention.to_out[0]], [attention.to_add_out])
        self._feed_forward = linears.feed_forward(block.ff, block.ff_context)

    def run(
        self,
        stream: Stream,
        modulation: tuple[JointModulation, JointModulation],
        entering: NormModulation,
        following: NormModulation,
        following_eps: float,
    ) -> None:
        """Advance ``stream`` by this block and leave the LayerNorm that the ``following`` one begins with."""
        image, text = modulation
        operations, block = self._operations, self.block
        normed = stream.take_normed(operations, entering, block.norm1.norm.eps)
        update = self._attend(stream, normed)
        mlp_norm = NormModulation(image.scale_mlp, image.shift_mlp, text.scale_mlp, text.shift_mlp)
        gates = (image.gate_msa, text.gate_msa)
        normed = stream.add_and_norm(operations, update, gates, mlp_norm, block.norm2.eps)
        self._feed_forward.into(normed, normed, stream.text_rows)
        gates = (image.gate_mlp, text.gate_mlp)
        stream.normed = stream.add_and_norm(operations, normed, gates, following, following_eps)

    def _attend(self, stream: Stream, normed: torch.Tensor) -> torch.Tensor:
        """Attention over all rows, [B, S, D], written into ``normed``, which nothing reads any more."""
        attention, rows = self.block.attn, stream.text_rows
        qkv = normed.new_empty(*normed.shape[:2], 3 * normed.shape[2])
        self._qkv.into(normed, qkv, rows)
        query, key, value = qkv.unflatten(-1, (3, attention.heads, -1)).unbind(2)
        query, key = self._operations.qk_norm_rope(
            query, key, attention.norm_q.weight, attention.norm_k.weight, stream.cos, stream.sin, attention.norm_q.eps,
            attention.norm_added_q.weight, attention.norm_added_k.weight, rows,
            out_query=query, out_key=key,
        )  # fmt: skip
        attended = attend(attention, query, key, value)
        self._out.into(attended, normed, rows)
        return normed


class SingleBlock:
    """One ``LongCatImageSingleTransformerBlock``: all rows share matrices; attention and MLP run side by side."""

    def __init__(self, block: Any, operations: Operations, linears: Linears) -> None:
        self.block = block
        self._operations = operations
        self._parallel = linears.parallel(block)

    def run(
        self,
        stream: Stream,
        gate: torch.Tensor,
        entering: NormModulation,
        following: NormModulation,
        following_eps: float,
    ) -> None:
        """Advance ``stream`` by this block and leave the LayerNorm that the ``following`` one begins with."""
        operations, block, attention = self._operations, self.block, self.block.attn
        normed = stream.take_normed(operations, entering, block.norm.norm.eps)
        projected = self._parallel.project(normed)
        query, key, value = projected.qkv.unflatten(-1, (3, attention.heads, -1)).unbind(2)
        query, key = operations.qk_norm_rope(
            query, key, attention.norm_q.weight, attention.norm_k.weight, stream.cos, stream.sin, attention.norm_q.eps,
            None, None, 0,
            out_query=query, out_key=key,
        )  # fmt: skip
        attended = attend(attention, query, key, value)
        self._parallel.merge(attended, projected, normed)
        stream.normed = stream.add_and_norm(operations, normed, (gate, None), following, following_eps)
