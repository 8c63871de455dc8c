"""What ``fuseproof diverge`` found, in words and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fuseproof.cli.diverge_search import BASELINE, CANDIDATE, ROLES, Place, Result
from fuseproof.pipelines.divergence.calls import Call
from fuseproof.pipelines.divergence.comparing import Finding, Pair

if TYPE_CHECKING:
    from fuseproof.pipelines.divergence.tensor_differences import Growth, TensorDifference

SCHEMA = "fuseproof.diverge/1"
NAMES_SHOWN = 3
STEPS_SHOWN = 6
SETTINGS_SHOWN = 6


def lines_of(result: Result) -> Iterator[str]:
    """The text for a person: what the arms differ in, then the step, then the module."""
    yield _arms_text(result)
    yield _headline(result)
    if result.kind == "graphs":
        yield f"The {result.arm}'s CUDA graphs give other bits than its own eager run: look there."
    elif result.noise:
        yield (
            f"first latents: drawn by other flags ({'; '.join(map(str, result.noise))}), so nothing behind them can "
            "agree, and nothing more was looked at: give both arms the same"
        )
    elif result.has_difference:
        yield from _finding_lines(result)
    for role, note in result.observed.items():
        yield f"held against its own reference, the {role}'s first fast path to differ: {_observed_text(note)}"
    yield from _growth_lines(result)
    yield from (f"note: {remark}" for remark in result.remarks)
    worth = result.requests_worth
    if worth is not None:
        yield _cost_text(result, worth)


def as_json(result: Result, exit_code: int) -> dict[str, Any]:
    """``fuseproof.diverge/1``: strict JSON values."""
    finding = result.finding
    pair = None if finding is None else finding.place
    inner = None if finding is None else finding.inner
    return {
        "schema": SCHEMA,
        "exit_code": exit_code,
        "result": result.kind,
        "arm": result.arm,
        "place": None if result.place is None else result.place.name,
        "step": None if result.place is None else result.place.step,
        "steps": result.steps,
        "cause": _cause_kind(result),
        "call": None if pair is None else _call_json(pair.baseline, pair),
        "gates": None if pair is None else {role: list(_call_of(pair, role).gates) for role in ROLES},
        "tensors": {what: [one.to_json() for one in found] for what, found in result.tensors.items()},
        "settings": _changed(result, "settings"),
        "weights": sorted(_changed(result, "weights")),
        "inner": None if inner is None else _call_json(inner.baseline, inner),
        "suspects": {} if finding is None else dict(zip(ROLES, map(list, finding.suspects), strict=True)),
        "observed": result.observed,
        "consequences": None if finding is None else finding.consequences,
        "compared_calls": None if finding is None else finding.compared,
        "only_baseline": [] if finding is None else list(finding.only_baseline),
        "only_candidate": [] if finding is None else list(finding.only_candidate),
        "growth": [one.to_json() for one in result.growth],
        "passes": result.passes,
        "requests_worth": None if result.requests_worth is None else round(result.requests_worth, 2),
        "sites": {role: answer.get("sites", {}) for role, answer in result.arms.items()},
        "remarks": result.remarks,
        "flags": {one.name: [one.baseline, one.candidate] for one in result.flags},
        "commits": result.commits,
        "loading_seconds": round(result.loading_s, 3),
    }


def _arms_text(result: Result) -> str:
    told = [str(one) for one in result.flags]
    if result.commits:
        told.insert(0, " against ".join(result.commits[role] for role in ROLES))
    return f"arms (baseline against candidate): {'; '.join(told)}" if told else "arms: no flag differs"


def _cost_text(result: Result, worth: float) -> str:
    runs = len(result.passes)
    return (
        f"{runs} runs of the request, whole or in part, took {result.passes_s:.1f} s, {worth:.1f} times a whole one "
        f"(pass 1 is two whole ones); loading and warming up took another {result.loading_s:.1f} s"
        f"{_memory_text(result)}"
    )


def _headline(result: Result) -> str:
    place = result.place
    if place is None:
        return f"nothing differs: latents behind all {result.steps} steps and the decoded result are equal, bit for bit"
    where = _place_text(place)
    if result.kind == "nondeterministic":
        return f"{where}: the {result.arm} does not repeat its own bits, whatever the other arm does"
    return f"{where}: the first difference"


def _place_text(place: Place) -> str:
    return place.name if place.step is None else f"{place.name} of {place.steps}"


def _cause_kind(result: Result) -> str | None:
    """``noise``: other first latents by flags; ``call``: made in one; ``input``: handed to one from outside;
    ``outside``: all calls are equal.
    """
    if result.noise:
        return "noise"
    if result.finding is None:
        return None
    if result.finding.cause is not None:
        return "call"
    return "input" if result.finding.outside is not None else "outside"


def _finding_lines(result: Result) -> Iterator[str]:
    finding = result.finding
    if finding is None:
        return
    pair = finding.place
    if pair is None:
        yield (
            f"module: none; all {finding.compared} calls that both arms make there are equal, so the difference is "
            f"made outside of them{_outside_text(result)}"
        )
        return
    if finding.cause is not None:
        yield f"module: {_call_text(pair.baseline)}: equal inputs, other outputs, so the difference is made here"
    else:
        yield (
            f"module: none; the first to differ is an input of {_call_text(pair.baseline)}: {_listed(pair.inputs)}, "
            "which no watched call has made"
        )
    yield from _tensor_lines(result, finding)
    yield from _site_lines(pair, result)
    yield from _suspect_lines(finding)
    yield from _fact_lines(result)
    if finding.inner is not None:
        yield (
            f"  inside it, {finding.inner.label} ({_listed(finding.inner.inputs)}) is the first to be given a "
            "difference: it is made by what stands before that, not by a module"
        )
    yield f"consequences: {finding.consequences} of {finding.compared} calls that both arms make hand it on"
    yield from _alone_lines(finding)


def _outside_text(result: Result) -> str:
    place = result.place
    if place is not None and place.step is not None:
        return ": in what the loop does around them (guidance, the scheduler's step)"
    return ""


def _call_text(call: Call) -> str:
    where = f", in {call.region}" if call.region in ("before the loop", "after the loop") else ""
    forward = f", forward {call.forward} of the step" if call.forward else ""
    again = f", call {call.number}" if call.number > 1 else ""
    return f"{call.label} ({call.type}{forward}{again}{where})"


def _tensor_lines(result: Result, finding: Finding) -> Iterator[str]:
    shown = ("outputs",) if finding.cause is not None else ("inputs",)
    for what in shown:
        for one in result.tensors.get(what, []):
            if not one.is_equal:
                yield f"  {one.name}: {_tensor_text(one)}"


def _tensor_text(one: TensorDifference) -> str:
    from fuseproof.fastpaths.wording import difference_text

    if one.layouts is not None:
        return " against ".join(one.layouts)
    assert one.difference is not None and one.first_index is not None and one.first_values is not None
    values = " against ".join(one.first_values)
    shape = "x".join(map(str, one.shape)) or "scalar"
    how = difference_text(one.difference, "the baseline")
    return f"{shape} {one.dtype}: {how}; first at {list(one.first_index)}: {values}"


def _site_lines(pair: Pair, result: Result) -> Iterator[str]:
    runs = (f"the {result.arm}'s first run", "its second run")
    names = runs if result.kind == "nondeterministic" else ("the baseline", "the candidate")
    for role, name in zip(ROLES, names, strict=True):
        for gate in _call_of(pair, role).gates:
            key = "" if gate["key"] is None else f"; key {gate['key']}"
            reason = "" if gate["reason"] is None else f" ({gate['reason']})"
            yield f"  site {gate['site']} in {name}: ran {gate['ran']}, {gate['state']}{reason}{key}"


def _suspect_lines(finding: Finding) -> Iterator[str]:
    for role, sites in zip(ROLES, finding.suspects, strict=True):
        if sites:
            yield f"  ran fused inside it in the {role}, with no like in the other arm: {_listed(sites)}"


def _fact_lines(result: Result) -> Iterator[str]:
    settings = _changed(result, "settings")
    likely = ", the likely cause" if result.finding is not None and result.finding.cause is not None else ""
    for name, (before, after) in list(settings.items())[:SETTINGS_SHOWN]:
        yield f"  setting {name}: {before} against {after}{likely}"
    if len(settings) > SETTINGS_SHOWN:
        yield f"  and {len(settings) - SETTINGS_SHOWN} more settings, which --json has"
    weights = sorted(_changed(result, "weights"))
    if weights:
        yield f"  its own weights differ: {_listed(tuple(weights))}"


def _changed(result: Result, what: str) -> dict[str, list[Any]]:
    """Settings or weights of the call's module that are not the same in both arms."""
    sides = [result.facts.get(role, {}).get(what, {}) for role in ROLES]
    if not all(role in result.facts for role in ROLES):
        return {}
    names = dict.fromkeys((*sides[0], *sides[1]))
    return {
        name: [sides[0].get(name), sides[1].get(name)] for name in names if sides[0].get(name) != sides[1].get(name)
    }


def _alone_lines(finding: Finding) -> Iterator[str]:
    for role, labels in ((BASELINE, finding.only_baseline), (CANDIDATE, finding.only_candidate)):
        if labels:
            yield f"note: {len(labels)} places are called by the {role} alone, such as {labels[0]}: not compared"


def _observed_text(note: Mapping[str, Any]) -> str:
    from fuseproof.fastpaths.bits import BitDifference
    from fuseproof.fastpaths.wording import difference_text

    values = note["difference"]
    if values is None:
        how = str(note["mismatch"])
    else:
        whole: dict[str, Any] = {name: float("nan") if value is None else value for name, value in values.items()}
        how = difference_text(BitDifference(**whole), "the reference")
    return f"site {note['site']} in {note['label']}, forward {note['forward']}: {how}; key {note['key']}"


def _growth_lines(result: Result) -> Iterator[str]:
    if not result.growth or result.kind == "graphs":
        return
    shown, differing = _picked(result.growth), sum(1 for one in result.growth if one.differing_share)
    which = ""
    if len(shown) < differing:
        which = f"; {len(shown)} of the {differing} steps that differ, evenly spaced, --json has every one"
    yield f"latents (candidate against baseline{which}): {'; '.join(map(_growth_text, shown))}"


def _picked(growth: list[Growth]) -> list[Growth]:
    """The first that differ and the last, at most :data:`STEPS_SHOWN`; the whole curve is in the JSON."""
    differing = [one for one in growth if one.differing_share]
    if len(differing) <= STEPS_SHOWN:
        return differing
    places = [round(index * (len(differing) - 1) / (STEPS_SHOWN - 1)) for index in range(STEPS_SHOWN)]
    return [differing[place] for place in places]


def _growth_text(one: Growth) -> str:
    from fuseproof.fastpaths.wording import ulp_text

    psnr = "" if one.psnr_db is None else f", {one.psnr_db:.1f} dB"
    step = f"step {one.boundary}" if one.boundary else "before step 1"
    return f"{step} {one.differing_share:.1%}, {ulp_text(one.largest_ulp)}{psnr}"


def _memory_text(result: Result) -> str:
    """How much more memory pass 2 needed than the request itself, of the arm where it was most."""
    shares = []
    for role in ROLES:
        peaks = {
            name: [one["peak_mib"] for one in result.passes if (one["pass"], one["arm"]) == (name, role)]
            for name in ("latents", "calls")
        }
        if peaks["latents"] and peaks["calls"] and all(peaks["latents"]) and all(peaks["calls"]):
            shares.append(max(peaks["calls"]) / peaks["latents"][0] - 1)
    return f"; pass 2 peaked at {max(shares):+.1%} of pass 1's memory" if shares else ""


def _call_json(call: Call, pair: Pair) -> dict[str, Any]:
    return {
        "label": call.label,
        "kind": call.kind,
        "type": call.type,
        "region": call.region,
        "forward": call.forward,
        "number": call.number,
        "differing_inputs": None if pair.inputs is None else list(pair.inputs),
        "differing_outputs": None if pair.outputs is None else list(pair.outputs),
    }


def _call_of(pair: Pair, role: str) -> Call:
    return pair.baseline if role == BASELINE else pair.candidate


def _listed(names: tuple[str, ...] | None) -> str:
    names = names or ()
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
