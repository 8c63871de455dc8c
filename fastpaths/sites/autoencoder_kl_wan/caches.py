"""The entries of ``feat_cache`` that one block reads and writes, kept apart until it is known whose result counts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.sites.autoencoder_kl_wan.eager_layouts import as_eager, eager_stride, note

FIRST = "Rep"
"""What diffusers notes of a sampler that has seen one chunk, and no frame worth keeping."""
Layouts = tuple[tuple[int, ...], list[Any]]
"""The strides of eager's result, and of each new entry that is a tensor."""
Fused = Callable[[list[Any]], torch.Tensor]
Eager = Callable[[list[Any] | None, list[int]], torch.Tensor]


class Caches:
    """A view of ``feat_cache`` from ``feat_idx[0]`` on; both may be diffusers' defaults, without a cache."""

    def __init__(self, feat_cache: list[Any] | None, feat_idx: list[int]) -> None:
        self._list = feat_cache
        self._index = feat_idx
        self._start = feat_idx[0] if feat_cache is not None else 0
        self._outcomes: list[tuple[torch.Tensor, list[Any]]] = []
        self.seen: Layouts | None = None

    def __getitem__(self, place: int) -> Any:
        """The entry ``place`` after the first; None without a cache."""
        return None if self._list is None else self._list[self._start + place]

    def key(self, count: int) -> Hashable:
        """What of the next ``count`` entries can change the arithmetic."""
        return self._list is not None, *((signature(one), _stride(one)) for one in map(self.__getitem__, range(count)))

    def fused(self, run: Fused) -> Callable[[], torch.Tensor]:
        """``run``, which appends the new entries to the list it is given, one for each that it stands for."""

        def attempt() -> torch.Tensor:
            entries: list[Any] = []
            result = run(entries)
            self._outcomes.append((result, entries))
            return result

        return attempt

    def eager(self, run: Eager, count: int) -> Callable[[], torch.Tensor]:
        """``run`` on copies of list and index, and ``count`` entries as eager would have them; its layouts are seen."""

        def attempt() -> torch.Tensor:
            entries, index = None if self._list is None else list(self._list), [self._start]
            if entries is not None:
                entries[self._start : self._start + count] = map(as_eager, entries[self._start : self._start + count])
            result = run(entries, index)
            new = [] if entries is None else entries[self._start : index[0]]
            self.seen = result.stride(), list(map(_stride, new))
            self._outcomes.append((result, new))
            return result

        return attempt

    def settle(self, result: torch.Tensor, layouts: Layouts) -> torch.Tensor:
        """Keep the entries of the attempt that gave ``result``, note eager's layouts, and go on behind them."""
        entries = next(entries for outcome, entries in self._outcomes if outcome is result)
        self._outcomes.clear()
        note(result, layouts[0])
        for entry, stride in zip(entries, layouts[1], strict=False):
            note(entry, stride)
        if self._list is not None:
            self._list[self._start : self._start + len(entries)] = entries
            self._index[0] = self._start + len(entries)
        return result


def _stride(entry: Any) -> Hashable:
    return eager_stride(entry) if isinstance(entry, torch.Tensor) else None
