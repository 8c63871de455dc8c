"""What besides its inputs decides what a module computes: weights and plain settings, its own and those below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from fuseproof.pipelines.divergence.calls import in_hexadecimal
from fuseproof.pipelines.divergence.digests import digest
from fuseproof.pipelines.divergence.subject import Subject

PLAIN = (bool, int, float, str, type(None))
FAST_PATH = "Replacement"
OPERATION_OF = " › "
"""Between a module's name and that of an operation within it."""
STEPPING = frozenset({"scheduler.step", "guidance and step", "solver step"})
"""Calls that step the latents."""
NOT_OF_THE_MODEL = frozenset({"training", "_is_hf_initialized"})


def facts_of(subject: Subject, label: str) -> dict[str, Any]:
    """``weights`` (parameter → digest) and ``settings`` (name → text) behind ``label``.

    Of a module: its own, and the settings of every module below it, by path (``attn.processor._attention_backend``):
    what a rewritten block computes depends on all of them, and none is called. Of a block, the weights below as well.
    Of an operation, those of the module that it runs in. Of what steps the latents, the scheduler's configuration.
    Empty where nothing is known.
    """
    if label in STEPPING:
        return {"weights": {}, "settings": _configuration(subject.scheduler)}
    owner = label.split(OPERATION_OF, 1)[0]
    module = subject.modules.get(owner)
    if module is None:
        return {"weights": {}, "settings": {}}
    below = {f"{path}." if path else "": part for path, part in module.named_modules()}
    weighed = below if owner in subject.blocks else {"": module}
    return {
        "weights": {f"{path}{name}": found for path, part in weighed.items() for name, found in _weights(part)},
        "settings": {f"{path}{name}": text for path, part in below.items() for name, text in _settings(part)},
    }


def _configuration(scheduler: Any) -> dict[str, str]:
    config = getattr(scheduler, "config", None)
    if config is None:
        return {}
    return {"class": type(scheduler).__name__} | {name: str(value) for name, value in dict(config).items()}


def _weights(module: nn.Module) -> Iterator[tuple[str, str]]:
    for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
        found = digest(tensor)
        if found is not None:
            yield name, in_hexadecimal(int(found[0]))


def _settings(module: nn.Module) -> Iterator[tuple[str, str]]:
    yield "class", type(module).__name__
    yield from _plain_attributes(vars(module), "")
    processor = getattr(module, "processor", None)
    if processor is not None:
        yield "processor", type(processor).__name__
        yield from _plain_attributes(getattr(processor, "__dict__", {}), "processor.")
    forward = vars(module).get("forward")
    if forward is not None and type(forward).__name__ != FAST_PATH:  # its gate tells more
        yield "forward", type(forward).__name__


def _plain_attributes(attributes: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in attributes.items():
        if name not in NOT_OF_THE_MODEL and (isinstance(value, PLAIN) or _is_enum(value)):
            yield f"{prefix}{name}", str(getattr(value, "value", value))


def _is_enum(value: Any) -> bool:
    return isinstance(getattr(value, "value", None), PLAIN) and hasattr(value, "name")
