"""Values that a kernel is checked with: what models hold, and what breaks a kernel that is almost right.

Each entry of :data:`VALUES` fills one flat block of memory. bf16 blocks get the values named; fp32 ones (rotary tables,
the size of a step) stay ordinary numbers in -1..1, except under ``random``. Integers, which of two rows a token takes,
are 0 and 1 by turns.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial

import torch

from fuseproof.fastpaths.call_layouts import Fill

FINITE_BF16 = 65_280
"""How many of the 65,536 bf16 bit patterns are finite."""
BAND = 4096
Values = Callable[[torch.Tensor, torch.Generator], None]


def filler(name: str, seed: int, device: torch.device) -> Fill:
    """Fills block after block with the values called ``name``; the same seed gives the same values on one device."""
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{name}|{seed}".encode()))
    values = VALUES[name]

    def fill(block: torch.Tensor) -> None:
        if block.dtype == torch.bfloat16:
            values(block, generator)
        elif block.is_floating_point():
            block.uniform_(-1.0, 1.0, generator=generator)
        else:
            block.zero_()[1::2] = 1

    return fill


def _random(block: torch.Tensor, generator: torch.Generator) -> None:
    """Normal numbers whose size and mean change from band to band, as rows of activations do."""
    bands = -(-block.numel() // BAND)
    size = torch.rand(bands, 1, generator=generator, device=block.device).mul_(8).sub_(4).exp2_()
    mean = torch.randn(bands, 1, generator=generator, device=block.device)
    values = torch.randn(bands, BAND, generator=generator, device=block.device).mul_(size).add_(mean)
    block.copy_(values.flatten()[: block.numel()])


def _every_finite(block: torch.Tensor, generator: torch.Generator) -> None:
    """Every finite bit pattern, in another order in each block and each round."""
    codes = torch.arange(65_536, device=block.device, dtype=torch.int32).to(torch.int16)
    finite = codes[codes.view(torch.bfloat16).isfinite()]
    rounds = [
        finite[torch.randperm(FINITE_BF16, generator=generator, device=block.device)]
        for _ in range(-(-block.numel() // FINITE_BF16))
    ]
    block.view(torch.int16).copy_(torch.cat(rounds)[: block.numel()])


def _subnormals(block: torch.Tensor, generator: torch.Generator) -> None:
    """Subnormals, both zeros and the smallest normals, of either sign."""
    codes = _whole(block, generator, 0, 0x0102)
    signs = _whole(block, generator, 0, 2) * -0x8000
    block.view(torch.int16).copy_(codes + signs)


def _ties(block: torch.Tensor, generator: torch.Generator) -> None:
    """Multiples of 2^-8 up to 2: sums, and products with powers of two, fall halfway between two bf16 values."""
    fine = _whole(block, generator, -256, 257).float() * 2.0**-8
    coarse = _whole(block, generator, -255, 256).float() * 2.0**-7
    block.copy_(torch.where(_whole(block, generator, 0, 2).bool(), fine, coarse))


def _constant(block: torch.Tensor, generator: torch.Generator) -> None:
    """Rows without variance: one value a band."""
    _random(block, generator)
    for start in range(0, block.numel(), BAND):
        block[start : start + BAND] = block[start]


def _not_finite(block: torch.Tensor, generator: torch.Generator, *, share: float) -> None:
    """NaN and infinities of either sign among ordinary numbers."""
    _random(block, generator)
    specials = torch.tensor([float("nan"), float("inf"), float("-inf"), -0.0], device=block.device)
    chosen = specials[_whole(block, generator, 0, 4).long()].to(block.dtype)
    block.copy_(torch.where(torch.rand(block.shape, generator=generator, device=block.device) < share, chosen, block))


def _whole(block: torch.Tensor, generator: torch.Generator, low: int, high: int) -> torch.Tensor:
    return torch.randint(low, high, block.shape, generator=generator, device=block.device, dtype=torch.int32)


VALUES: dict[str, Values] = {
    "random": _random,
    "every finite bf16 value": _every_finite,
    "subnormals": _subnormals,
    "ties": _ties,
    "constant rows": _constant,
    "NaN and infinities": partial(_not_finite, share=0.01),
    "one NaN or infinity in many rows": partial(_not_finite, share=0.00005),
}
POINTWISE_ONLY = frozenset({"every finite bf16 value"})
"""Sums over a row of such values overflow, and say nothing about rounding."""
NOT_FINITE = frozenset({"NaN and infinities", "one NaN or infinity in many rows"})
EDGE_VALUES = tuple(name for name in VALUES if name != "random")
