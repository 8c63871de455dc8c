"""The forms that LongCat-Image's blocks can take: exact, or with approximate matrices.

An approximate form shares everything with the exact one but its matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.sites.forms import FormsInForce
from fuseproof.fastpaths.sites.longcat_image.blocks import JointBlock, Operations, SingleBlock, Stream
from fuseproof.fastpaths.sites.longcat_image.epilogue import EpilogueLinears
from fuseproof.fastpaths.sites.longcat_image.fp8 import Fp8Linears
from fuseproof.fastpaths.sites.longcat_image.linears import ExactLinears, Linears
from fuseproof.fastpaths.sites.longcat_image.modulation import Modulations
from fuseproof.fastpaths.sites.packing import unpack_all

EXACT = "exact"


@dataclass(frozen=True)
class Form:
    """All blocks with one kind of matrices. ``gate`` is the approximate site's; None: these are the exact blocks."""

    name: str
    joint: tuple[JointBlock, ...]
    single: tuple[SingleBlock, ...]
    linears: Linears
    gate: Gate | None

    def run(self, stream: Stream, index: int, modulations: Modulations, following_eps: float) -> torch.Tensor:
        """Advance ``stream`` by block ``index`` (joint ones first) and return its hidden rows [B, S, D]."""
        entering, following = modulations.entering(index), modulations.entering(index + 1)
        joint = len(self.joint)
        if index < joint:
            self.joint[index].run(stream, modulations.joint[index], entering, following, following_eps)
        else:
            gate = modulations.single[index - joint][2]
            self.single[index - joint].run(stream, gate, entering, following, following_eps)
        return stream.hidden


class Forms(FormsInForce[Form]):
    """The forms of one transformer, and a choice among them for each thread."""

    def __init__(self, transformer: Any, operations: Operations) -> None:
        self._transformer = transformer
        self._operations = operations
        linears = ExactLinears(operations.gelu_tanh, operations.attention_mlp_gelu)
        self._packs = linears.packs
        try:
            exact = self._made(EXACT, linears, None)
        except BaseException:
            unpack_all(self._packs)
            raise
        super().__init__(exact, lambda name, gate: self._made(name, self._linears_of()[name](), gate))

    def state(self) -> Hashable:
        """What tells this thread's form, and the memory of its own tensors, from any other."""
        form = self.in_force()
        return form.name, form.linears.state()

    def release(self) -> None:
        """Give every weight memory of its own again, pack by pack. No form can run afterwards."""
        self.drop()
        unpack_all(self._packs)

    def _linears_of(self) -> Mapping[str, Callable[[], Linears]]:
        operations = self._operations
        return {
            "linear_gelu": lambda: EpilogueLinears(operations.gelu_tanh, operations.attention_mlp_gelu),
            "fp8_linear": Fp8Linears,
        }

    def _made(self, name: str, linears: Linears, gate: Gate | None) -> Form:
        operations, transformer = self._operations, self._transformer
        return Form(
            name,
            tuple(JointBlock(block, operations, linears) for block in transformer.transformer_blocks),
            tuple(SingleBlock(block, operations, linears) for block in transformer.single_transformer_blocks),
            linears,
            gate,
        )
