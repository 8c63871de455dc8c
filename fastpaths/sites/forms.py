"""Which form of a transformer's blocks is in force: the exact one, or an approximate one behind a gate of its own.

The exact form always exists and is what a thread runs unless told otherwise. An approximate form is made when its site
is first put in force and kept until the mount ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import torch

from fuseproof.fastpaths.gates import Gate

FormT = TypeVar("FormT")


class Choice(threading.local):
    """What this thread was told to run; None: what all threads run."""

    form: object | None = None


class FormsInForce(Generic[FormT]):
    """The forms of one transformer's blocks, and a choice among them for each thread.

    ``make`` makes the form of an approximate site from its name and gate.
    """

    def __init__(self, exact: FormT, make: Callable[[str, Gate], FormT]) -> None:
        self.exact = exact
        self._make = make
        self._everywhere = exact
        self._choice = Choice()
        self._approximate: dict[str, FormT] = {}

    def in_force(self) -> FormT:
        """The form that this thread runs."""
        chosen: FormT | None = self._choice.form  # type: ignore[assignment]
        return self._everywhere if chosen is None else chosen

    def choose(self, gates: Mapping[str, Gate] | None, *, in_all_threads: bool) -> None:
        """Put the approximate site of ``gates`` in force, the exact form where there is none.

        For this thread, or for all that were told nothing; None leaves this thread to what all run.
        """
        form = None if gates is None else self._form_of(gates)
        if in_all_threads:
            self._everywhere = self.exact if form is None else form
        else:
            self._choice.form = form

    def drop(self) -> None:
        """Let go of every form. None can run afterwards."""
        self._approximate.clear()
        self._choice = Choice()
        del self.exact, self._everywhere

    def _form_of(self, gates: Mapping[str, Gate]) -> FormT:
        if not gates:
            return self.exact
        ((name, gate),) = gates.items()  # two approximate forms cannot be in force at once
        if name not in self._approximate:
            self._approximate[name] = self._make(name, gate)
        return self._approximate[name]


def run_approximate(
    gate: Gate,
    block_gate: Gate,
    key: Hashable,
    approximate: Callable[[], torch.Tensor],
    exact: Callable[[], torch.Tensor],
    writes: Sequence[torch.Tensor],
) -> torch.Tensor:
    """A block in an approximate form; at first sight, and where that is rejected, ``exact``, behind ``block_gate``."""
    compared = False

    def anew() -> torch.Tensor:
        nonlocal compared
        compared = True
        return exact()

    result: torch.Tensor = gate.run(key, approximate, anew, writes=writes)
    if not compared:  # it is a rewritten block that ran; where the exact one ran too, its own gate counted the call
        block_gate.calls_fused += 1
    return result
