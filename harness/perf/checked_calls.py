"""Runs in which every call of a fast path was computed twice, fused and eager: their times measure nothing.

``--gate observe`` and ``--verify-every-step`` do so to find differing bits. A run whose fast paths made no call is an
ordinary one, whatever its gate.
"""

from __future__ import annotations

from collections.abc import Mapping

from fuseproof.harness.perf.dump import PerfDump
from fuseproof.harness.perf.work import Difference

CODE = "EVERY_CALL_CHECKED"
NEXT_STEP = "Look at the bits, not at the times; for times, leave out --gate observe and --verify-every-step."
OBSERVE = "observe"
ENFORCE = "enforce"


def gate_of(dump: PerfDump) -> str | None:
    """``enforce``, ``observe`` or ``off``; None where the dump does not say."""
    gate = dump.fastpaths.get("gate") or dump.config.get("gate")
    return gate if isinstance(gate, str) else None


def checking_flag(dump: PerfDump) -> str | None:
    """The flag by which every call ran twice; None for a run that made no such call."""
    if not _has_calls(dump):
        return None
    if gate_of(dump) == OBSERVE:
        return "--gate observe"
    return "--verify-every-step" if dump.config.get("verify_every_step") is True else None


def one_checked_text(flag: str) -> str:
    """What such a run did, without its name."""
    return f"every call of a fast path was computed twice, fused and eager ({flag}), so its time is no measurement"


def checked_text(flag: str) -> str:
    """What such runs did, as the rest of a sentence whose subject they are."""
    return f"computed every call of a fast path twice, fused and eager ({flag}): their times are no measurement"


def checked_calls(dump: PerfDump) -> Difference | None:
    """What forbids a comparison of a run's times with any other's, whichever of the two it is."""
    flag = checking_flag(dump)
    if flag is None:
        return None
    return Difference("measurement", "calls checked", flag, flag, f"{CODE}: {dump.label}: {one_checked_text(flag)}")


def _has_calls(dump: PerfDump) -> bool:
    sites = dump.fastpaths.get("sites")
    if not isinstance(sites, Mapping):
        return False
    counts = (site.get(key) for site in sites.values() if isinstance(site, Mapping) for key in _COUNTERS)
    return any(isinstance(calls, int) and calls > 0 for calls in counts)


_COUNTERS = ("calls_fused", "calls_eager")
