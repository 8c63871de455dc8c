"""One call made real, ready to be run through a gate: arguments in place, outputs poisoned, modules with weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.call_layouts import CallLayout, Place
from fuseproof.fastpaths.families import kernel_module
from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.operations import GatedOperation
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.fastpaths.user_families import ModuleOperation

WEIGHT_SCALE = 0.05
COPIES_ON_A_CPU = 16  # a CPU's allocator has more than one place for a size

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass
class Prepared:
    """One call made real: what is run, on which arguments, and the memory they lie in, as it was filled.

    ``run`` goes through the gate; ``actual`` is the eager chain alone, ``fused`` the fused form alone, which may write
    over its arguments; ``believed`` is what a site of one's own says that it replaces.
    """

    arguments: Arguments
    run: Callable[[], Any]
    believed: Callable[[], Any] | None
    actual: Callable[[], Any]
    fused: Callable[[], Any]
    blocks: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


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


def prepare(
    call: SiteCall, gate: Gate, device: torch.device, fill: Callable[[torch.Tensor], None], module: nn.Module | None
) -> Prepared:
    """Make ``call`` real on ``device``; ``fill`` writes its memory, ``module`` stands in for a copy of its own."""
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
            lambda: user.fused(real, *arguments, **keywords),
            kept,
        )
    kernel, own_reference = kernel_module(call.layout.operation), user.reference if user is not None else None
    gated = operation_of(call, gate)
    return Prepared(
        (arguments, keywords),
        lambda: gated(*arguments, **keywords),
        None if own_reference is None else lambda: own_reference(*arguments),
        lambda: kernel.reference(*arguments),
        lambda: gated.fused_form(*arguments, **keywords),
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
