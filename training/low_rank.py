"""A low-rank difference of a transformer's matrices: two thin factors each, which are all that a Turbo adds.

``LowRank`` stands as a parametrization on the weight of every linear layer, so that the model computes with
``W + up @ down``. Written, the factors are bf16, and :func:`fuseproof.pipelines.packaged_parts.merge_low_rank` adds
them to the packaged weights.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.utils import parametrize

from fuseproof.pipelines.packaged_parts import DOWN, UP

RANK = 12
"""1.2 MB in bf16 for the packaged geometry; a higher rank would not fit."""


class LowRank(torch.nn.Module):
    """Adds ``up @ down`` to a weight [out, in]; ``up`` [out, rank] begins at zero, ``down`` [rank, in] at random."""

    def __init__(self, weight: torch.Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rows, columns = weight.shape
        down = torch.randn(rank, columns, generator=generator) / columns**0.5
        self.up = torch.nn.Parameter(torch.zeros(rows, rank, device=weight.device))
        self.down = torch.nn.Parameter(down.to(weight.device))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight with the difference."""
        return weight + self.up @ self.down


class Factors(torch.nn.Module):
    """The factors of every linear layer of ``model``, by the name of its weight; they are mounted on it."""

    def __init__(self, model: torch.nn.Module, rank: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        model.requires_grad_(False)
        self.names = [name for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)]
        for name in self.names:
            layer = model.get_submodule(name)
            assert isinstance(layer.weight, torch.Tensor)
            factors = LowRank(layer.weight, rank, generator)
            parametrize.register_parametrization(layer, "weight", factors)
            self.add_module(name.replace(".", "/"), factors)

    def tensors(self) -> dict[str, torch.Tensor]:
        """As they are stored: ``<weight>.up`` and ``<weight>.down`` in bf16, on the CPU."""
        stored = {}
        for name in self.names:
            factors = self.get_submodule(name.replace(".", "/"))
            assert isinstance(factors, LowRank)
            for suffix, factor in ((UP, factors.up), (DOWN, factors.down)):
                stored[f"{name}.weight{suffix}"] = factor.detach().to(torch.bfloat16).cpu().contiguous()
        return stored


def write_factors(path: Path, tensors: dict[str, torch.Tensor]) -> int:
    """Write what :meth:`Factors.tensors` gives; return the file's bytes."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path.stat().st_size
