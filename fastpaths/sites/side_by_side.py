"""Several linears of one input as one product of their packed weights, behind a gate: the weights lie side by side."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.sites.packing import PackedLinear, pack

Several = tuple[torch.Tensor, ...]


class SideBySide:
    """Several linears of one input and equal widths: one product where its gate allows, else one each."""

    def __init__(self, name: str, linears: Sequence[nn.Linear], packed: PackedLinear | None, gate: Gate | None) -> None:
        self._name = name
        self._linears = tuple(linears)
        self._packed = packed
        self._gate = gate

    def of(self, x: torch.Tensor, numerics: Hashable) -> Several:
        """Each linear's result, [..., N]; views of one buffer where they are one product."""
        packed = self._packed
        if self._gate is None or packed is None:
            return self._apart(x)

        def together() -> Several:
            return F.linear(x, packed.weight, packed.bias).chunk(len(self._linears), dim=-1)

        key = (self._name, signature(x), packed.weight.shape, packed.weight.dtype, numerics)
        result: Several = self._gate.run(key, together, lambda: self._apart(x), same_layout=False)
        return result

    def _apart(self, x: torch.Tensor) -> Several:
        return tuple(F.linear(x, linear.weight, linear.bias) for linear in self._linears)


def side_by_side(name: str, linears: Sequence[nn.Linear], gate: Gate | None, packs: list[PackedLinear]) -> SideBySide:
    """``linears`` behind ``gate``, their weights packed, which ``packs`` notes; without a gate every one by itself."""
    if gate is None:
        return SideBySide(name, linears, None, None)
    packed = pack(linears)
    packs.append(packed)
    return SideBySide(name, linears, packed, gate)
