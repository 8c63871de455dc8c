"""The true tensors of one call at a site, kept in a safetensors file: values, strides, offsets and shared memory.

Values are stored contiguously, one tensor a place; the layout beside them, in the file's metadata, puts each back where
it was. What lies between the places is not kept, and comes back as NaN.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fuseproof.errors import FuseproofError
from fuseproof.fastpaths.call_layouts import CallLayout, Fill, Place, layout_of
from fuseproof.fastpaths.regular_files import not_regular_reason

SCHEMA = "fuseproof.captured-call/1"
METADATA_KEY = "fuseproof"
SMALLEST_LIMIT_BYTES = 1 << 30
LARGEST_SPREAD = 1024
"""How many times its values a call's memory may be: a gate is one of some hundred rows of a modulation table."""
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bfloat16, torch.float16, torch.float32, torch.float64,
        torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool,
    )
}  # fmt: skip
LARGEST_NUMBER, NUMBER_SHOWN = 2**63 - 1, 40
NEXT_STEP = "`fuseproof fastpaths capture` writes such files."


@dataclass(frozen=True)
class CapturedCall:
    """One call: its layout, the values of every place in the layout's order, and where it came from.

    ``parameters`` are those of the module, for a site on modules. All tensors are on the CPU.
    """

    site: str
    layout: CallLayout
    values: tuple[torch.Tensor, ...]
    parameters: Mapping[str, torch.Tensor] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)

    def filler(self) -> Fill:
        """Fills the blocks of :meth:`CallLayout.make` with the captured values."""
        blocks = iter(self._blocks())

        def fill(block: torch.Tensor) -> None:
            block.copy_(next(blocks))

        return fill

    def _blocks(self) -> list[torch.Tensor]:
        blocks: list[torch.Tensor] = []

        def fill(block: torch.Tensor) -> None:
            block.fill_(float("nan")) if block.is_floating_point() else block.zero_()
            blocks.append(block)

        arguments, keywords = self.layout.make(torch.device("cpu"), fill)
        for tensor, value in zip(_tensors((*arguments, *keywords.values())), self.values, strict=True):
            thin(tensor).copy_(value)
        return blocks


def captured(
    site: str,
    operation: str,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    parameters: Mapping[str, torch.Tensor],
    source: Mapping[str, Any],
) -> CapturedCall:
    """Copy the tensors of a call to the CPU, before anything overwrites them."""
    layout = layout_of(operation, arguments, keywords)
    values = tuple(_copied(tensor) for tensor in _tensors((*arguments, *keywords.values())))
    kept = {name: _copied(parameter) for name, parameter in parameters.items()}
    return CapturedCall(site, layout, values, kept, dict(source))


def thin(tensor: torch.Tensor) -> torch.Tensor:
    """One element where an expanded dimension repeats it."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def to_bytes(call: CapturedCall) -> bytes:
    """The whole file."""
    names = iter(range(len(call.values)))
    document = {
        "schema": SCHEMA,
        "site": call.site,
        "operation": call.layout.operation,
        "arguments": [_to_json(argument, names) for argument in call.layout.arguments],
        "keywords": {name: _to_json(argument, names) for name, argument in call.layout.keywords},
        "memory_bytes": list(call.layout.memory_bytes),
        "source": dict(call.source),
    }
    tensors = {f"place.{index}": value for index, value in enumerate(call.values)}
    tensors |= {f"parameter.{name}": parameter for name, parameter in call.parameters.items()}
    return bytes(save(tensors, {METADATA_KEY: json.dumps(document, allow_nan=False)}))


def read_capture(path: Path) -> CapturedCall:
    """Read a captured call; a :class:`FuseproofError` says what is wrong with the file."""
    reason = not_regular_reason(path)
    if reason is not None:
        raise FuseproofError(f"{path} cannot be read: {reason}.", next_step=NEXT_STEP)
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        call = _from_json(json.loads(metadata[METADATA_KEY]), tensors)
        call.filler()
    except OSError as error:
        raise FuseproofError(f"{path} cannot be read: {error.strerror or error}.", next_step=NEXT_STEP) from error
    except (
        SafetensorError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, RecursionError, OverflowError
    ) as error:  # fmt: skip
        what = f"it has no {error}" if isinstance(error, KeyError) else (str(error).splitlines() or [""])[0]
        raise FuseproofError(f"{path} holds no captured call: {what.rstrip('.')}.", next_step=NEXT_STEP) from error
    return call


def is_capture(path: Path) -> bool:
    """Whether a captured call of ours stands at ``path``, as far as its header says."""
    if not_regular_reason(path) is not None:
        return False
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            document = json.loads((file.metadata() or {})[METADATA_KEY])
        return isinstance(document, dict) and document.get("schema") == SCHEMA
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError):
        return False


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    return thin(tensor.detach()).to("cpu", copy=True).contiguous()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)


def _to_json(value: Any, names: Iterator[int]) -> Any:
    if isinstance(value, tuple):
        return {"tuple": [_to_json(part, names) for part in value]}
    if not isinstance(value, Place):
        return {"value": value}
    return {
        "place": next(names),
        "memory": value.memory,
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "strides": list(value.strides),
        "offset": value.offset,
    }


def _from_json(document: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> CapturedCall:
    if document["schema"] != SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, and {SCHEMA} was expected")
    sizes = tuple(map(_whole, document["memory_bytes"]))
    kept = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    if any(size < 0 for size in sizes) or sum(sizes) > max(SMALLEST_LIMIT_BYTES, LARGEST_SPREAD * kept):
        raise ValueError(f"its memory sizes {list(sizes)} are not those of a call")
    values: list[torch.Tensor] = []

    def read(entry: Mapping[str, Any]) -> Any:
        if "tuple" in entry:
            return tuple(read(part) for part in entry["tuple"])
        if "value" in entry:
            return _plain(entry["value"])
        values.append(tensors[f"place.{entry['place']}"])
        place = Place(
            _whole(entry["memory"]),
            DTYPES[entry["dtype"]],
            tuple(map(_whole, entry["shape"])),
            tuple(map(_whole, entry["strides"])),
            _whole(entry["offset"]),
        )
        _check_extent(place, sizes)
        return place

    arguments = tuple(read(entry) for entry in document["arguments"])
    keywords = tuple((_name(name), read(entry)) for name, entry in document["keywords"].items())
    parameters = {name.removeprefix("parameter."): t for name, t in tensors.items() if name.startswith("parameter.")}
    layout = CallLayout(str(document["operation"]), arguments, keywords, sizes)
    return CapturedCall(str(document["site"]), layout, tuple(values), parameters, dict(document["source"]))


def _plain(value: Any) -> Any:
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError(f"an argument is a {type(value).__name__}; only tensors and numbers are kept")
    return value


def _name(name: str) -> str:
    if not name.isidentifier():
        raise ValueError(f"{name[:NUMBER_SHOWN]!r} is no name of an argument")
    return name


def _whole(value: Any) -> int:
    """What ``int`` would make of 2.5, "3", a truth value or an infinity was never captured."""
    if type(value) is not int or abs(value) > LARGEST_NUMBER:
        raise ValueError(f"{str(value)[:NUMBER_SHOWN]!r} stands where a whole number of 63 bits must")
    return value


def _check_extent(place: Place, sizes: tuple[int, ...]) -> None:
    """Whether a place lies inside its block of memory."""
    steps = list(zip(place.shape, place.strides, strict=True))
    last = place.offset + sum((size - 1) * stride for size, stride in steps if size)
    is_outside = (
        place.memory not in range(len(sizes)) or min(place.offset, *(part for step in steps for part in step), 0) < 0
    )
    if is_outside or ((last + 1) * place.dtype.itemsize > sizes[place.memory] and 0 not in place.shape):
        raise ValueError(f"a tensor of shape {list(place.shape)} does not lie inside its memory")
