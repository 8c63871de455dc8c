"""Every AdaLN modulation of one step in one row: scales, shifts and gates of all blocks, as views of one table.

A table lies in the order of ``transformer_blocks`` (norm1, norm1_context: 6 D each), ``single_transformer_blocks``
(norm: 3 D), ``norm_out`` (2 D): [B, 559104] at the released geometry, 1.1 MB in bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

JOINT_PARTS, SINGLE_PARTS, OUT_PARTS = 6, 3, 2


@dataclass(frozen=True)
class JointModulation:
    """One stream of a joint block; each [B, D]."""

    shift_msa: torch.Tensor
    scale_msa: torch.Tensor
    gate_msa: torch.Tensor
    shift_mlp: torch.Tensor
    scale_mlp: torch.Tensor
    gate_mlp: torch.Tensor


@dataclass(frozen=True)
class NormModulation:
    """What one LayerNorm is modulated with: image (or all) rows, and text rows where they have their own; [B, D]."""

    scale: torch.Tensor
    shift: torch.Tensor
    text_scale: torch.Tensor | None = None
    text_shift: torch.Tensor | None = None


@dataclass(frozen=True)
class Modulations:
    """The table cut up: ``joint`` holds (image, text) pairs, ``single`` (shift, scale, gate) triples."""

    joint: tuple[tuple[JointModulation, JointModulation], ...]
    single: tuple[tuple[torch.Tensor, torch.Tensor, torch.Tensor], ...]
    out: NormModulation

    def entering(self, block: int) -> NormModulation:
        """What the first LayerNorm of ``block`` (joint ones first, then single, then ``norm_out``) is given."""
        if block < len(self.joint):
            image, text = self.joint[block]
            return NormModulation(image.scale_msa, image.shift_msa, text.scale_msa, text.shift_msa)
        block -= len(self.joint)
        if block < len(self.single):
            shift, scale, _ = self.single[block]
            return NormModulation(scale, shift)
        return self.out


class ModulationTable:
    """Computes and cuts the table of one transformer."""

    def __init__(self, transformer: Any) -> None:
        self.joint_blocks = len(transformer.transformer_blocks)
        self.single_blocks = len(transformer.single_transformer_blocks)
        self._norms = list(_norms(transformer))

    def weights(self) -> tuple[torch.Tensor, ...]:
        """Every parameter that a table is a function of."""
        return tuple(parameter for norm in self._norms for parameter in (norm.linear.weight, norm.linear.bias))

    def reference(self, temb: torch.Tensor) -> torch.Tensor:
        """The eager chain, norm by norm: ``linear(silu(temb))``, temb [B, D] -> [B, total]."""
        return torch.cat([norm.linear(norm.silu(temb)) for norm in self._norms], dim=-1)

    def fused(self, temb: torch.Tensor) -> torch.Tensor:
        """The same with one SiLU for all, each linear writing into its place."""
        activated = F.silu(temb)
        widths = [norm.linear.out_features for norm in self._norms]
        table = torch.empty(temb.shape[0], sum(widths), dtype=temb.dtype, device=temb.device)
        for norm, place in zip(self._norms, table.split(widths, dim=-1), strict=True):
            if place.is_contiguous():
                torch.addmm(norm.linear.bias, activated, norm.linear.weight.t(), out=place)
            else:
                place.copy_(F.linear(activated, norm.linear.weight, norm.linear.bias))
        return table

    def cut(self, table: torch.Tensor) -> Modulations:
        """Views of ``table`` [B, total], no copy."""
        widths = [norm.linear.out_features for norm in self._norms]
        rows = iter(table.split(widths, dim=-1))
        joint = []
        for _ in range(self.joint_blocks):
            image = JointModulation(*next(rows).chunk(JOINT_PARTS, dim=-1))
            joint.append((image, JointModulation(*next(rows).chunk(JOINT_PARTS, dim=-1))))
        single = []
        for _ in range(self.single_blocks):
            shift, scale, gate = next(rows).chunk(SINGLE_PARTS, dim=-1)
            single.append((shift, scale, gate))
        scale, shift = next(rows).chunk(OUT_PARTS, dim=-1)
        return Modulations(tuple(joint), tuple(single), NormModulation(scale, shift))


def _norms(transformer: Any) -> Iterator[Any]:
    for block in transformer.transformer_blocks:
        yield block.norm1
        yield block.norm1_context
    for block in transformer.single_transformer_blocks:
        yield block.norm
    yield transformer.norm_out
