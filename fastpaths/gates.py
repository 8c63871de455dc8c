"""The gate of one site: first sight runs fused and reference and compares integer bits (design contract 4).

A key that agrees runs fused from then on; one that does not is rejected with a reason, and the reference result is
returned. A gate never decides while it is being traced or captured, or where gradients are recorded: those calls run
the reference and leave the key undecided.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from fuseproof.fastpaths.bits import BitDifference, bit_difference, bits_equal, layout_mismatch

logger = logging.getLogger(__name__)

Computation = Callable[[], Any]


class GateMode(StrEnum):
    """``enforce`` verifies and falls back; ``observe`` verifies, runs fused and measures; ``off`` trusts."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


@dataclass(frozen=True)
class Rejection:
    """Why one key may not run fused."""

    key: Hashable
    reason: str


class Gate:
    """Decides, call by call, whether one site may run its fused form.

    Counters: ``calls_fused`` and ``calls_eager`` count results returned from either form; the reference run of a first
    sight is counted in ``first_sight_ms`` only.
    """

    def __init__(self, site: str, mode: GateMode = GateMode.ENFORCE) -> None:
        self.site = site
        self.mode = mode
        self.calls_fused = 0
        self.calls_eager = 0
        self.first_sight_ms = 0.0
        self.jit_ms = 0.0
        self.rejections: dict[Hashable, Rejection] = {}
        self.observed: BitDifference | None = None
        self._verified: set[Hashable] = set()

    def run(self, key: Hashable, fused: Computation, reference: Computation) -> Any:
        """Return the fused result for a verified ``key``, else decide it now; ``reference`` is always correct.

        ``fused`` must not write into its inputs before the key is verified. An exception after verification, and every
        CUDA error, propagates: the inputs may be spoilt.
        """
        if key in self._verified:
            self.calls_fused += 1
            return fused()
        if key in self.rejections or undecidable():
            return self.run_eager(reference)
        if self.mode is GateMode.OFF:
            self._verified.add(key)
            self.calls_fused += 1
            return fused()
        return self._first_sight(key, fused, reference)

    def run_eager(self, reference: Computation) -> Any:
        """Run the reference because there is nothing to decide: a first computation, or an unsupported input."""
        self.calls_eager += 1
        return reference()

    def restart_counting(self) -> None:
        """Forget the calls counted so far, warm-ups for instance; what was decided, and what it cost, stays."""
        self.calls_fused = self.calls_eager = 0

    def verified_keys(self) -> int:
        """How many keys run fused."""
        return len(self._verified)

    def _first_sight(self, key: Hashable, fused: Computation, reference: Computation) -> Any:
        started = time.perf_counter()
        try:
            candidate = fused()
        except torch.AcceleratorError:
            raise
        except Exception as error:  # noqa: BLE001 - any failure of an unproven kernel must fall back, and says so
            return self._reject(key, f"{type(error).__name__} at first sight: {error}", reference())
        expected = reference()
        mismatch = layout_mismatch(candidate, expected)
        equal = mismatch is None and bits_equal(candidate, expected)
        self.first_sight_ms += (time.perf_counter() - started) * 1e3
        if equal:
            self._verified.add(key)
            self.calls_fused += 1
            return candidate
        return self._disagree(key, candidate, expected, mismatch)

    def _disagree(self, key: Hashable, candidate: Any, expected: Any, mismatch: str | None) -> Any:
        if mismatch is not None:
            return self._reject(key, f"layout differs from eager: {mismatch}", expected)
        difference = bit_difference(candidate, expected)
        reason = (
            f"not bit-exact: {difference.differing_share:.4%} of the values differ, "
            f"by at most {difference.largest_ulp} ulp"
        )
        if self.mode is GateMode.OBSERVE:
            self._observe(difference)
            self.calls_fused += 1
            return candidate
        return self._reject(key, reason, expected)

    def _observe(self, difference: BitDifference) -> None:
        """Keep the worst difference seen; the key stays undecided, so every call is measured."""
        known = self.observed or BitDifference(0.0, 0)
        self.observed = BitDifference(
            max(known.differing_share, difference.differing_share), max(known.largest_ulp, difference.largest_ulp)
        )

    def _reject(self, key: Hashable, reason: str, expected: Any) -> Any:
        self.rejections[key] = Rejection(key, reason)
        self.calls_eager += 1
        logger.warning("fast path %s rejected for %s: %s", self.site, key, reason)
        return expected


def undecidable() -> bool:
    """Whether a first sight may not happen here: under compilation, stream capture, or with gradients recorded."""
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return True
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
