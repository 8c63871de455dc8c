"""Quality ``extra-high``, site ``linear_gelu``: no GELU pass and no buffer for attention beside MLP.

Counted in bytes at the released size (S 4608, D 3072, MLP 12288) against the exact form, at 4.2 TB/s:

- a joint block's GELU is taken in the epilogue of the MLP's first product: 226 MB less, 54 us a block, 0.54 ms in
  ten;
- a single block's projections become two products, query-key-value and MLP, the second with the epilogue, and its
  output matrix becomes two that add up: attention's columns with the bias, then the MLP's with beta = 1. No copy of
  attention, no GELU pass: 283 MB less. The second product reads the normed rows once more (28 MB), and the partial sum
  is written and read back (57 MB). Left: 198 MB less, 47 us a block, 0.94 ms in twenty.

What bytes do not say is how well two narrower products fill the card: 4608 x 9216 and 4608 x 12288 are 9.8 and 13.1
waves of 128 x 256 tiles on 132 SMs where the packed product is 22.9, so up to one wave, some 37 us, can be lost again
in each single block. A measurement decides that half; the joint blocks' half costs nothing.

Roundings that move: the first GELU operand is not rounded to bf16, and a single block's partial sum is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.matmuls import linear_gelu
from fuseproof.fastpaths.sites.longcat_image.linears import (
    ExactLinears,
    ParallelMatrices,
    Projected,
    StreamMatrices,
    down_projection,
    parallel_projections,
    up_projection,
)
from fuseproof.fastpaths.sites.packing import linear_into, pack, rows_of


class EpilogueLinears(ExactLinears):
    """As :class:`ExactLinears`, but where a GELU follows a product."""

    def feed_forward(self, image: Any, text: Any) -> StreamMatrices:
        """Up with the GELU as its epilogue, down."""
        down = self.streams([down_projection(image)], [down_projection(text)])
        return EpilogueFeedForward(up_projection(image), up_projection(text), down)

    def parallel(self, block: Any) -> ParallelMatrices:
        """Query-key-value and MLP apart; the output matrix in two halves."""
        packed = pack(parallel_projections(block))
        width = block.proj_out.out_features
        weight = block.proj_out.weight.detach()
        assert packed.bias is not None  # soundness asks for one in every linear
        return SplitParallel(
            packed.weight[: 3 * width],
            packed.bias[: 3 * width],
            packed.weight[3 * width :],
            packed.bias[3 * width :],
            weight[:, :width],
            weight[:, width:],
            block.proj_out.bias.detach(),
        )


@dataclass(frozen=True)
class EpilogueFeedForward:
    """See :meth:`EpilogueLinears.feed_forward`."""

    image_up: nn.Linear
    text_up: nn.Linear
    down: StreamMatrices

    def into(self, x: torch.Tensor, out: torch.Tensor, text_rows: int) -> None:
        """Four products."""
        hidden = x.new_empty(*x.shape[:2], self.image_up.out_features)
        gelu_linear_into(self.image_up.weight, self.image_up.bias, x[:, text_rows:], hidden[:, text_rows:])
        gelu_linear_into(self.text_up.weight, self.text_up.bias, x[:, :text_rows], hidden[:, :text_rows])
        self.down.into(hidden, out, text_rows)


@dataclass(frozen=True)
class SplitParallel:
    """See :meth:`EpilogueLinears.parallel`. Weights are views: rows of the packed one, columns of ``proj_out``'s."""

    qkv_weight: torch.Tensor
    qkv_bias: torch.Tensor
    mlp_weight: torch.Tensor
    mlp_bias: torch.Tensor
    attention_out_weight: torch.Tensor
    mlp_out_weight: torch.Tensor
    out_bias: torch.Tensor

    def project(self, normed: torch.Tensor) -> Projected:
        """Two products, each into a buffer of its own; the MLP columns are activated already."""
        qkv = normed.new_empty(*normed.shape[:2], self.qkv_weight.shape[0])
        linear_into(self.qkv_weight, self.qkv_bias, normed, qkv)
        mlp = normed.new_empty(*normed.shape[:2], self.mlp_weight.shape[0])
        gelu_linear_into(self.mlp_weight, self.mlp_bias, normed, mlp)
        return Projected(qkv, mlp)

    def merge(self, attended: torch.Tensor, projected: Projected, out: torch.Tensor) -> None:
        """``out`` [B, S, D], contiguous: attention's part first, then the MLP's added to it."""
        linear_into(self.attention_out_weight, self.out_bias, attended, out)
        rows = out.view(-1, out.shape[2])
        rows.addmm_(projected.mlp.view(-1, projected.mlp.shape[2]), self.mlp_out_weight.t())


def gelu_linear_into(weight: torch.Tensor, bias: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` = gelu_tanh(x @ weight.T + bias), [B, S, N] from [B, S, K], without a copy where both are plain rows."""
    x_rows, out_rows = rows_of(x), rows_of(out)
    if x_rows is None or out_rows is None or not out_rows.is_contiguous():
        out.copy_(linear_gelu.fused(x.reshape(-1, x.shape[2]), weight, bias).view(out.shape))
    else:
        linear_gelu.fused(x_rows, weight, bias, out=out_rows)
