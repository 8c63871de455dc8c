"""What a CUDA graph may hold of LongLive 2's own forward: the pass over a chunk, once room and tables are made for it.

A graph takes tensors and plain numbers. The clip's memory is neither an input nor a result of the pass, but read and
written in place, at addresses that do not move (:mod:`fuseproof.pipelines.longlive2_caches`); where the chunk lies in
it is told by two numbers, so that a graph belongs to one place. Where fast paths rewrite the blocks, they say
themselves what to capture.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from fuseproof.pipelines.longlive2_caches import LongLive2Caches

METHOD = "forward_prepared"


class ChunkPass:
    """Stands in for the ``forward_prepared`` of ``transformer``, until :meth:`take_off`; ``core`` is what may be
    captured.
    """

    def __init__(self, transformer: Any) -> None:
        self.core: Callable[..., torch.Tensor] = self._run
        self._transformer = transformer
        self._caches: LongLive2Caches | None = None
        setattr(transformer, METHOD, self)

    def __call__(self, hidden_states: torch.Tensor, timestep: torch.Tensor, caches: LongLive2Caches) -> torch.Tensor:
        self._caches = caches
        place = caches.chunk_place
        return self.core(hidden_states, timestep, place.start, place.stop)

    def memory(self) -> Hashable:
        """Where the clip's memory lies, which a graph bakes in."""
        caches = self._caches
        if caches is None:
            return ()
        lists = (caches.keys, caches.values, caches.text_keys, caches.text_values, [caches.cosine, caches.sine])
        return tuple(tensor.data_ptr() for tensors in lists for tensor in tensors)

    def take_off(self) -> None:
        """The class's own method answers again. Doing it twice is harmless."""
        self._caches = None
        if vars(self._transformer).get(METHOD) is self:
            delattr(self._transformer, METHOD)

    def _run(self, hidden_states: torch.Tensor, timestep: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """The pass over the chunk that lies at tokens ``start`` to ``stop``, as the caches know themselves."""
        own = getattr(type(self._transformer), METHOD)
        velocity: torch.Tensor = own(self._transformer, hidden_states, timestep, self._caches)
        return velocity
