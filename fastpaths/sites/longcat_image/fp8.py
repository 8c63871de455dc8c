"""Quality ``high``, site ``fp8_linear``: every matrix of the blocks as an FP8 product, rows quantised as they come.

Weights are quantised once for a mount, one scale an output, and kept beside the bf16 ones: 4.5 GB more at the released
size, until the mount ends. A weight that was written since is quantised again, into the same memory, before the next
forward. Rows are quantised where they are read, one scale a row; where a GELU comes before a product, it is taken in
that same pass, so the exact form's GELU pass (and the buffer of attention beside MLP) is not run.

Bytes at the released size (S 4608, D 3072, MLP 12288): a joint block quantises three plain inputs, 43 MB each, and the
MLP's, 170 MB, where the exact GELU moves 226; a single block one of 43 and one of 212 MB, where the exact form moves
283. So quantising costs next to nothing beyond what the exact form spends on GELU. What is saved is arithmetic: 1044
GFLOP in either kind of block, 1.45 ms in bf16 at the 718 TFLOP/s that were measured, on tensor cores that do FP8 at
twice the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.sites.fp8_matrix import Fp8Matrices, Fp8Matrix, quantized
from fuseproof.fastpaths.sites.longcat_image.linears import (
    ParallelMatrices,
    Projected,
    StreamMatrices,
    down_projection,
    parallel_projections,
    up_projection,
)


class Fp8Linears(Fp8Matrices):
    """Makes FP8 matrices, and keeps them in step with the weights they were made from."""

    def streams(self, image: Sequence[nn.Linear], text: Sequence[nn.Linear]) -> StreamMatrices:
        """Each stream's linears as one packed matrix."""
        return Fp8Streams(self.matrix(image), self.matrix(text))

    def feed_forward(self, image: Any, text: Any) -> StreamMatrices:
        """Up; GELU and quantisation in one pass; down."""
        parts = (up_projection(image), up_projection(text), down_projection(image), down_projection(text))
        return Fp8FeedForward(*(self.matrix([part]) for part in parts))

    def parallel(self, block: Any) -> ParallelMatrices:
        """One packed projection; the output matrix reads one quantised row of attention and activated MLP."""
        return Fp8Parallel(self.matrix(parallel_projections(block)), self.matrix([block.proj_out]))


@dataclass(frozen=True)
class Fp8Streams:
    """See :meth:`Fp8Linears.streams`."""

    image: Fp8Matrix
    text: Fp8Matrix

    def into(self, x: torch.Tensor, out: torch.Tensor, text_rows: int) -> None:
        """Each stream's rows are quantised by themselves, so that its scales begin at an aligned address."""
        self.image.into(quantized(x[:, text_rows:]), out[:, text_rows:])
        self.text.into(quantized(x[:, :text_rows]), out[:, :text_rows])


@dataclass(frozen=True)
class Fp8FeedForward:
    """See :meth:`Fp8Linears.feed_forward`."""

    image_up: Fp8Matrix
    text_up: Fp8Matrix
    image_down: Fp8Matrix
    text_down: Fp8Matrix

    def into(self, x: torch.Tensor, out: torch.Tensor, text_rows: int) -> None:
        """Four products, each after its own quantisation."""
        _feed_forward(self.image_up, self.image_down, x[:, text_rows:], out[:, text_rows:])
        _feed_forward(self.text_up, self.text_down, x[:, :text_rows], out[:, :text_rows])


@dataclass(frozen=True)
class Fp8Parallel:
    """See :meth:`Fp8Linears.parallel`."""

    projections: Fp8Matrix
    proj_out: Fp8Matrix

    def project(self, normed: torch.Tensor) -> Projected:
        """One product into a [B, S, 3 D + N] buffer; the MLP columns are not activated yet."""
        packed = self.projections.of(quantized(normed)).view(*normed.shape[:2], self.projections.outputs)
        width = 3 * normed.shape[2]
        return Projected(packed[..., :width], packed[..., width:])

    def merge(self, attended: torch.Tensor, projected: Projected, out: torch.Tensor) -> None:
        """Attention and activated MLP become one quantised row, which the output matrix reads."""
        self.proj_out.into(quantized(attended, projected.mlp), out)


def _feed_forward(up: Fp8Matrix, down: Fp8Matrix, x: torch.Tensor, out: torch.Tensor) -> None:
    hidden = up.of(quantized(x)).view(*x.shape[:2], up.outputs)
    down.into(quantized(None, hidden), out)
