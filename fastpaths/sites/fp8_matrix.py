"""Linears as FP8 matrices, quantised once for a mount and again where a weight was written since."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import nn

from fuseproof.fastpaths.kernels import row_quantize
from fuseproof.fastpaths.matmuls import fp8_linear
from fuseproof.fastpaths.matmuls.fp8_linear import Rows
from fuseproof.fastpaths.sites.packing import pack, rows_of


class Fp8Matrices:
    """The FP8 matrices of one transformer's blocks."""

    def __init__(self) -> None:
        self._matrices: list[Fp8Matrix] = []

    def matrix(self, linears: Sequence[nn.Linear]) -> Fp8Matrix:
        """Linears of one input as one matrix, kept in step from now on."""
        matrix = Fp8Matrix(linears)
        self._matrices.append(matrix)
        return matrix

    def refresh(self) -> None:
        """Quantise again what was written since."""
        for matrix in self._matrices:
            matrix.refresh()

    def state(self) -> Hashable:
        """Where the quantised weights lie."""
        return tuple(matrix.address() for matrix in self._matrices)


class Fp8Matrix:
    """Linears of one input as one quantised matrix [N, K], with their own bf16 biases."""

    def __init__(self, linears: Sequence[nn.Linear]) -> None:
        self._packed = pack(linears)
        self.outputs = self._packed.weight.shape[0]
        self._written = self._writes()
        self._values, self._scale = fp8_linear.quantized_weight(self._packed.weight)

    def refresh(self) -> None:
        """Quantise again, into the same memory, if a weight was written to since."""
        written = self._writes()
        if written == self._written:
            return
        values, scale = fp8_linear.quantized_weight(self._packed.weight)
        self._values.copy_(values)
        self._scale.copy_(scale)
        self._written = written

    def address(self) -> Hashable:
        """Where the quantised weight lies."""
        return self._values.data_ptr(), self._scale.data_ptr()

    def of(self, rows: Rows) -> torch.Tensor:
        """[M, N] bf16 from quantised rows [M, K]."""
        return fp8_linear.fused(*rows, self._values, self._scale, self._packed.bias)

    def into(self, rows: Rows, out: torch.Tensor) -> None:
        """``out`` [B, S, N] from quantised rows [B * S, K], without a copy where ``out`` is plain rows."""
        out_rows = rows_of(out)
        if out_rows is None or not out_rows.is_contiguous():
            out.copy_(self.of(rows).view(out.shape))
        else:
            fp8_linear.fused(*rows, self._values, self._scale, self._packed.bias, out=out_rows)

    def _writes(self) -> tuple[int, ...]:
        """Writes that torch has counted; it counts none for tensors of inference mode."""
        return tuple(-1 if weight.is_inference() else weight._version for weight in self._packed.weights)


def quantized(x: torch.Tensor | None, mlp: torch.Tensor | None = None) -> Rows:
    """The rows of ``x`` [B, S, A], then gelu_tanh of ``mlp`` [B, S, N], as one e4m3 row [A + N] and its scale each."""
    values, scale = row_quantize.fused(x, mlp)
    return Rows(values.view(-1, values.shape[2]), scale.view(-1, 1))
