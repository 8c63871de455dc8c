"""ERNIE-Image's blocks on one stream buffer [S, B, D], image rows first, as diffusers has them: no copy between.

Same matrices, same order of operations and roundings as ``ErnieImageSharedAdaLNBlock`` (diffusers 0.42.1); what differs
is where results are written, and that modulation vectors [B, D] are broadcast, not expanded to [S, B, D]:

- every kernel reads the stream as [B, S, D] through its strides, so nothing is transposed;
- normalisation and rotation happen in place, on query and key as they leave their projection;
- a gated residual is added to the stream in place, and the RMSNorm that follows is taken in the same pass, across
  blocks too: all share one modulation;
- cos and sin are taken once for a request, not in every layer.

Site: stream_blocks
Formula: the blocks' own; products keep the rows, their order and the layout that diffusers gives the library.
Shapes: the stream [S, B, D], any S and B; bf16 or fp32 throughout.
Rounds: where eager does; nothing is carried in another precision between two operations.
Replaces: ``ErnieImageSharedAdaLNBlock.forward`` of diffusers 0.42.1 and, in the transformer's, the expansion of the six
    modulations to [S, B, D].
Exact: every bit where each piece is; each block's gate compares it whole with the eager block. The attention mask is
    handed on as diffusers makes it, all true or not: without it the library runs another kernel.
Declines: adapters, quantised, hooked, offloaded or replaced modules (by name), fused projections, other attention
    processors, mixed dtypes, autocast, gradients. Weights that have moved since mounting decline at the next call.
Bytes: the products' own, and those of the kernels between: nine launches a block, beside those that the library makes
    around a masked attention, of 3204 a forward that were counted in eager on an H200 (torch 2.11).
Check first: if the trace shows ``reduce_kernel`` with ``MeanOps`` or ``CatArrayBatchedCopy`` in a block, read the
    site's reason in the report: one hooked or replaced module makes all blocks decline.
Source: diffusers transformer_ernie_image.py, 0.42.1.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.sites.attention import attend
from fuseproof.fastpaths.sites.ernie_image.linears import Linears

ATTENTION_READS_VIEWS = True
"""Query, key and value go to the attention as views of their packed projection; False: as tensors of their own, should
a library choose another kernel for views."""


@dataclass(frozen=True)
class Operations:
    """The pointwise work of a forward, each behind its gate (or its reference alone, where the site is off)."""

    rmsnorm_modulate: GatedOperation
    gated_residual: GatedOperation
    gated_residual_rmsnorm_modulate: GatedOperation
    qk_norm_rotate_half: GatedOperation
    geglu: GatedOperation
    layernorm_modulate: GatedOperation


@dataclass(frozen=True)
class Modulation:
    """What all blocks of one step share; each [B, D], parts of one row."""

    shift_msa: torch.Tensor
    scale_msa: torch.Tensor
    gate_msa: torch.Tensor
    shift_mlp: torch.Tensor
    scale_mlp: torch.Tensor
    gate_mlp: torch.Tensor


@dataclass
class Stream:
    """All rows of all samples between two blocks.

    ``hidden`` [S, B, D]; ``cos`` and ``sin`` [B, S, head_dim]; ``mask`` [B, 1, 1, S], ``is_mask_full`` says that it is
    known to be all true; ``normed`` [B, S, D], in memory like the stream's, is what the next block's projections read,
    where the last block already took it. ``spare`` is such memory that nothing reads any more.
    """

    hidden: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor
    is_mask_full: bool
    numerics: Hashable
    normed: torch.Tensor | None = None
    spare: torch.Tensor | None = None

    def take_normed(self, operations: Operations, norm: Any, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """The modulated norm that a block begins with, [B, S, D], computed now unless the last block left it."""
        normed, self.normed = self.normed, None
        if normed is not None:
            return normed
        return samples_of(
            operations.rmsnorm_modulate(
                self.hidden.transpose(0, 1), norm.weight, scale, shift, norm.eps, out=self._take_spare()
            )
        )

    def add(self, operations: Operations, update: torch.Tensor, gate: torch.Tensor) -> None:
        """``hidden`` += gate * update [B, S, D], in place where the gate allows."""
        rows = self.hidden.transpose(0, 1)
        added = operations.gated_residual(rows, update, gate, None, 0, out=rows)
        self.hidden = stream_of(added)

    def add_and_norm(
        self,
        operations: Operations,
        update: torch.Tensor,
        gate: torch.Tensor,
        norm: Any,
        scale: torch.Tensor,
        shift: torch.Tensor,
    ) -> torch.Tensor:
        """``hidden`` += gate * update and its modulated norm, [B, S, D], in one pass over the rows."""
        if operations.gated_residual_rmsnorm_modulate.gate is None:
            self.add(operations, update, gate)
            return self.take_normed(operations, norm, scale, shift)
        rows = self.hidden.transpose(0, 1)
        added, normed = operations.gated_residual_rmsnorm_modulate(
            rows, update, gate, norm.weight, scale, shift, norm.eps, out=rows, modulated=self._take_spare()
        )
        self.hidden = stream_of(added)
        return samples_of(normed)

    def _take_spare(self) -> torch.Tensor:
        spare, self.spare = self.spare, None
        return torch.empty_like(self.hidden).transpose(0, 1) if spare is None else spare


class Block:
    """One ``ErnieImageSharedAdaLNBlock``. ``skips_full_mask``: a mask that is all true is not handed on (not exact)."""

    def __init__(self, block: Any, operations: Operations, linears: Linears, *, skips_full_mask: bool) -> None:
        self.block = block
        self._operations = operations
        self._matrices = linears.of_block(block)
        self._skips_full_mask = skips_full_mask

    def run(self, stream: Stream, modulation: Modulation, following: Any) -> torch.Tensor:
        """Advance ``stream`` by this block and leave the norm that the ``following`` one (None: none) begins with."""
        operations, block, m = self._operations, self.block, modulation
        normed = stream.take_normed(operations, block.adaLN_sa_ln, m.scale_msa, m.shift_msa)
        update = self._attended(stream, normed)
        stream.spare = normed
        normed = stream.add_and_norm(operations, update, m.gate_msa, block.adaLN_mlp_ln, m.scale_mlp, m.shift_mlp)
        update = self._matrices.feed_forward(normed, stream.numerics)
        stream.spare = normed
        if following is None:
            stream.add(operations, update, m.gate_mlp)
        else:
            norm = following.adaLN_sa_ln
            stream.normed = stream.add_and_norm(operations, update, m.gate_mlp, norm, m.scale_msa, m.shift_msa)
        return stream.hidden

    def _attended(self, stream: Stream, normed: torch.Tensor) -> torch.Tensor:
        """Attention over all rows and its output matrix, [B, S, D]."""
        attention = self.block.self_attention
        query, key, value = (
            part.unflatten(-1, (attention.heads, -1)) for part in self._matrices.qkv(normed, stream.numerics)
        )
        outputs = {"out_query": query, "out_key": key} if ATTENTION_READS_VIEWS else {}
        query, key = self._operations.qk_norm_rotate_half(
            query, key, attention.norm_q.weight, attention.norm_k.weight, stream.cos, stream.sin, attention.norm_q.eps,
            **outputs,
        )  # fmt: skip
        value = value if ATTENTION_READS_VIEWS else value.contiguous()
        mask = None if self._skips_full_mask and stream.is_mask_full else stream.mask
        return self._matrices.out(attend(attention, query, key, value, mask))


def samples_of(rows: torch.Tensor) -> torch.Tensor:
    """[B, S, D] in memory like the stream's, [S, B, D]: as it is, or copied where a reference laid it out otherwise."""
    return stream_of(rows).transpose(0, 1)


def stream_of(rows: torch.Tensor) -> torch.Tensor:
    """As :func:`samples_of`, [S, B, D], with the strides of a fresh tensor even where B is 1: matmul reads them."""
    memory = rows.transpose(0, 1)
    return memory.reshape(-1).view(memory.shape) if memory.is_contiguous() else memory.contiguous()
