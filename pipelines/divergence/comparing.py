"""Two arms' calls of one region side by side: where a difference is made, and where it is only handed on.

A *cause* is a call whose inputs are equal, bit for bit, and whose outputs are not; of causes inside each other the one
that ends first, which is the innermost. What differs afterwards is a *consequence*. Where an input differs before any
such call begins, the cause lies outside of all calls, and that input is what there is to show.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuseproof.pipelines.divergence.calls import ROW_DIMENSIONS, Call, TensorFact, sum_of


@dataclass(frozen=True)
class Pair:
    """The same call in both arms. ``inputs`` and ``outputs`` name the tensors that differ; None: not to be compared."""

    baseline: Call
    candidate: Call
    inputs: tuple[str, ...] | None
    outputs: tuple[str, ...] | None

    @property
    def is_cause(self) -> bool:
        """Whether a difference is made here. Where nobody can tell the inputs, they are those of the calls before."""
        return bool(self.outputs) and not self.inputs

    @property
    def label(self) -> str:
        return self.baseline.label


@dataclass(frozen=True)
class Finding:
    """``cause`` is where a difference is made, ``outside`` the first call whose input differs before that; one of the
    two, or neither where all calls are equal. ``inner`` is the first call inside the cause that was given a difference
    already. ``suspects`` are, for each arm, the sites that ran fused inside the cause in calls that cannot be held
    against the other arm's. ``consequences`` counts the calls that handed it on, ``compared`` all that both arms made;
    ``only_baseline`` and ``only_candidate`` are labels that one arm alone called.
    """

    cause: Pair | None
    outside: Pair | None
    inner: Pair | None
    consequences: int
    compared: int
    only_baseline: tuple[str, ...]
    only_candidate: tuple[str, ...]
    suspects: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    @property
    def place(self) -> Pair | None:
        """The pair to show tensors of."""
        return self.cause or self.outside


def compare_calls(baseline: Sequence[Call], candidate: Sequence[Call]) -> Finding:
    """What two arms' calls of the same regions amount to."""
    pairs = list(_pairs(baseline, candidate))
    causes = sorted((pair for pair in pairs if pair.is_cause), key=lambda pair: pair.baseline.left)
    given = [pair for pair in pairs if pair.inputs]
    cause = causes[0] if causes else None
    outside = next((pair for pair in given if cause is None or _begins_before(pair, cause)), None)
    inner = None
    if cause is not None and outside is None:
        inner = next((pair for pair in given if _is_inside(pair.baseline, cause.baseline)), None)
    first = outside or cause
    consequences = sum(1 for pair in pairs if pair.outputs and pair is not first)
    labels = [dict.fromkeys(call.label for call in calls) for calls in (baseline, candidate)]
    return Finding(
        None if outside is not None else cause,
        outside,
        inner,
        consequences,
        len(pairs),
        tuple(label for label in labels[0] if label not in labels[1]),
        tuple(label for label in labels[1] if label not in labels[0]),
        ((), ()) if first is None or first is outside else _suspects(first, pairs, baseline, candidate),
    )


def _suspects(
    cause: Pair, pairs: Sequence[Pair], baseline: Sequence[Call], candidate: Sequence[Call]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    compared = {pair.baseline.key for pair in pairs if pair.outputs is not None}

    def sites(calls: Sequence[Call], around: Call) -> tuple[str, ...]:
        inside = (call for call in calls if _is_inside(call, around) and call.key not in compared)
        gates = (gate for call in inside for gate in call.gates)
        return tuple(dict.fromkeys(str(gate["site"]) for gate in gates if gate["ran"] == "fused"))

    return sites(baseline, cause.baseline), sites(candidate, cause.candidate)


def _pairs(baseline: Sequence[Call], candidate: Sequence[Call]) -> Iterator[Pair]:
    """Calls that both arms made, in the order in which the baseline's began."""
    others = {call.key: call for call in candidate}
    for call in sorted(baseline, key=lambda one: one.entered):
        other = others.get(call.key)
        if other is None:
            continue
        inputs = None
        if call.inputs is not None and other.inputs is not None:
            inputs = differing(call.inputs, other.inputs)
        yield Pair(call, other, inputs, differing(call.outputs, other.outputs))


def differing(one: Sequence[TensorFact], other: Sequence[TensorFact]) -> tuple[str, ...] | None:
    """The names of the tensors that differ; None where the two sides cannot be held against each other.

    Of equally built sides each tensor is compared; of others all rows together, where they are as many and as wide.
    """
    if [fact.layout for fact in one] == [fact.layout for fact in other]:
        return tuple(a.name for a, b in zip(one, other, strict=True) if a.ordered != b.ordered)
    if [fact.name for fact in one] == [fact.name for fact in other]:
        return tuple(
            _told_layout(a, b)
            for a, b in zip(one, other, strict=True)
            if a.layout != b.layout or a.ordered != b.ordered
        )
    return _differing_rows(one, other)


def _differing_rows(one: Sequence[TensorFact], other: Sequence[TensorFact]) -> tuple[str, ...] | None:
    sides = [
        [fact for fact in side if 0 < len(fact.shape) <= ROW_DIMENSIONS and fact.unordered] for side in (one, other)
    ]
    widths = {(fact.shape[-1], fact.dtype) for side in sides for fact in side}
    rows = [sum(fact.rows for fact in side) for side in sides]
    if len(widths) != 1 or rows[0] != rows[1] or not rows[0]:
        return None
    sums = [sum_of([fact.unordered for fact in side if fact.unordered is not None]) for side in sides]
    return () if sums[0] == sums[1] else ("all rows together",)


def _told_layout(one: TensorFact, other: TensorFact) -> str:
    if one.layout == other.layout:
        return one.name
    shapes = " against ".join(f"{list(fact.shape)} {fact.dtype}" for fact in (one, other))
    return f"{one.name} ({shapes})"


def _begins_before(pair: Pair, cause: Pair) -> bool:
    return pair.baseline.entered < cause.baseline.entered


def _is_inside(call: Call, around: Call) -> bool:
    return around.entered < call.entered and call.left <= around.left


def first_difference(baseline: Sequence[Mapping[str, object]], candidate: Sequence[Mapping[str, object]]) -> int | None:
    """The first boundary whose latents differ, 0 being where the loop begins; None where none of the common ones do."""
    for number, (one, other) in enumerate(zip(baseline, candidate, strict=False)):
        if (one["digest"], one["shape"], one["dtype"]) != (other["digest"], other["shape"], other["dtype"]):
            return number
    return None
