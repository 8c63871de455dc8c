"""One site's state in words, as the perf dump and ``Mount.report`` show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fuseproof.fastpaths.approximation import ApproximateGate
from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.wording import ulp_text

UNCHECKED = "gate off: nothing was compared"


def site_report(name: str, gate: Gate | None, declined: str | None, taken_over_by: str | None = None) -> dict[str, Any]:
    """State, reason and counters of one site; ``declined`` is why the family did not install it.

    ``taken_over_by`` names the site that does its work at this quality. A site that is not exact has a ``deviation``.
    """
    if gate is None:
        return _entry("off", "not requested", Gate(name))
    if isinstance(gate, ApproximateGate):
        return _approximate_report(gate, declined, taken_over_by)
    if gate.stand_ins and not (gate.calls_fused or gate.calls_eager):
        return _entry("replaced", f"{', '.join(own.site for _, own in gate.stand_ins.values())} stands in", gate)
    if declined is not None:
        return _entry("declined", declined, gate)
    if gate.rejections:
        reasons = sorted({rejection.reason for rejection in gate.rejections.values()})
        return _entry("rejected", f"{len(gate.rejections)} key(s): {'; '.join(reasons)}", gate)
    if taken_over_by is not None and not (gate.calls_fused or gate.calls_eager):
        return _entry("off", f"{taken_over_by} does its work at this quality", gate)
    if gate.mode is GateMode.OBSERVE and gate.calls_compared:
        return _entry("observed", _also(_observed_text(gate), _declined_text(gate)), gate)
    if gate.calls_fused and gate.mode is GateMode.OFF:
        return _entry("unchecked", _also(UNCHECKED, _declined_text(gate)), gate)
    if gate.calls_fused:
        is_certified = 0 < gate.certified_keys == gate.verified_keys()
        return _entry("certified" if is_certified else "fused", _declined_text(gate), gate)
    if gate.declined:
        return _entry("declined", _declined_text(gate), gate)
    if gate.calls_eager:
        return _entry("eager", _eager_text(gate), gate)
    return _entry("unreached", "no call reached this site", gate)


def _approximate_report(gate: ApproximateGate, declined: str | None, taken_over_by: str | None) -> dict[str, Any]:
    rejected = sorted({rejection.reason for rejection in gate.rejections.values()})
    rejections = f"{len(gate.rejections)} key(s): {'; '.join(rejected)}" if rejected else None
    state: str
    reason: str | None
    if gate.calls_fused:
        text = f"quality {gate.quality}: {gate.deviation or _unmeasured(gate)}"
        state, reason = "approximate", f"{text}; exact for {rejections}" if rejections else text
    elif declined is not None:
        state, reason = "declined", declined
    elif rejections is not None:
        state, reason = "rejected", rejections
    elif taken_over_by is not None:
        state, reason = "off", f"{taken_over_by} does its work at this quality"
    elif gate.calls_eager:
        state, reason = "eager", _eager_text(gate)
    else:
        state, reason = "unreached", "no call reached this site"
    return _entry(state, reason, gate) | {"deviation": gate.deviation.to_json() if gate.deviation else None}


def _unmeasured(gate: ApproximateGate) -> str:
    return "not compared (gate off)" if gate.mode is GateMode.OFF else "no bit differs from the exact form's"


def _observed_text(gate: Gate) -> str:
    """The worst of all compared calls, warm-ups included."""
    calls = f"{gate.calls_compared} call(s) compared"
    if gate.observed is None:
        return f"{calls}, no bit differs"
    worst = gate.observed
    return f"{calls}: up to {worst.differing_share:.4%} of the values differ, by {ulp_text(worst.largest_ulp)}"


def _declined_text(gate: Gate) -> str | None:
    return _counted(gate.declined)


def _eager_text(gate: Gate) -> str | None:
    return _counted(gate.eager_causes)


def _counted(reasons: Mapping[str, int]) -> str | None:
    return "; ".join(f"{reason} ({count} call(s))" for reason, count in sorted(reasons.items())) or None


def _also(first: str, second: str | None) -> str:
    return f"{first}; {second}" if second else first


def _entry(state: str, reason: str | None, gate: Gate) -> dict[str, Any]:
    return {
        "state": state,
        "reason": reason,
        "calls_fused": gate.calls_fused,
        "calls_eager": gate.calls_eager,
        "verified_keys": gate.verified_keys(),
        "first_sight_ms": round(gate.first_sight_ms, 3),
        "jit_ms": round(gate.jit_ms, 3),
    }
