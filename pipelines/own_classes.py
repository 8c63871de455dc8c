"""Classes by the names that checkpoints write: the libraries' own, and ours of models that diffusers does not have."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fuseproof.errors import FuseproofError

OURS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("diffusers", "LongLive2Pipeline"): "fuseproof.pipelines.longlive2_pipeline",
        ("diffusers", "LongLive2Transformer3DModel"): "fuseproof.pipelines.longlive2_model",
    }
)
"""By library and class, as ``model_index.json`` names them: the module of ours that has the class."""


def library_class(library: str, name: str, component: str) -> Any:
    """The class ``name`` of ``library``; a FuseproofError, which names the ``component``, where nobody has it."""
    found = getattr(importlib.import_module(OURS.get((library, name), library)), name, None)
    if found is None:
        raise FuseproofError(
            f"The installed {library} has no class {name}, which the {component} needs.",
            next_step=f"Install a version of {library} that has it.",
        )
    return found
