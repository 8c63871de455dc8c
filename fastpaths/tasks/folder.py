"""The files of a kernel task, from its calls: what is copied, what is written out, and the true layouts as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.call_layouts import CallLayout, Place
from fuseproof.fastpaths.captures import CapturedCall
from fuseproof.fastpaths.families import kernel_module
from fuseproof.fastpaths.tasks.inputs import CAPTURED
from fuseproof.fastpaths.tasks.names import distinct_names, dtype_text, value_text
from fuseproof.fastpaths.tasks.references import reference_source
from fuseproof.fastpaths.verification import Case

SCHEMA = "fuseproof.kernel-task/1"
ROOM = Path(__file__).parent
COPIED = {
    "values.py": ROOM.parent / "check_values.py",
    "inputs.py": ROOM / "inputs.py",
    "comparing.py": ROOM / "comparing.py",
    "checking.py": ROOM / "checking.py",
    "timing.py": ROOM / "timing.py",
}
TOLD_APART = {
    "from fuseproof.fastpaths.call_layouts import Fill\n": "\nFill = Callable[[torch.Tensor], None]\n",
    "from fuseproof.fastpaths.check_values import": "from values import",
    "from fuseproof.fastpaths.tasks.": "from ",
}
"""What a copied file says inside the package, and what it says in a folder of its own."""


@dataclass(frozen=True)
class TaskCall:
    """One call of the task: its layout, the kinds of values it is checked with, and how a reader calls it."""

    name: str
    layout: CallLayout
    values: tuple[str, ...]
    is_real: bool
    captured: CapturedCall | None = None


def calls_of_cases(cases: Iterable[Case], real: Iterable[CallLayout]) -> list[TaskCall]:
    """Each distinct call of ``cases`` once, with all its kinds of values; the layouts in ``real`` are of requests."""
    kinds: dict[tuple[str, CallLayout], list[str]] = {}
    workloads: dict[CallLayout, str] = {}
    for case in cases:
        layout = case.call.layout
        kinds.setdefault((case.workload, layout), []).append(case.values)
        workloads.setdefault(layout, case.workload)
    found: dict[CallLayout, TaskCall] = {}
    known = set(real)
    names = dict(zip(workloads, distinct_names([*workloads], [*workloads.values()]), strict=True))
    for (_, layout), values in kinds.items():
        earlier = found[layout].values if layout in found else ()
        kept = tuple(dict.fromkeys((*earlier, *values)))
        found[layout] = TaskCall(names[layout], layout, kept, layout in known)
    return list(found.values())


def captured_calls(captures: Sequence[CapturedCall], kernel: str) -> list[TaskCall]:
    """Calls with values of their own; a :class:`FuseproofError` for one of another kernel."""
    for one in captures:
        if one.layout.operation != kernel:
            raise FuseproofError(
                f"a capture is of {one.layout.operation!r}, and the task is {kernel!r}.",
                next_step=f"`fuseproof fastpaths capture` at a site that runs {kernel} saves one that fits.",
            )
    layouts = [one.layout for one in captures]
    names = distinct_names(layouts, [f"captured {place}" for place in range(len(captures))])
    return [TaskCall(name, one.layout, (CAPTURED,), True, one) for name, one in zip(names, captures, strict=True)]


def task_files(site: str, kernel: str, calls: Sequence[TaskCall], texts: Mapping[str, str]) -> dict[str, bytes]:
    """Every file of the folder by name; ``texts`` are those that are written for readers."""
    if not calls:
        raise FuseproofError(f"no call of {kernel} was found, so there is nothing to hand over.")
    files = {name: _copied(path) for name, path in COPIED.items()}
    files["reference.py"] = reference_source(kernel).encode()
    files["calls.json"] = _calls_json(site, kernel, calls)
    for place, call in enumerate(calls):
        if call.captured is not None:
            files[_file_of(place)] = _blocks(call.captured)
    return files | {name: text.encode() for name, text in texts.items()}


def argument_rows(kernel: str, parameters: Sequence[str], layout: CallLayout) -> list[tuple[str, str]]:
    """What a call passes: each argument's parameter, and its shape, strides and dtype or its value."""
    names = [parameter.partition(":")[0].partition(" = ")[0] for parameter in parameters]
    names += [f"argument {place}" for place in range(len(names), len(layout.arguments))]
    rows = [(name, value_text(value)) for name, value in zip(names, layout.arguments, strict=False)]
    return rows + [(f"{name}= (output)", value_text(value)) for name, value in layout.keywords]


def _calls_json(site: str, kernel: str, calls: Sequence[TaskCall]) -> bytes:
    document = {
        "schema": SCHEMA,
        "site": site,
        "kernel": kernel,
        "calls": [
            {
                "name": call.name,
                "is_real": call.is_real,
                "values": list(call.values),
                "arguments": [_entry(argument) for argument in call.layout.arguments],
                "keywords": {name: _entry(argument) for name, argument in call.layout.keywords},
                "memory_bytes": list(call.layout.memory_bytes),
                "traffic_bytes": _traffic(call.layout),
                "captured": None if call.captured is None else _file_of(place),
            }
            for place, call in enumerate(calls)
        ],
    }
    return (json.dumps(document, indent=1, allow_nan=False) + "\n").encode()


def _entry(value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        return {"tuple": [_entry(part) for part in value]}
    if not isinstance(value, Place):
        return {"value": value}
    return {
        "tensor": {
            "memory": value.memory,
            "dtype": dtype_text(value),
            "shape": list(value.shape),
            "strides": list(value.strides),
            "offset": value.offset,
        }
    }


def _traffic(layout: CallLayout) -> int:
    """The fewest bytes that a call moves, as the kernel here counts them; nothing is computed for it."""
    arguments, outputs = layout.make(torch.device("meta"), lambda _: None)
    return int(kernel_module(layout.operation).traffic_bytes(*arguments, **outputs))


def _blocks(call: CapturedCall) -> bytes:
    """The captured memory, block by block, as ``torch.load(..., weights_only=True)`` reads it."""
    blocks: list[torch.Tensor] = []
    fill = call.filler()

    def kept(block: torch.Tensor) -> None:
        fill(block)
        blocks.append(block)

    call.layout.make(torch.device("cpu"), kept)
    stream = io.BytesIO()
    torch.save(blocks, stream)
    return stream.getvalue()


def _copied(path: Path) -> bytes:
    text = path.read_text(encoding="utf-8")
    for inside, outside in TOLD_APART.items():
        text = text.replace(inside, outside)
    return text.encode()


def _file_of(place: int) -> str:
    return f"captured-{place}.pt"
