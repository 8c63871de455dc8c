"""Whether all frames of a chunk have one row of modulation: those of a step told one timestep, unless an image stands
in one of them.

The loop announces its timesteps, and which of them tell every frame the same is read from the device then, once a
request. That eager's rows of equal timesteps have equal bits is looked at once for each kind of call.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any

import torch

from fuseproof.fastpaths.bits import bits_equal
from fuseproof.fastpaths.gates import Gate, GateMode, undecidable
from fuseproof.fastpaths.hoisting import are_countable, state_of
from fuseproof.fastpaths.operations import signature


class ToldAlike(threading.local):
    """The announced timesteps of one mounted transformer; ``gate`` is that of its blocks."""

    def __init__(self, transformer: Any, gate: Gate) -> None:
        self._transformer = transformer
        self._gate = gate
        self._alike: tuple[tuple[torch.Tensor, Hashable], ...] = ()
        self._have_equal_rows: dict[Hashable, bool] = {}

    def announce(self, timesteps: Sequence[torch.Tensor]) -> None:
        """The very tensors [B, F] that the calls of this request will be given as ``timestep``. Waits once."""
        self.clear()
        known = [one for one in timesteps if one.ndim == 2 and one.dtype == torch.float32]
        if not known or not are_countable(known) or undecidable():
            return
        codes = [one.view(torch.int32) for one in known]
        alike = torch.stack([(one == one[:, :1]).all() for one in codes]).tolist()
        self._alike = tuple((one, state_of((one,), ())) for one, is_one in zip(known, alike, strict=True) if is_one)

    def clear(self) -> None:
        """Forget what this thread's loop announced."""
        self._alike = ()

    def have_one_row(self, timestep: torch.Tensor, dtype: torch.dtype, numerics: Hashable) -> bool:
        """Whether row 0 stands for every frame of ``timestep``; waits at the first sight of a kind of call alone."""
        if self._gate.mode is GateMode.OFF or not any(
            one is timestep and state == state_of((one,), ()) for one, state in self._alike
        ):
            return False
        key = (signature(timestep), dtype, numerics)
        if key not in self._have_equal_rows:
            if undecidable():
                return False
            rows = self._transformer.modulation_rows(timestep, dtype)
            self._have_equal_rows[key] = all(bits_equal(part, part[:, :1].expand_as(part)) for part in rows)
        return self._have_equal_rows[key]
