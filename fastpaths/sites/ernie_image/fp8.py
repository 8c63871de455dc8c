"""Quality ``high``, site ``fp8_linear``: every matrix of the blocks as an FP8 product, rows quantised as they come.

Weights are quantised once for a mount, one scale an output, and kept beside the bf16 ones: 7.9 GB more at the released
size, until the mount ends. Samples lie one after the other here, in whatever order the stream has them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from fuseproof.fastpaths.sites.ernie_image.linears import BlockMatrices
from fuseproof.fastpaths.sites.fp8_matrix import Fp8Matrices, Fp8Matrix, quantized
from fuseproof.fastpaths.sites.side_by_side import Several


class Fp8Linears(Fp8Matrices):
    """Makes the FP8 matrices of blocks, and keeps them in step with the weights they were made from."""

    def __init__(self, geglu: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._geglu = geglu

    def of_block(self, block: Any) -> BlockMatrices:
        """Four products."""
        attention, mlp = block.self_attention, block.mlp
        return Fp8BlockMatrices(
            self.matrix([attention.to_q, attention.to_k, attention.to_v]),
            self.matrix([attention.to_out[0]]),
            self.matrix([mlp.gate_proj, mlp.up_proj]),
            self.matrix([mlp.linear_fc2]),
            self._geglu,
        )


class Fp8BlockMatrices:
    """See :meth:`Fp8Linears.of_block`."""

    def __init__(
        self,
        qkv: Fp8Matrix,
        out: Fp8Matrix,
        gate_up: Fp8Matrix,
        down: Fp8Matrix,
        geglu: Callable[..., torch.Tensor],
    ) -> None:
        self._qkv = qkv
        self._out = out
        self._gate_up = gate_up
        self._down = down
        self._geglu = geglu

    def qkv(self, normed: torch.Tensor, numerics: Hashable) -> Several:
        """See :class:`BlockMatrices`."""
        return _product(self._qkv, normed).chunk(3, dim=-1)

    def out(self, attended: torch.Tensor) -> torch.Tensor:
        """See :class:`BlockMatrices`."""
        return _product(self._out, attended)

    def feed_forward(self, normed: torch.Tensor, numerics: Hashable) -> torch.Tensor:
        """See :class:`BlockMatrices`."""
        gate, up = _product(self._gate_up, normed).chunk(2, dim=-1)
        return _product(self._down, self._geglu(gate, up))


def _product(matrix: Fp8Matrix, x: torch.Tensor) -> torch.Tensor:
    """[B, S, N] from [B, S, K], rows of any stride."""
    return matrix.of(quantized(x)).view(*x.shape[:2], matrix.outputs)
