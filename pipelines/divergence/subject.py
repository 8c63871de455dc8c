"""What is watched: the models of one pipeline by name, which of them denoises, and what advances the latents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

DENOISERS = ("transformer", "unet", "prior")
"""Components that are called once for each guidance branch of a step, the first that a pipeline has."""


@dataclass(frozen=True)
class Subject:
    """One loaded pipeline. ``names`` maps the id of every module to ``component.path``."""

    pipe: Any
    names: Mapping[int, str]
    modules: Mapping[str, nn.Module]
    denoiser: nn.Module | None
    denoiser_name: str
    blocks: tuple[str, ...]
    """The denoiser's repeated blocks, in the order in which they are called."""

    @classmethod
    def of(cls, pipe: Any) -> Subject:
        """Everything of ``pipe`` that may be watched; nothing is touched."""
        components = {name: part for name, part in _components(pipe).items() if isinstance(part, nn.Module)}
        modules: dict[str, nn.Module] = {}
        for component, model in components.items():
            for path, module in model.named_modules():
                modules.setdefault(f"{component}.{path}" if path else component, module)
        names: dict[int, str] = {}
        for name, module in modules.items():
            names.setdefault(id(module), name)
        denoiser = next((name for name in DENOISERS if name in components), "")
        blocks = tuple(f"{denoiser}.{path}" for path in _blocks(components[denoiser])) if denoiser else ()
        return cls(pipe, names, modules, components.get(denoiser), denoiser, blocks)

    @property
    def scheduler(self) -> Any:
        """What steps the latents; None for a pipeline without one."""
        return getattr(self.pipe, "scheduler", None)


def _components(pipe: Any) -> Mapping[str, Any]:
    found = getattr(pipe, "components", None)
    return found if isinstance(found, Mapping) else vars(pipe)


def _blocks(model: nn.Module) -> Iterator[str]:
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleList):
            yield from (f"{name}.{index}" for index in range(len(child)))
