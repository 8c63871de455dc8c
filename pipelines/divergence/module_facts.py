"""What besides its inputs decides what a module computes: its own weights and its plain settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from fuseproof.pipelines.divergence.calls import in_hexadecimal
from fuseproof.pipelines.divergence.digests import digest
from fuseproof.pipelines.divergence.subject import Subject

PLAIN = (bool, int, float, str, type(None))
FAST_PATH = "Replacement"
NOT_OF_THE_MODEL = frozenset({"training", "_is_hf_initialized"})


def facts_of(subject: Subject, label: str) -> dict[str, Any]:
    """``weights`` (parameter → digest, the module's own only) and ``settings`` (name → text) behind ``label``.

    Of ``scheduler.step`` the settings are the scheduler's configuration. Empty where nothing is known.
    """
    if label == "scheduler.step":
        config = {name: str(value) for name, value in dict(subject.scheduler.config).items()}
        return {"weights": {}, "settings": {"class": type(subject.scheduler).__name__} | config}
    module = subject.modules.get(label)
    if module is None:
        return {"weights": {}, "settings": {}}
    return {"weights": dict(_weights(module)), "settings": dict(_settings(module))}


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
