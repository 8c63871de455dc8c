"""One site's state in words, as the perf dump and ``Mount.report`` show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fuseproof.fastpaths.approximation import ApproximateGate
from fuseproof.fastpaths.bits import BitDifference
from fuseproof.fastpaths.gates import Gate, GateMode, Rejection
from fuseproof.fastpaths.nesting import inside_text
from fuseproof.fastpaths.wording import difference_text, key_text

REASONS_SHOWN = 4
UNCHECKED = "gate off: nothing was compared"


def site_report(
    name: str,
    gate: Gate | None,
    declined: str | None,
    taken_over_by: str | None = None,
    inside: Sequence[str] = (),
) -> dict[str, Any]:
    """State, reason and counters of one site; ``declined`` is why the family did not install it.

    ``taken_over_by`` names the site that does its work at this quality, ``inside`` those whose other bits may be why
    this one's differ. A site that is not exact has a ``deviation``, one whose bits differed a ``difference`` (the worst
    seen), and one that was rejected its ``rejections``, key by key.
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
        return _entry("rejected", _rejected_text(gate), gate) | _rejected_values(gate)
    if taken_over_by is not None and not (gate.calls_fused or gate.calls_eager):
        return _entry("off", f"{taken_over_by} does its work at this quality", gate)
    if gate.mode is GateMode.OBSERVE and gate.calls_compared:
        text = _also(_observed_text(gate, inside), _declined_text(gate))
        return _entry("observed", text, gate) | _observed_values(gate, inside)
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
    rejections = _rejected_text(gate) if gate.rejections else None
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


def rejections_text(gate: Gate) -> str:
    """Why keys were rejected: how far off the worst of those that differ by bits was, and every other reason."""
    reasons = sorted({rejection.reason for rejection in gate.rejections.values()})
    by_bits = [rejection for rejection in gate.rejections.values() if rejection.difference is not None]
    if len({rejection.reason for rejection in by_bits}) < 2:
        return _listed(reasons)
    others = sorted({rejection.reason for rejection in gate.rejections.values() if rejection.difference is None})
    return _listed([*(_worst_text(what, by_bits) for what in sorted({one.what for one in by_bits})), *others])


def _rejected_text(gate: Gate) -> str:
    return f"{len(gate.rejections)} key(s): {rejections_text(gate)}"


def _worst_text(what: str, rejections: Sequence[Rejection]) -> str:
    worst = _worst(rejection for rejection in rejections if rejection.what == what)
    return f"{what}: up to {difference_text(worst)}" if worst is not None else what


def _worst(rejections: Iterable[Rejection]) -> BitDifference | None:
    worst: BitDifference | None = None
    for rejection in rejections:
        worst = rejection.difference.worst(worst) if rejection.difference is not None else worst
    return worst


def _listed(reasons: Sequence[str]) -> str:
    more = len(reasons) - REASONS_SHOWN
    return "; ".join(reasons[:REASONS_SHOWN]) + (f"; and {more} more reasons" if more > 0 else "")


def _rejected_values(gate: Gate) -> dict[str, Any]:
    worst = _worst(gate.rejections.values())
    rejections = [{"key": key_text(one.key), "reason": one.reason} for one in gate.rejections.values()]
    return {"rejections": rejections, "difference": worst.to_json() if worst is not None else None}


def _observed_text(gate: Gate, inside: Sequence[str]) -> str:
    """The worst of all compared calls, warm-ups included."""
    warmups = f" ({gate.compared_in_warmups} in warm-ups)" if gate.compared_in_warmups else ""
    calls = f"{gate.calls_compared} call(s) compared{warmups}"
    if gate.observed is None:
        return f"{calls}, no bit differs"
    return f"{calls}: up to {_also(difference_text(gate.observed), inside_text(inside))}"


def _observed_values(gate: Gate, inside: Sequence[str]) -> dict[str, Any]:
    difference = gate.observed.to_json() if gate.observed is not None else None
    return {"calls_compared": gate.calls_compared, "difference": difference, "differed_inside": list(inside)}


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
