"""How the matrices of the rewritten blocks are applied: the exact way, and what any other way must offer.

A block asks for its matrices once, when it is made, and from then on only calls them; which way they go is decided by
the :class:`Linears` it was handed. All results are written where the block wants them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.sites.packing import PackedLinear, linear_into, pack


class StreamMatrices(Protocol):
    """One computation for the image rows and one for the text rows of a joint block."""

    def into(self, x: torch.Tensor, out: torch.Tensor, text_rows: int) -> None:
        """``out`` [B, S, N] from x [B, S, K], whose first ``text_rows`` rows are text; ``out`` may be x if N = K."""


@dataclass(frozen=True)
class Projected:
    """What leaves a single block's projections: ``qkv`` [B, S, 3 D] and ``mlp`` [B, S, N].

    ``beside`` [B, S, D + N], where there is one, is a buffer that ends with ``mlp``: attention fits before it.
    """

    qkv: torch.Tensor
    mlp: torch.Tensor
    beside: torch.Tensor | None = None


class ParallelMatrices(Protocol):
    """The matrices of a single block, which runs attention and MLP side by side."""

    def project(self, normed: torch.Tensor) -> Projected:
        """Query, key, value and MLP columns of normed [B, S, D]."""

    def merge(self, attended: torch.Tensor, projected: Projected, out: torch.Tensor) -> None:
        """``out`` [B, S, D]: the output matrix over attention [B, S, D] and the activated MLP columns."""


class Linears(Protocol):
    """One way of applying a transformer's matrices; makes them for its blocks."""

    def streams(self, image: Sequence[nn.Linear], text: Sequence[nn.Linear]) -> StreamMatrices:
        """Linears of one input side by side, for each stream."""

    def feed_forward(self, image: Any, text: Any) -> StreamMatrices:
        """diffusers' ``FeedForward`` of each stream."""

    def parallel(self, block: Any) -> ParallelMatrices:
        """Those of one ``LongCatImageSingleTransformerBlock``."""

    def refresh(self) -> None:
        """Take in weights that were written since; called before every forward."""

    def state(self) -> Hashable:
        """Where tensors of its own lie, which a captured graph has baked in."""


class ExactLinears:
    """bf16 or fp32 as eager: addmm with the bias as its epilogue, GELU as an operation of its own."""

    def __init__(self, gelu_tanh: GatedOperation, attention_mlp_gelu: GatedOperation) -> None:
        self._gelu_tanh = gelu_tanh
        self._attention_mlp_gelu = attention_mlp_gelu
        self.packs: list[PackedLinear] = []

    def streams(self, image: Sequence[nn.Linear], text: Sequence[nn.Linear]) -> StreamMatrices:
        """Each stream's linears as one packed matrix."""
        return ExactStreams(self._pack(image), self._pack(text))

    def feed_forward(self, image: Any, text: Any) -> StreamMatrices:
        """Up, GELU in place over all rows, down."""
        up = self.streams([up_projection(image)], [up_projection(text)])
        down = self.streams([down_projection(image)], [down_projection(text)])
        return ExactFeedForward(up, down, up_projection(image).out_features, self._gelu_tanh)

    def parallel(self, block: Any) -> ParallelMatrices:
        """One packed projection; the output matrix reads attention and MLP from one buffer."""
        projections, proj_out = self._pack(parallel_projections(block)), self._pack([block.proj_out])
        return ExactParallel(projections, proj_out, self._attention_mlp_gelu)

    def refresh(self) -> None:
        """Nothing: the packed matrices are the weights."""

    def state(self) -> Hashable:
        """Nothing of its own."""
        return ()

    def _pack(self, linears: Sequence[nn.Linear]) -> PackedLinear:
        packed = pack(linears)
        self.packs.append(packed)
        return packed


@dataclass(frozen=True)
class ExactStreams:
    """See :meth:`ExactLinears.streams`."""

    image: PackedLinear
    text: PackedLinear

    def into(self, x: torch.Tensor, out: torch.Tensor, text_rows: int) -> None:
        """Two products, each into its own rows."""
        linear_into(self.image.weight, self.image.bias, x[:, text_rows:], out[:, text_rows:])
        linear_into(self.text.weight, self.text.bias, x[:, :text_rows], out[:, :text_rows])


@dataclass(frozen=True)
class ExactFeedForward:
    """See :meth:`ExactLinears.feed_forward`."""

    up: StreamMatrices
    down: StreamMatrices
    hidden_width: int
    gelu_tanh: GatedOperation

    def into(self, x: torch.Tensor, out: torch.Tensor, text_rows: int) -> None:
        """Four products and one GELU."""
        hidden = x.new_empty(*x.shape[:2], self.hidden_width)
        self.up.into(x, hidden, text_rows)
        hidden = self.gelu_tanh(hidden, out=hidden)
        self.down.into(hidden, out, text_rows)


@dataclass(frozen=True)
class ExactParallel:
    """See :meth:`ExactLinears.parallel`."""

    projections: PackedLinear
    proj_out: PackedLinear
    attention_mlp_gelu: GatedOperation

    def project(self, normed: torch.Tensor) -> Projected:
        """One product into a [B, S, 3 D + N] buffer."""
        width = normed.shape[2]
        packed = normed.new_empty(*normed.shape[:2], self.projections.weight.shape[0])
        linear_into(self.projections.weight, self.projections.bias, normed, packed)
        return Projected(packed[..., : 3 * width], packed[..., 3 * width :], packed[..., 2 * width :])

    def merge(self, attended: torch.Tensor, projected: Projected, out: torch.Tensor) -> None:
        """Attention is laid over the value columns, which nothing reads any more, beside the activated MLP columns."""
        both = self.attention_mlp_gelu(attended, projected.mlp, out=projected.beside)
        linear_into(self.proj_out.weight, self.proj_out.bias, both, out)


def up_projection(feed_forward: Any) -> nn.Linear:
    """The first linear of diffusers' ``FeedForward``, whose GELU follows it."""
    linear: nn.Linear = feed_forward.net[0].proj
    return linear


def down_projection(feed_forward: Any) -> nn.Linear:
    """The second linear of diffusers' ``FeedForward``."""
    linear: nn.Linear = feed_forward.net[2]
    return linear


def parallel_projections(block: Any) -> list[nn.Linear]:
    """All linears that read a single block's normed input: query, key, value, MLP."""
    return [block.attn.to_q, block.attn.to_k, block.attn.to_v, block.proj_mlp]


def block_linears(transformer: Any) -> Iterator[nn.Linear]:
    """Every linear that a :class:`Linears` applies: those of the blocks, without their modulation."""
    for block in transformer.transformer_blocks:
        attention = block.attn
        yield from (attention.to_q, attention.to_k, attention.to_v, attention.to_out[0])
        yield from (attention.add_q_proj, attention.add_k_proj, attention.add_v_proj, attention.to_add_out)
        for feed_forward in (block.ff, block.ff_context):
            yield from (up_projection(feed_forward), down_projection(feed_forward))
    for block in transformer.single_transformer_blocks:
        yield from (*parallel_projections(block), block.proj_out)
