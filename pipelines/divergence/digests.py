"""A tensor's bits as two 64-bit numbers, computed where the tensor lies and without waiting for the device.

A row's bytes are read as 64-bit words (where they are no whole number of words, each element is one), which are
summed with an odd 64-bit weight for each place: one word that differs always changes its row's sum, and several ones
cancel out with a chance of about 2**-63. Rows are mixed and summed. ``ordered`` counts each row's place, ``unordered``
does not: a stream of text rows and image rows has the ``unordered`` digest of its two halves together, which is how a
rewritten block is held against the library's. Not made against an adversary.

Work memory: the words of a chunk, 1 MiB on the CPU and 32 MiB elsewhere, and one copy of a tensor that is not
contiguous.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from fuseproof.pipelines.divergence.calls import ROW_DIMENSIONS

CHUNK_WORDS = 2**17
"""On the CPU: what its caches hold."""
CHUNK_WORDS_ELSEWHERE = 2**22
"""On a GPU: enough that launching the kernels is not what takes the time."""
WORD_BYTES = 8
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@torch.no_grad()
def digest(tensor: torch.Tensor) -> torch.Tensor | None:
    """``[ordered, unordered]`` int64 on the tensor's own device; None for a tensor whose memory cannot be read."""
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_quantized:
        return None
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    width = math.prod(plain.shape[-2:] if plain.ndim > ROW_DIMENSIONS else plain.shape[-1:])
    if not plain.numel():
        return torch.zeros(2, dtype=torch.int64, device=tensor.device)
    rows = plain.detach().reshape(-1, width)
    words = width * rows.element_size() // WORD_BYTES if _is_whole_words(rows) else width
    weights = _mixed(torch.arange(1, words + 1, device=tensor.device)) | 1
    step = max(1, (CHUNK_WORDS if tensor.device.type == "cpu" else CHUNK_WORDS_ELSEWHERE) // words)
    total = torch.zeros(2, dtype=torch.int64, device=tensor.device)
    for start in range(0, len(rows), step):
        sums = (_words(rows[start : start + step]) * weights).sum(dim=1)
        places = torch.arange(start + 1, start + 1 + len(sums), device=tensor.device)
        total += torch.stack([_mixed(sums + _mixed(places)).sum(), _mixed(sums).sum()])
    return total


def values_of(digests: list[torch.Tensor]) -> list[list[int]]:
    """All digests of a region on the host, one wait for the device."""
    by_device: dict[torch.device, list[int]] = {}
    for index, found in enumerate(digests):
        by_device.setdefault(found.device, []).append(index)
    values: list[Any] = [None] * len(digests)
    for indices in by_device.values():
        together = torch.stack([digests[index] for index in indices]).cpu().tolist()
        for index, pair in zip(indices, together, strict=True):
            values[index] = pair
    return values


def _is_whole_words(rows: torch.Tensor) -> bool:
    """Depends on shape and dtype alone, so that both arms read the same words."""
    return rows.shape[1] * rows.element_size() % WORD_BYTES == 0


def _words(rows: torch.Tensor) -> torch.Tensor:
    """Rows as int64, [rows, words]."""
    dense = rows.contiguous()
    if not _is_whole_words(rows):
        return dense.view(_INTEGER_OF_SIZE[dense.element_size()]).to(torch.int64)
    if dense.storage_offset() * dense.element_size() % WORD_BYTES:
        dense = dense.clone()
    return dense.view(torch.int64)


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """splitmix64, in int64 arithmetic that wraps around."""
    mixed = numbers + _signed(_GOLDEN)
    mixed = (mixed ^ _shifted(mixed, 30)) * _signed(_FIRST)
    mixed = (mixed ^ _shifted(mixed, 27)) * _signed(_SECOND)
    return mixed ^ _shifted(mixed, 31)


def _shifted(numbers: torch.Tensor, places: int) -> torch.Tensor:
    """To the right, with zeros coming in."""
    return (numbers >> places) & (2 ** (64 - places) - 1)


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number
