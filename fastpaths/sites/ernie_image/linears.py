"""How the matrices of the rewritten blocks are applied: as eager does, side by side where a gate allows, or in FP8.

Site: packed_projections
Formula: query, key and value as one product with a [3 D, D] matrix, gate and up as one with [2 F, D]: the same dot
    products, each output column by itself.
Shapes: [B, S, D] -> [B, S, 3 D], a transposed [S, B, D] with B > 1 included; [S, B, D] -> [S, B, 2 F]; no bias.
Rounds: where eager does, once a product.
Replaces: ``to_q``, ``to_k``, ``to_v`` of ``ErnieImageAttention`` and ``gate_proj``, ``up_proj`` of
    ``ErnieImageFeedForward``, diffusers 0.42.1: five products a block become two. The library call stays the one that
    diffusers' layout leads to: for B > 1 the attention's input is a transposed view, for which torch runs one batched
    product of S rows a sample, and the feed-forward's one product of S B rows.
Exact: where the gate says so, by shape: the library may choose another tile for a wider matrix. Where it differs, the
    separate products run, on the same weights.
Declines: nothing by itself; see ``stream_blocks``.
Bytes: the products' own. Parameters become views of the wider matrices under their own names, so nothing is held twice.
Check first: if the trace shows five products a block before ``to_out`` and ``linear_fc2``, read the site's reason.
Source: diffusers transformer_ernie_image.py, 0.42.1; aten/src/ATen/native/LinearAlgebra.cpp (``matmul``, folding).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.sites.packing import PackedLinear
from fuseproof.fastpaths.sites.side_by_side import Several, SideBySide, side_by_side


class BlockMatrices(Protocol):
    """The matrices of one block. Rows are [B, S, D], a view of [S, B, D] memory where they come from the stream."""

    def qkv(self, normed: torch.Tensor, numerics: Hashable) -> Several:
        """Query, key and value [B, S, D] of normed rows."""

    def out(self, attended: torch.Tensor) -> torch.Tensor:
        """The attention's output matrix, [B, S, D]."""

    def feed_forward(self, normed: torch.Tensor, numerics: Hashable) -> torch.Tensor:
        """The feed-forward of normed rows, [B, S, D]."""


class Linears(Protocol):
    """One way of applying a transformer's matrices; makes them for its blocks."""

    def of_block(self, block: Any) -> BlockMatrices:
        """Those of one ``ErnieImageSharedAdaLNBlock``."""

    def refresh(self) -> None:
        """Take in weights that were written since; called before every forward."""

    def state(self) -> Hashable:
        """Where tensors of its own lie, which a captured graph has baked in."""


class ExactLinears:
    """bf16 or fp32 as eager; ``gate`` is that of ``packed_projections``, None: every product by itself."""

    def __init__(self, geglu: GatedOperation, gate: Gate | None) -> None:
        self._geglu = geglu
        self._gate = gate
        self.packs: list[PackedLinear] = []

    def of_block(self, block: Any) -> BlockMatrices:
        """Two packed products and two of their own."""
        attention, mlp = block.self_attention, block.mlp
        qkv = self._side_by_side("qkv", (attention.to_q, attention.to_k, attention.to_v))
        gate_up = self._side_by_side("gate and up", (mlp.gate_proj, mlp.up_proj))
        return ExactMatrices(qkv, attention.to_out[0], gate_up, mlp.linear_fc2, self._geglu)

    def refresh(self) -> None:
        """Nothing: the packed matrices are the weights."""

    def state(self) -> Hashable:
        """Nothing of its own."""
        return ()

    def _side_by_side(self, name: str, linears: Sequence[nn.Linear]) -> SideBySide:
        return side_by_side(name, linears, self._gate, self.packs)


class ExactMatrices:
    """See :meth:`ExactLinears.of_block`."""

    def __init__(
        self, qkv: SideBySide, out: nn.Linear, gate_up: SideBySide, down: nn.Linear, geglu: Callable[..., torch.Tensor]
    ) -> None:
        self._qkv = qkv
        self._out = out
        self._gate_up = gate_up
        self._down = down
        self._geglu = geglu

    def qkv(self, normed: torch.Tensor, numerics: Hashable) -> Several:
        """See :class:`BlockMatrices`."""
        return self._qkv.of(normed, numerics)

    def out(self, attended: torch.Tensor) -> torch.Tensor:
        """See :class:`BlockMatrices`."""
        return F.linear(attended, self._out.weight)

    def feed_forward(self, normed: torch.Tensor, numerics: Hashable) -> torch.Tensor:
        """As diffusers runs it, on [S, B, D] memory; to the kernel, all rows are of one sample."""
        rows = normed.transpose(0, 1)
        gate, up = (half.flatten(0, 1).unsqueeze(0) for half in self._gate_up.of(rows, numerics))
        activated = self._geglu(gate, up).view(*rows.shape[:2], -1)
        return F.linear(activated, self._down.weight).transpose(0, 1)
