"""Is the candidate right? Its bits against the reference's, on one call with one kind of values, twice."""

from __future__ import annotations

from collections.abc import Callable
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
) -> str | None:
    """What is wrong, in one sentence, or None: other bits, another layout, an input written to, another second result.

    Outputs that the candidate may write into are passed by keyword, as in the model; what counts is what it returns.
    Their memory holds NaN before, where no input lies in it.
    """
    expected = reference(*make(call, kind, device, folder).arguments)
    for run in range(RUNS):
        made = make(call, kind, device, folder)
        _poison(call, made.blocks)
        before = [block.clone() for block in made.blocks]
        found = candidate(*made.arguments, **made.keywords)
        said = difference(found, expected, same_strides=not made.keywords)
        if said is not None:
            return said if run == 0 else f"the second result is another one: {said}"
        for index, (block, old) in enumerate(zip(made.blocks, before, strict=True)):
            if index not in call.written_memory and not torch.equal(bits(block), bits(old)):
                return f"memory block {index}, which is no output, was written to"
    return None


def _poison(call: Call, blocks: tuple[torch.Tensor, ...]) -> None:
    read = {part for entry in call.arguments for part in _memories(entry)}
    for index in call.written_memory - read:
        if blocks[index].is_floating_point():
            blocks[index].fill_(float("nan"))


def _memories(entry: Any) -> list[int]:
    if "tuple" in entry:
        return [memory for part in entry["tuple"] for memory in _memories(part)]
    return [entry["tensor"]["memory"]] if "tensor" in entry else []
