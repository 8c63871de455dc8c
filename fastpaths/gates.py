"""The gate of one site: first sight runs fused and reference and compares integer bits (design contract 4).

A key that agrees runs fused from then on; one that does not is rejected with a reason, and the reference result is
returned. A gate never decides while it is being traced or captured, or where gradients are recorded: those calls run
the reference and leave the key undecided.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from fuseproof.fastpaths.bits import (
    BitDifference,
    bit_difference,
    bits_equal,
    layout_mismatch,
    value_mismatch,
)
from fuseproof.fastpaths.module_state import call_reason
from fuseproof.fastpaths.nesting import comparing, tell_those_around
from fuseproof.fastpaths.telling_values import untelling_because
from fuseproof.fastpaths.trials import FIRST_SIGHT, Computation, Try, side_by_side
from fuseproof.fastpaths.wording import difference_text, key_text

logger = logging.getLogger(__name__)

CallObserver = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], None]
_grad_is_recorded = torch.is_grad_enabled


class GateMode(StrEnum):
    """``enforce`` compares once and falls back; ``observe`` compares every call and runs fused; ``off`` trusts."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


@dataclass(frozen=True)
class Rejection:
    """Why one key may not run fused; ``difference`` is how far its bits were from eager's, where they were compared.

    ``what`` is the reason without the numbers of that difference.
    """

    key: Hashable
    reason: str
    what: str
    difference: BitDifference | None = None


class Gate:
    """Decides, call by call, whether one site may run its fused form.

    Counters: ``calls_fused`` and ``calls_eager`` count results returned from either form; the reference run of a first
    sight is counted in ``first_sight_ms`` only. ``jit_ms`` is the part of it in which the fused form was called for the
    first time: compilation and launch. ``calls_compared`` counts comparisons of bits, warm-ups included, and
    ``eager_causes`` says why calls were left undecided.

    ``verifies_every_call`` turns the shortcut for verified keys off, as ``observe`` does: every call is a first sight
    (untimed runs only). With the gate ``off`` nothing is verified, and no key counts as such.
    ``certified`` holds the text of keys that a certificate vouches for; they run fused at once. ``call_observer`` is
    told of every call of a gated operation (operation, arguments, outputs) before it runs. ``stand_ins`` maps the name
    of a kernel to the operation, and its own gate, that somebody put in its place. ``compared_in_warmups`` of the
    comparisons came before counting began; ``differed_inside`` names the sites inside this one that handed on other
    bits than eager's, under ``observe``.
    """

    def __init__(
        self,
        site: str,
        mode: GateMode = GateMode.ENFORCE,
        *,
        verifies_every_call: bool = False,
        certified: frozenset[str] = frozenset(),
    ) -> None:
        self.site = site
        self.mode = mode
        self.verifies_every_call = verifies_every_call
        self.certified = certified
        self.calls_fused = 0
        self.calls_eager = 0
        self.calls_verified = 0
        self.calls_compared = 0
        self.compared_in_warmups = 0
        self.first_sights = 0
        self.first_sight_ms = 0.0
        self.jit_ms = 0.0
        self.certified_keys = 0
        self.rejections: dict[Hashable, Rejection] = {}
        self.declined: dict[str, int] = {}
        self.eager_causes: dict[str, int] = {}
        self.observed: BitDifference | None = None
        self.differed_inside: dict[str, None] = {}
        self.call_observer: CallObserver | None = None
        self.stand_ins: dict[str, tuple[Any, Gate]] = {}
        self._verified: set[Hashable] = set()
        self._differed: set[Hashable] = set()
        always_compares = verifies_every_call or mode is GateMode.OBSERVE
        self._shortcuts: set[Hashable] = set() if always_compares or mode is GateMode.OFF else self._verified

    def run(
        self,
        key: Hashable,
        fused: Computation,
        reference: Computation,
        *,
        writes: Sequence[torch.Tensor] = (),
        same_layout: bool = True,
        trial: Try = side_by_side,
    ) -> Any:
        """Return the fused result for a verified ``key``, else decide it now; ``reference`` is always correct.

        ``writes`` are the tensors that ``fused`` overwrites: at first sight they are saved and restored, so that the
        reference sees what the fused form saw. ``reference`` returns fresh tensors; use what is returned. Where the
        fused result lies in a wider buffer, ``same_layout=False`` compares values and not strides. ``trial`` runs both
        forms at first sight. An exception after verification, and every CUDA error, propagates: the inputs may be
        spoilt.
        """
        if key in self._shortcuts and not _grad_is_recorded():
            self.calls_fused += 1
            return fused()
        return self._run_unverified(key, fused, reference, writes, same_layout, trial)

    def decide(self, key: Hashable, candidate: Any, reference: Computation) -> None:
        """Let a ``candidate`` that was computed anyway be the first sight of ``key``; no call is counted.

        For results that are held: the first computation can be compared with a second one at once, in the warm-up,
        instead of at the first reuse. Where nothing can be decided, the first reuse still is the first sight.
        """
        if self.is_decided(key) or self.mode is not GateMode.ENFORCE or undecidable():
            return
        if self.certified and repr(key) in self.certified:
            self.certified_keys += 1
            self._verified.add(key)
            return
        counted = self.calls_fused, self.calls_eager, self.calls_verified
        self._first_sight(key, lambda: candidate, reference, (), True, side_by_side)
        self.calls_fused, self.calls_eager, self.calls_verified = counted

    def run_eager(self, reference: Computation, cause: str) -> Any:
        """Run the reference because nothing can be decided: ``cause`` says why, as a report shows it."""
        self.eager_causes[cause] = self.eager_causes.get(cause, 0) + 1
        self.calls_eager += 1
        return reference()

    def decline(self, reason: str, reference: Computation) -> Any:
        """Run the reference because the fused form cannot take this input; ``reason`` is shown in the report."""
        self.declined[reason] = self.declined.get(reason, 0) + 1
        self.calls_eager += 1
        return reference()

    def forget_eager_call(self) -> None:
        """Uncount an eager result that is not used, because the call goes on to another form behind this gate."""
        self.calls_eager -= 1

    def restart_counting(self) -> None:
        """Forget the calls counted so far, warm-ups for instance; what was decided, and what it cost, stays."""
        self.calls_fused = self.calls_eager = self.calls_verified = 0
        self.compared_in_warmups = self.calls_compared
        self.declined.clear()
        self.eager_causes.clear()

    def verified_keys(self) -> int:
        """How many keys were compared, or are vouched for, and had equal bits whenever they were."""
        return len(self._verified)

    @property
    def is_heard(self) -> bool:
        """Whether calls must reach this gate even where its own kernels cannot run: a stand-in or an observer waits."""
        return bool(self.stand_ins) or self.call_observer is not None

    def verified_key_texts(self) -> frozenset[str]:
        """The verified keys as a certificate holds them."""
        return frozenset(repr(key) for key in self._verified)

    def is_decided(self, key: Hashable) -> bool:
        """Whether ``key`` was verified or rejected, or is trusted."""
        return key in self._verified or key in self._shortcuts or key in self.rejections

    def _run_unverified(
        self,
        key: Hashable,
        fused: Computation,
        reference: Computation,
        writes: Sequence[torch.Tensor],
        same: bool,
        trial: Try,
    ) -> Any:
        if key in self.rejections:
            self.calls_eager += 1
            return reference()
        cause = undecidable_because()
        if cause is not None:
            return self.run_eager(reference, cause)
        if self.mode is GateMode.OFF:
            self._shortcuts.add(key)
        elif self.certified and repr(key) in self.certified:
            self.certified_keys += key not in self._verified
            self._verified.add(key)
        else:
            return self._first_sight(key, fused, reference, writes, same, trial)
        self.calls_fused += 1
        return fused()

    def _first_sight(
        self,
        key: Hashable,
        fused: Computation,
        reference: Computation,
        writes: Sequence[torch.Tensor],
        same: bool,
        trial: Try,
    ) -> Any:
        started = time.perf_counter()
        self.first_sights += 1
        with comparing(self):
            seen = trial(fused, reference, writes, self._when(key))
        self.jit_ms += seen.fused_ms if key not in self._verified else 0.0
        candidate, expected = seen.candidate, seen.expected
        if seen.objection is not None:
            self.first_sight_ms += (time.perf_counter() - started) * 1e3
            return self._reject(key, seen.objection, expected)
        mismatch = layout_mismatch(candidate, expected) if same else value_mismatch(candidate, expected)
        equal = mismatch is None and bits_equal(candidate, expected)
        untelling = None if mismatch or key in self._verified else untelling_because(expected)
        self.first_sight_ms += (time.perf_counter() - started) * 1e3
        if untelling is not None:
            return self.run_eager(lambda: expected, untelling)
        self.calls_compared += 1
        if not equal:
            self._differed.add(key)
            return self._disagree(key, candidate, expected, mismatch, seen.before)
        if key not in self._differed:
            self._verified.add(key)
        self.calls_fused += 1
        self.calls_verified += 1
        return candidate

    def _disagree(
        self, key: Hashable, candidate: Any, expected: Any, mismatch: str | None, before: Sequence[torch.Tensor] = ()
    ) -> Any:
        """What a first sight that found a difference returns; ``before`` is what the written tensors held."""
        when = f" {self._when(key)}" if key in self._verified else ""
        if mismatch is not None:
            return self._reject(key, f"layout differs from eager{when}: {mismatch}", expected)
        difference = bit_difference(candidate, expected)
        if self.mode is GateMode.OBSERVE:
            self._verified.discard(key)
            self.observed = difference.worst(self.observed)
            tell_those_around(self.site)
            self.calls_fused += 1
            return candidate
        return self._reject(key, f"not bit-exact{when}", expected, difference)

    def _when(self, key: Hashable) -> str:
        return "when checked again" if key in self._verified else FIRST_SIGHT

    def _reject(self, key: Hashable, what: str, expected: Any, difference: BitDifference | None = None) -> Any:
        self._verified.discard(key)
        reason = what if difference is None else f"{what}: {difference_text(difference)}"
        self.rejections[key] = Rejection(key, reason, what, difference)
        self.calls_eager += 1
        logger.warning("fast path %s rejected for %s: %s", self.site, key_text(key), reason)
        return expected


def undecidable() -> bool:
    """Whether a first sight may not happen here; see :func:`undecidable_because`."""
    return undecidable_because() is not None


def undecidable_because() -> str | None:
    """What keeps a first sight from happening here, or None: compilation, capture, gradients, or what changes torch."""
    if torch.compiler.is_compiling():
        return "called while torch.compile traces"
    if torch.is_grad_enabled():
        return "gradients are recorded"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "first called while a CUDA graph is captured"
    return call_reason()
