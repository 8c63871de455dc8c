"""Checking sites ahead of time: fused against reference on given layouts and values, through the gate that runs later.

Every case builds the arguments anew, poisons what a kernel must write, lets a gate compare integer bits twice, and then
looks whether anything changed that is no output. The keys that the gate verified are what a certificate vouches for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import nn

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths import gates
from fuseproof.fastpaths.bits import bit_difference, bits_equal, snapshot, value_mismatch
from fuseproof.fastpaths.call_texts import distinct_texts, shapes_text
from fuseproof.fastpaths.check_values import EDGE_VALUES, NOT_FINITE, POINTWISE_ONLY, filler
from fuseproof.fastpaths.cpu_roundings import cpu_cause
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.prepared_calls import Prepared, poison_freed_memory, prepare
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.fastpaths.trials import is_device_error
from fuseproof.fastpaths.wording import difference_text

POINTWISE_KERNELS = frozenset(
    {"gated_residual", "table_gated_residual", "gelu_tanh", "geglu", "attention_mlp_gelu", "conv_bias_residual"}
)
FINITE_ONLY = frozenset({"row_quantize"})
"""Kernels that promise nothing of a row that is not finite."""
RUNS = 2


class State(StrEnum):
    """What became of a case."""

    EQUAL = "equal"
    DIFFERS = "differs"
    DECLINES = "declines"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Case:
    """One call with one kind of values. ``text`` tells it from the other calls of its workload."""

    call: SiteCall
    workload: str
    values: str
    text: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What a case showed. ``keys`` were verified, ``rejected`` were not, both as a certificate writes them."""

    site: str
    operation: str
    workload: str
    values: str
    shapes: str
    state: State
    reason: str | None
    keys: frozenset[str]
    rejected: frozenset[str]
    milliseconds: float


def cases_for(calls: Iterable[SiteCall], workload: str, *, edge_values: bool) -> list[Case]:
    """Ordinary values for each call, and with ``edge_values`` everything that may break a kernel too."""
    return [
        Case(call, workload, values)
        for call in calls
        for values in ("random", *(EDGE_VALUES if edge_values else ()))
        if (values not in POINTWISE_ONLY or call.layout.operation in POINTWISE_KERNELS)
        and (values not in NOT_FINITE or call.layout.operation not in FINITE_ONLY)
    ]


def labelled(cases: Iterable[Case]) -> list[Case]:
    """The same cases, each with a text that no other call of its workload has."""
    known = list(cases)
    texts: dict[tuple[str, SiteCall], str] = {}
    for workload in dict.fromkeys(case.workload for case in known):
        calls = list(dict.fromkeys(case.call for case in known if case.workload == workload))
        texts |= {(workload, call): text for call, text in zip(calls, distinct_texts(calls), strict=True)}
    return [replace(case, text=texts[case.workload, case.call]) for case in known]


def check(case: Case, device: torch.device, seed: int = 0) -> Outcome:
    """Run one case on ``device``."""
    fill = filler(case.values, seed, device)
    outcome: Outcome = check_call(case.call, device, fill, case.workload, case.values)
    return outcome if case.text is None else replace(outcome, shapes=case.text)


@torch.no_grad()
def check_call(
    call: SiteCall,
    device: torch.device,
    fill: Callable[[torch.Tensor], None],
    workload: str,
    values: str,
    module: nn.Module | None = None,
    *,
    is_replay: bool = False,
) -> Outcome:
    """As :func:`check`, with the values that ``fill`` writes; ``module`` is a real one in place of the call's own.

    A failure of a site of one's own is an outcome. With ``is_replay`` the arguments come from a file: where the eager
    chain itself cannot take them, a :class:`FuseproofError` says so.
    """
    started = time.perf_counter()
    gate = Gate(call.site, verifies_every_call=True)
    prepared = prepare(call, gate, device, fill, module)
    if is_replay:
        _require_eager_runs(call, prepared)
    try:
        state, reason = _run_and_judge(call, gate, prepared, device)
    except Exception as error:
        if call.user_site is None or is_device_error(error):
            raise
        state, reason = State.DIFFERS, one_line(error)
    return Outcome(
        site=call.site,
        operation=call.layout.operation,
        workload=workload,
        values=values,
        shapes=shapes_text(call.layout),
        state=state,
        reason=reason,
        keys=gate.verified_key_texts() if state is State.EQUAL else frozenset(),
        rejected=frozenset(map(repr, gate.rejections)),
        milliseconds=(time.perf_counter() - started) * 1e3,
    )


def one_line(error: BaseException) -> str:
    """What went wrong in one sentence: ours, or an exception's type and the first line of what it says."""
    if isinstance(error, FuseproofError):
        return error.message.rstrip(".")
    said = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def certified_keys(outcomes: Iterable[Outcome]) -> dict[str, list[str]]:
    """By site: keys that every case agreed on. A site with any case that differs has none."""
    known = list(outcomes)
    failed = {outcome.site for outcome in known if outcome.state is State.DIFFERS}
    keys: dict[str, set[str]] = {}
    for outcome in known:
        if outcome.site not in failed and outcome.keys:
            keys.setdefault(outcome.site, set()).update(outcome.keys)
    return {site: sorted(found) for site, found in keys.items()}


def _require_eager_runs(call: SiteCall, prepared: Prepared) -> None:
    try:
        prepared.actual()
    except Exception as error:
        if is_device_error(error):
            raise
        raise FuseproofError(
            f"the captured arguments are none that {call.layout.operation} can be called with: {one_line(error)}.",
            next_step="Capture the call again: `fuseproof fastpaths capture`.",
        ) from error


def _run_and_judge(call: SiteCall, gate: Gate, prepared: Prepared, device: torch.device) -> tuple[State, str | None]:
    with _gates_say_nothing():
        for _ in range(RUNS):
            poison_freed_memory(prepared.arguments)
            prepared.run()
    return _judged(call, gate, prepared, device)


def _judged(call: SiteCall, gate: Gate, prepared: Prepared, device: torch.device) -> tuple[State, str | None]:
    if gate.declined:
        return State.DECLINES, "; ".join(gate.declined)
    if gate.rejections:
        return _difference(call, device, "; ".join(sorted({one.reason for one in gate.rejections.values()})))
    if any(not bits_equal(block, before) for block, before in prepared.blocks):
        return State.DIFFERS, "memory that is no output was written"
    if prepared.believed is not None:
        believed, actual = prepared.believed(), prepared.actual()
        mismatch = value_mismatch(believed, actual)
        if mismatch is not None or not bits_equal(believed, actual):
            return State.DIFFERS, f"its reference is not what it replaces: {mismatch or 'other bits'}"
    if gate.verified_keys():
        return State.EQUAL, None
    return _compared_alone(call, prepared, device)


def _compared_alone(call: SiteCall, prepared: Prepared, device: torch.device) -> tuple[State, str | None]:
    """Where a gate decides nothing, since equal NaNs or constants prove nothing, a difference still is a fault.

    Equal bits are an outcome too, and verify no key. The fused form runs last: it may write over the arguments.
    """
    expected = snapshot(prepared.actual())
    found = prepared.fused()
    mismatch = value_mismatch(found, expected)
    if mismatch is not None:
        return State.DIFFERS, f"not laid out as eager: {mismatch}"
    if bits_equal(found, expected):
        return State.EQUAL, None
    return _difference(call, device, f"not bit-exact: {difference_text(bit_difference(found, expected))}")


def _difference(call: SiteCall, device: torch.device, reason: str) -> tuple[State, str]:
    """A fault, unless a CPU alone may explain it."""
    cause = cpu_cause(call.layout.operation, reason) if device.type == "cpu" and call.user_site is None else None
    return (State.DIFFERS, reason) if cause is None else (State.UNDECIDED, cause)


@contextmanager
def _gates_say_nothing() -> Iterator[None]:
    """A rejected key is an outcome here, not news for the log."""
    logger = logging.getLogger(gates.__name__)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled
