"""Checking sites ahead of time: fused against reference on given layouts and values, through the gate that runs later.

Every case builds the arguments anew, poisons what a kernel must write, lets a gate compare integer bits twice, and then
looks whether anything changed that is no output. The keys that the gate verified are what a certificate vouches for.
"""

from __future__ import annotations

import copy
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths import gates
from fuseproof.fastpaths.bits import bits_equal, value_mismatch
from fuseproof.fastpaths.call_layouts import CallLayout, Place
from fuseproof.fastpaths.check_values import EDGE_VALUES, POINTWISE_ONLY, filler
from fuseproof.fastpaths.families import kernel_module
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.fastpaths.user_families import ModuleOperation

POINTWISE_KERNELS = frozenset({"gated_residual", "gelu_tanh", "attention_mlp_gelu", "conv_bias_residual"})
SAME_ORDER_ON_CPU = frozenset({"gated_residual"})
"""Kernels whose reference rounds on a CPU as on a card; elsewhere the interpreter can find faults, not prove bits."""
LARGEST_CPU_PERCENT = 1.0
CPU_REASON = "a CPU rounds this chain in another order, so only a card can decide"
WEIGHT_SCALE = 0.05
RUNS = 2
COPIES_ON_A_CPU = 16  # a CPU's allocator has more than one place for a size

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class State(StrEnum):
    """What became of a case."""

    EQUAL = "equal"
    DIFFERS = "differs"
    DECLINES = "declines"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Case:
    """One call with one kind of values."""

    call: SiteCall
    workload: str
    values: str


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


@dataclass
class Prepared:
    """One call made real: what is run, on which arguments, and the memory they lie in, as it was filled."""

    arguments: Arguments
    run: Callable[[], Any]
    believed: Callable[[], Any] | None
    actual: Callable[[], Any]
    blocks: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


def cases_for(calls: Iterable[SiteCall], workload: str, *, edge_values: bool) -> list[Case]:
    """Ordinary values for each call, and with ``edge_values`` everything that may break a kernel too."""
    return [
        Case(call, workload, values)
        for call in calls
        for values in ("random", *(EDGE_VALUES if edge_values else ()))
        if values not in POINTWISE_ONLY or call.layout.operation in POINTWISE_KERNELS
    ]


def check(case: Case, device: torch.device, seed: int = 0) -> Outcome:
    """Run one case on ``device``."""
    return check_call(case.call, device, filler(case.values, seed, device), case.workload, case.values)


@torch.no_grad()
def check_call(
    call: SiteCall,
    device: torch.device,
    fill: Callable[[torch.Tensor], None],
    workload: str,
    values: str,
    module: nn.Module | None = None,
) -> Outcome:
    """As :func:`check`, with the values that ``fill`` writes; ``module`` is a real one in place of the call's own."""
    started = time.perf_counter()
    gate = Gate(call.site, verifies_every_call=True)
    prepared = _prepared(call, gate, device, fill, module)
    with _gates_say_nothing():
        for _ in range(RUNS):
            poison_freed_memory(prepared.arguments)
            prepared.run()
    state, reason = _judged(call, gate, prepared, device)
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


def certified_keys(outcomes: Iterable[Outcome]) -> dict[str, list[str]]:
    """By site: keys that every case agreed on. A site with any case that differs has none."""
    known = list(outcomes)
    failed = {outcome.site for outcome in known if outcome.state is State.DIFFERS}
    keys: dict[str, set[str]] = {}
    for outcome in known:
        if outcome.site not in failed and outcome.keys:
            keys.setdefault(outcome.site, set()).update(outcome.keys)
    return {site: sorted(found) for site, found in keys.items()}


def shapes_text(layout: CallLayout) -> str:
    """The shapes of the first two tensors, which tell a reader which call it is."""
    shapes = ["x".join(map(str, place.shape)) or "scalar" for _, place in layout.places()]
    return ", ".join(shapes[:2]) + (f" and {len(shapes) - 2} more" if len(shapes) > 2 else "")


def operation_of(call: SiteCall, gate: Gate) -> GatedOperation:
    """The kernel of a call behind ``gate``, with a site of one's own in its place where the call has one."""
    name = call.layout.operation
    if call.user_site is None:
        return GatedOperation(name, kernel_module(name), gate)
    owner = Gate(f"owner of {name}")
    owner.stand_ins[name] = (call.user_site, gate)
    return GatedOperation(name, kernel_module(name), owner)


def real_module(module: nn.Module, device: torch.device, seed: int = 0) -> nn.Module:
    """A copy of a meta ``module`` on ``device`` with small random weights, from a generator of its own."""
    made = copy.deepcopy(module).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    for tensor in (*made.parameters(), *made.buffers()):
        if tensor.is_floating_point():
            tensor.data.normal_(std=WEIGHT_SCALE, generator=generator)
    return made


def poison_freed_memory(arguments: Arguments) -> None:
    """Leave NaN where the allocator will put a result, so that an element nobody writes shows."""
    for value in arguments[0]:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            copies = 1 if value.is_cuda else COPIES_ON_A_CPU
            [torch.full(value.shape, float("nan"), dtype=value.dtype, device=value.device) for _ in range(copies)]


def _prepared(
    call: SiteCall, gate: Gate, device: torch.device, fill: Callable[[torch.Tensor], None], module: nn.Module | None
) -> Prepared:
    blocks: list[torch.Tensor] = []

    def noted_fill(block: torch.Tensor) -> None:
        fill(block)
        blocks.append(block)

    arguments, keywords = call.layout.make(device, noted_fill)
    _poison_outputs(call.layout, keywords, is_module=call.module is not None)
    kept = [(block, block.clone()) for block in blocks]
    user = call.user_site
    if call.module is not None and user is not None:
        real = module or real_module(call.module, device)
        operation = ModuleOperation(user, call.layout.operation, real, gate)
        believed = user.reference
        return Prepared(
            (arguments, keywords),
            lambda: operation.run(real.forward, arguments, keywords),
            None if believed is None else lambda: believed(real, *arguments, **keywords),
            lambda: real.forward(*arguments, **keywords),
            kept,
        )
    kernel, own_reference = kernel_module(call.layout.operation), user.reference if user is not None else None
    gated = operation_of(call, gate)
    return Prepared(
        (arguments, keywords),
        lambda: gated(*arguments, **keywords),
        None if own_reference is None else lambda: own_reference(*arguments),
        lambda: kernel.reference(*arguments),
        kept,
    )


def _poison_outputs(layout: CallLayout, outputs: dict[str, Any], *, is_module: bool) -> None:
    """NaN into output memory that no argument shares."""
    if is_module:
        return
    read = {place.memory for index, place in layout.places() if index.split(".")[0].isdigit()}
    for name, place in layout.keywords:
        if isinstance(place, Place) and place.memory not in read:
            outputs[name].fill_(float("nan"))


def _judged(call: SiteCall, gate: Gate, prepared: Prepared, device: torch.device) -> tuple[State, str | None]:
    if gate.declined:
        return State.DECLINES, "; ".join(gate.declined)
    if gate.rejections:
        reason = "; ".join(sorted({rejection.reason for rejection in gate.rejections.values()}))
        if device.type == "cpu" and call.user_site is None and _may_be_the_cpu(call.layout.operation, reason):
            return State.UNDECIDED, f"{CPU_REASON} ({reason})"
        return State.DIFFERS, reason
    if any(not bits_equal(block, before) for block, before in prepared.blocks):
        return State.DIFFERS, "memory that is no output was written"
    if prepared.believed is not None:
        believed, actual = prepared.believed(), prepared.actual()
        mismatch = value_mismatch(believed, actual)
        if mismatch is not None or not bits_equal(believed, actual):
            return State.DIFFERS, f"its reference is not what it replaces: {mismatch or 'other bits'}"
    if not gate.verified_keys():
        return State.UNDECIDED, "no call could be decided"
    return State.EQUAL, None


def _may_be_the_cpu(kernel: str, reason: str) -> bool:
    """Whether a difference is as small as that of a CPU's own roundings: few values, whatever their distance."""
    share = re.search(r"([0-9.]+)% of the values differ", reason)
    return kernel not in SAME_ORDER_ON_CPU and share is not None and float(share[1]) <= LARGEST_CPU_PERCENT


@contextmanager
def _gates_say_nothing() -> Iterator[None]:
    """A rejected key is an outcome here, not news for the log."""
    logger = logging.getLogger(gates.__name__)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = was_disabled
