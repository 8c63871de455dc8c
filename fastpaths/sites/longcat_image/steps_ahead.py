"""All steps of a request at once: their embeddings and modulation tables, before the first of them.

A step's table is 41 products of one row with 3.4 GB of weights; as one row of ten, the weights are read every tenth
step. A loop that knows its steps announces them (``Mount.announce_steps``); each is known again by its timestep tensor.
Steps are padded to blocks of ten rows, so that the products, and with them what a gate verified in a warm-up of two
steps, are the same whatever the number of steps. Ten, because on an H200 (torch 2.11) tables of 1 to 10 rows have the
same bits and tables of 16 to 50 have others in 0.05 % of the values; embeddings are taken step by step, since many at
once have other bits too.

Exact where the gates say so: each row is compared with the one-row products at the first sight of its key. Anything
written to a timestep or a weight in between drops all of it, and the call goes the one-row way.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.fastpaths.gates import Gate, undecidable
from fuseproof.fastpaths.hoisting import are_countable, memory_of, state_of
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.sites.longcat_image.modulation import ModulationTable

ROWS = 10


def pays(transformer: Any) -> bool:
    """Whether one row of many has a chance to equal one row alone: on a CPU the library sums them in another order."""
    return bool(next(transformer.parameters()).is_cuda)


@dataclass(frozen=True)
class _Ahead:
    """What was computed for the announced steps, and the state of everything that it came from."""

    timesteps: tuple[torch.Tensor, ...]
    embeddings: torch.Tensor
    tables: torch.Tensor
    state: Hashable
    memory: tuple[torch.UntypedStorage, ...]


class StepsAhead(threading.local):
    """The announced steps of the request that this thread runs."""

    def __init__(self, transformer: Any, table: ModulationTable, time_gate: Gate, table_gate: Gate) -> None:
        self._model = transformer
        self._table = table
        self._gates = time_gate, table_gate
        self._announced: tuple[torch.Tensor, ...] = ()
        self._ahead: _Ahead | None = None

    def announce(self, timesteps: Sequence[torch.Tensor]) -> None:
        """The very tensors [1] that the calls of this request will be given as ``timestep``, one a step."""
        self.clear()
        if all(timestep.shape == (1,) for timestep in timesteps) and are_countable(timesteps):
            self._announced = tuple(timesteps)

    def clear(self) -> None:
        """Forget the request."""
        self._announced, self._ahead = (), None

    def find(self, timestep: torch.Tensor, dtype: torch.dtype, numerics: Hashable) -> Any:
        """(temb [1, D], table [1, total]) of an announced step, each through its gate; None for any other call."""
        index = next((index for index, known in enumerate(self._announced) if known is timestep), None)
        if index is None or undecidable():
            return None
        ahead = self._computed(dtype)
        if ahead is None:
            return None
        temb, row = ahead.embeddings[index : index + 1], ahead.tables[index : index + 1]
        time_gate, table_gate = self._gates
        temb_key = ("steps", ROWS, signature(timestep), signature(temb), numerics)
        row_key = ("steps", ROWS, temb.shape, temb.dtype, temb.device, row.shape, row.stride(), numerics)
        if temb_key in time_gate.rejections or row_key in table_gate.rejections:
            return None
        temb = time_gate.run(temb_key, lambda: temb, lambda: self._embedded(timestep.to(dtype) * 1000, dtype))
        row = table_gate.run(row_key, lambda: row, lambda: self._table.reference(temb.clone()))
        return temb, row

    def _computed(self, dtype: torch.dtype) -> _Ahead | None:
        """All announced steps, computed at the first call; None where they were written to since."""
        sources = (*self._announced, *self._model.time_embed.parameters(), *self._table.weights())
        if not are_countable(sources):
            return None
        if self._ahead is None:
            embeddings = torch.cat([self._embedded(timestep.to(dtype) * 1000, dtype) for timestep in self._announced])
            padded = torch.cat([embeddings, embeddings[-1:].expand(-len(embeddings) % ROWS, -1)])
            tables = torch.cat([self._table.fused(block) for block in padded.split(ROWS)])
            made = embeddings, tables
            if not are_countable(made):
                return None
            self._ahead = _Ahead(self._announced, *made, state_of(sources, made), memory_of(sources, made))
        if self._ahead.state != state_of(sources, (self._ahead.embeddings, self._ahead.tables)):
            self.clear()
            return None
        return self._ahead

    def _embedded(self, timesteps: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The model's own embedding, past whatever holds its results: [n] -> [n, D]."""
        module = self._model.time_embed
        embedded: torch.Tensor = type(module).forward(module, timesteps, dtype)
        return embedded
