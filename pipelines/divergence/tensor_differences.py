"""How far two tensors, and two arms' latents step by step, are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuseproof.fastpaths.bits import BitDifference, bit_difference
from fuseproof.pipelines.divergence.passes import latents_file


@dataclass(frozen=True)
class TensorDifference:
    """Of one tensor in both arms: its name, its layout, and, where the layouts agree, how its bits differ.

    ``first_index`` is the first element in C order that differs, with both values there (as text, which holds every
    digit); None where no bit differs. ``layouts`` are two texts where they disagree.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    difference: BitDifference | None
    first_index: tuple[int, ...] | None
    first_values: tuple[str, str] | None
    layouts: tuple[str, str] | None = None

    @property
    def is_equal(self) -> bool:
        return self.layouts is None and self.first_index is None

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "equal": self.is_equal,
            "layouts": None if self.layouts is None else list(self.layouts),
            "first_index": None if self.first_index is None else list(self.first_index),
            "first_values": None if self.first_values is None else list(self.first_values),
            "difference": None if self.is_equal or self.difference is None else self.difference.to_json(),
        }


@dataclass(frozen=True)
class Growth:
    """Latents of both arms at one boundary: 0 where the loop begins, n behind step n.

    ``psnr_db`` takes the range of the baseline's own values for its peak; None where no bit differs, and where a value
    is not finite or the baseline is constant.
    """

    boundary: int
    differing_share: float
    largest_ulp: int
    psnr_db: float | None

    def to_json(self) -> dict[str, Any]:
        """Strict JSON values."""
        return {
            "step": self.boundary,
            "identical": self.differing_share == 0,
            "differing_share": self.differing_share,
            "largest_ulp": self.largest_ulp,
            "psnr_db": self.psnr_db,
        }


Tensors = Sequence[tuple[str, torch.Tensor]]


def compare_tensors(baseline: Tensors, candidate: Tensors) -> list[TensorDifference]:
    """Tensor by tensor, in the baseline's order.

    Where one arm has its rows in one tensor [B, S, D] and the other in two, the two are joined, in the order that is
    closer; other sides of different lengths are compared as far as both go.
    """
    if len(baseline) == 2 and len(candidate) == 1:
        baseline = _joined(baseline, candidate[0][1])
    elif len(baseline) == 1 and len(candidate) == 2:
        candidate = _joined(candidate, baseline[0][1])
    return [_compared(name, one, other) for (name, one), (_, other) in zip(baseline, candidate, strict=False)]


def growth_curve(baseline: Path, candidate: Path) -> list[Growth]:
    """The boundaries that both arms left latents of in their folders, in order."""
    curve: list[Growth] = []
    while True:
        files = [latents_file(folder, len(curve)) for folder in (baseline, candidate)]
        if not all(file.exists() for file in files):
            return curve
        one, other = (torch.load(file, weights_only=True) for file in files)
        if one.shape != other.shape or one.dtype != other.dtype:
            return curve
        difference = bit_difference(other, one)
        curve.append(
            Growth(len(curve), difference.differing_share, difference.largest_ulp, _psnr(one, other, difference))
        )


def read_kept(file: Path) -> Mapping[tuple[str, str, int, int], Mapping[str, Tensors]]:
    """The tensors that a pass has written down, by call."""
    kept: Mapping[tuple[str, str, int, int], Mapping[str, Tensors]] = torch.load(file, weights_only=True)
    return kept


def _joined(parts: Tensors, whole: torch.Tensor) -> Tensors:
    """Two tensors of rows as one like ``whole``; as they are where they do not make one."""
    orders = [parts, parts[::-1]]
    rows = sum(tensor.shape[1] for _, tensor in parts if tensor.ndim == 3)
    if whole.ndim != 3 or rows != whole.shape[1] or any(tensor.shape[2:] != whole.shape[2:] for _, tensor in parts):
        return parts
    found = [(" and ".join(name for name, _ in order), torch.cat([part for _, part in order], 1)) for order in orders]
    return [min(found, key=lambda one: bit_difference(one[1], whole).differing_share)]


def _compared(name: str, one: torch.Tensor, other: torch.Tensor) -> TensorDifference:
    shape, dtype = tuple(one.shape), _dtype(one)
    if one.shape != other.shape or one.dtype != other.dtype:
        layouts = (f"{list(one.shape)} {_dtype(one)}", f"{list(other.shape)} {_dtype(other)}")
        return TensorDifference(name, shape, dtype, None, None, None, layouts)
    place = _first_place(one, other)
    if place is None:
        return TensorDifference(name, shape, dtype, None, None, None)
    values = tuple(_text(tensor.flatten()[place]) for tensor in (one, other))
    index = tuple(int(part) for part in torch.unravel_index(torch.tensor(place), one.shape)) if one.ndim else ()
    return TensorDifference(name, shape, dtype, bit_difference(other, one), index, (values[0], values[1]))


def _first_place(one: torch.Tensor, other: torch.Tensor) -> int | None:
    """Where, in C order, the first bit differs."""
    if not one.numel():
        return None
    raw = [tensor.contiguous().flatten().view(torch.uint8).reshape(tensor.numel(), -1) for tensor in (one, other)]
    differs = (raw[0] != raw[1]).any(dim=1)
    return int(differs.to(torch.int8).argmax()) if bool(differs.any()) else None


def _psnr(baseline: torch.Tensor, candidate: torch.Tensor, difference: BitDifference) -> float | None:
    if difference.differing_share == 0:
        return None
    one, other = baseline.double(), candidate.double()
    error, peak = float((one - other).square().mean()), float(one.max() - one.min())
    if not (math.isfinite(error) and math.isfinite(peak)) or error == 0 or peak == 0:
        return None
    return round(10 * math.log10(peak * peak / error), 2)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _text(value: torch.Tensor) -> str:
    return repr(value.item())
