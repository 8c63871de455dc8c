"""The forms that ERNIE-Image's blocks can take: exact, without a full mask, or with FP8 matrices and without it.

``unmasked_attention``, quality ``extra-high``: diffusers hands every attention a mask, and a prompt that fills its rows
makes it all true; without it the library runs a kernel that need not read one. The mathematics is the same, the order
of the sums is not. Where a shorter prompt shares a batch with a longer one, the mask stays.

Site: unmasked_attention
Formula: attention without a mask where the mask is all true.
Shapes: [B, S, H, head_dim].
Rounds: where the library does.
Replaces: the [B, 1, 1, S] mask of ``ErnieImageTransformer2DModel.forward``, diffusers 0.42.1, when it masks nothing.
Close: rounding moves, a site of quality ``extra-high``.
Declines: prompts of different lengths in one batch, devices other than CUDA.
Bytes: none.
Check first: if the trace shows the same attention kernel as at lossless, compare the lengths of the prompts.
Source: diffusers transformer_ernie_image.py, 0.42.1.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.sites.ernie_image.blocks import Block, Modulation, Operations, Stream
from fuseproof.fastpaths.sites.ernie_image.linears import ExactLinears, Linears
from fuseproof.fastpaths.sites.forms import FormsInForce
from fuseproof.fastpaths.sites.packing import unpack_all

EXACT = "exact"


@dataclass(frozen=True)
class Form:
    """All blocks in one form. ``gate`` is the approximate site's; None: these are the exact blocks."""

    name: str
    blocks: tuple[Block, ...]
    linears: Linears
    gate: Gate | None

    def run(self, stream: Stream, index: int, modulation: Modulation) -> torch.Tensor:
        """Advance ``stream`` by block ``index`` and return its hidden rows [S, B, D]."""
        following = self.blocks[index + 1].block if index + 1 < len(self.blocks) else None
        return self.blocks[index].run(stream, modulation, following)


class Forms(FormsInForce[Form]):
    """The forms of one transformer, and a choice among them for each thread."""

    def __init__(self, transformer: Any, operations: Operations, packing_gate: Gate | None) -> None:
        self._transformer = transformer
        self._operations = operations
        self._linears = ExactLinears(operations.geglu, packing_gate)
        try:
            exact = self._made(EXACT, self._linears, None)
        except BaseException:
            unpack_all(self._linears.packs)
            raise
        super().__init__(exact, self._make_approximate)

    def state(self) -> Hashable:
        """What tells this thread's form, and the memory of its own tensors, from any other."""
        form = self.in_force()
        return form.name, form.linears.state()

    def release(self) -> None:
        """Give every weight memory of its own again, pack by pack. No form can run afterwards."""
        self.drop()
        unpack_all(self._linears.packs)

    def _make_approximate(self, name: str, gate: Gate) -> Form:
        if name != "fp8_linear":
            return self._made(name, self._linears, gate)
        from fuseproof.fastpaths.sites.ernie_image.fp8 import Fp8Linears

        return self._made(name, Fp8Linears(self._operations.geglu), gate)

    def _made(self, name: str, linears: Linears, gate: Gate | None) -> Form:
        blocks = (
            Block(block, self._operations, linears, skips_full_mask=gate is not None)
            for block in self._transformer.layers
        )
        return Form(name, tuple(blocks), linears, gate)
