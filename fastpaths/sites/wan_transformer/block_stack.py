"""All rewritten blocks of one Wan transformer, what follows each of them, and the memory of their packed weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.sites.packing import PackedLinear, unpack_all
from fuseproof.fastpaths.sites.side_by_side import side_by_side
from fuseproof.fastpaths.sites.wan_transformer import soundness
from fuseproof.fastpaths.sites.wan_transformer.blocks import (
    SCALE_OUT,
    SHIFT_OUT,
    Block,
    NextNorm,
    Operations,
    Step,
    Stream,
)


class BlockStack:
    """The blocks of ``transformer`` in order; ``packing_gate`` None: their projections stay apart."""

    def __init__(self, transformer: Any, operations: Operations, packing_gate: Gate | None) -> None:
        self._transformer = transformer
        self._operations = operations
        self._packs: list[PackedLinear] = []
        try:
            self._blocks = tuple(self._block(block, packing_gate) for block in transformer.blocks)
        except BaseException:
            unpack_all(self._packs)
            raise

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    def __getitem__(self, index: int) -> Block:
        return self._blocks[index]

    def release(self) -> None:
        """Give every weight memory of its own again. Nothing can run afterwards."""
        self._blocks = ()
        unpack_all(self._packs)

    def following(self, index: int, step: Step) -> NextNorm | None:
        """The norm behind block ``index``; None where somebody listens to the one of the output."""
        if index + 1 < len(self._blocks):
            return self._blocks[index + 1].first_norm(step)
        model = self._transformer
        if "norm_out" not in soundness.plain(model):
            return None
        return NextNorm(model.scale_shift_table, step.temb.unsqueeze(2), SHIFT_OUT, SCALE_OUT, model.norm_out.eps)

    def normed_out(
        self, stream: Stream, step: Step, eager: Callable[[torch.Tensor, Step], torch.Tensor]
    ) -> torch.Tensor:
        """What the last matrix reads: left by the last block, or taken now; ``eager``'s where it is listened to."""
        normed, norm = stream.take_normed(), self.following(len(self._blocks) - 1, step)
        if normed is not None:
            return normed
        if norm is None:
            return eager(stream.hidden, step)
        arguments = stream.hidden, norm.table, norm.temb, step.row_of_token, norm.shift, norm.scale, norm.eps
        result: torch.Tensor = self._operations.table_layernorm_modulate(*arguments)
        return result

    def _block(self, block: Any, packing_gate: Gate | None) -> Block:
        linears = block.attn1.to_q, block.attn1.to_k, block.attn1.to_v
        return Block(block, self._operations, side_by_side("qkv", linears, packing_gate, self._packs))
