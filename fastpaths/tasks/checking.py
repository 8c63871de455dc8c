"""Is the candidate right? Its bits against the reference's, on one call with one kind of values, twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fuseproof.fastpaths.tasks.comparing import bits, difference
from fuseproof.fastpaths.tasks.inputs import Call, make

RUNS = 2


@torch.no_grad()
def fault(
    candidate: Callable[..., Any],
    reference: Callable[..., Any],
    call: Call,
    kind: str,
    device: torch.device,
    folder: Path,
    seed: int = 0,
    runs: int = RUNS,
) -> str | None:
    """What is wrong, in one sentence, or None: other bits, another layout, an input written to, another second result.

    Outputs that the candidate may write into are passed by keyword, as in the model; what counts is what it returns.
    Their memory holds NaN before, where no input lies in it. Each result is held until all runs are done, as a model
    holds it: no two may share memory, or a later call would overwrite what an earlier one returned.
    """
    expected = reference(*make(call, kind, device, folder, seed).arguments)
    held: list[torch.Tensor] = []
    for run in range(runs):
        made = make(call, kind, device, folder, seed)
        _poison(call, made.blocks)
        before = [block.clone() for block in made.blocks]
        found = candidate(*made.arguments, **made.keywords)
        said = difference(found, expected, same_strides=not made.keywords)
        if said is not None:
            return said if run == 0 else f"the second result is another one: {said}"
        tensors = list(_tensors(found))
        if not {_memory(one) for one in held}.isdisjoint(map(_memory, tensors)):
            return (
                "two calls gave the same memory as their result, so the second overwrites what the first one returned"
            )
        held += [one for one in tensors if one.numel()]
        for index, (block, old) in enumerate(zip(made.blocks, before, strict=True)):
            if index not in call.written_memory and not torch.equal(bits(block), bits(old)):
                return f"memory block {index}, which is no output, was written to"
    return None


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, tuple | list):
        for part in found:
            yield from _tensors(part)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _poison(call: Call, blocks: tuple[torch.Tensor, ...]) -> None:
    read = {part for entry in call.arguments for part in _memories(entry)}
    for index in call.written_memory - read:
        if blocks[index].is_floating_point():
            blocks[index].fill_(float("nan"))


def _memories(entry: Any) -> list[int]:
    if "tuple" in entry:
        return [memory for part in entry["tuple"] for memory in _memories(part)]
    return [entry["tensor"]["memory"]] if "tensor" in entry else []
