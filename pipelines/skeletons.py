"""A model's transformer and VAE as shapes alone, on the meta device: from a checkpoint's configs, or as released."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fuseproof.errors import FuseproofError, UsageError
from fuseproof.pipelines.checkpoints import Checkpoint, check_checkpoint
from fuseproof.pipelines.dummy import build_on_meta
from fuseproof.pipelines.dummy_geometry import geometry_of
from fuseproof.pipelines.embedded import PREFIX, resolve_model
from fuseproof.pipelines.families import FAMILIES
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.hub import cached_snapshot, is_repository_id
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.own_classes import library_class

COMPONENTS = ("transformer", "vae")


@dataclass
class Skeleton:
    """What a mount looks at, as a pipeline object has it. ``name`` is how the user called the model."""

    name: str
    family: Family
    transformer: Any
    vae: Any
    checkpoint: Checkpoint | None

    @property
    def is_embedded(self) -> bool:
        """Whether this is a small checkpoint of ours, which draws smaller pictures."""
        return self.name.startswith(PREFIX)


def skeleton_of(name: str) -> Skeleton:
    """``name`` is a family or its published id (the released geometry), ``embedded:FAMILY``, or a model folder.

    Another owner/name is looked up in the hub's own cache. Nothing is downloaded and no weight is read. Raises
    :class:`FuseproofError` for an unknown name, :class:`UsageError` for one that would have to be fetched.
    """
    silence_libraries()
    family = released_family(name)
    if family is not None:
        models: Mapping[str, Any] = build_on_meta(geometry_of(family))
        return Skeleton(name, family, models["transformer"], models["vae"], None)
    checkpoint = check_checkpoint(_folder_of(name))
    transformer, vae = (_from_config(checkpoint, component) for component in COMPONENTS)
    return Skeleton(name, checkpoint.family, transformer, vae, checkpoint)


def released_family(name: str) -> Family | None:
    """The family that ``name`` stands for by its own or a published name."""
    return next((family for family in FAMILIES.values() if name in (family.name, *family.model_ids)), None)


def _folder_of(name: str) -> Path:
    if not is_repository_id(name) or Path(name).expanduser().exists():
        return resolve_model(name, None).folder
    snapshot = cached_snapshot(name)
    if snapshot is None:
        raise UsageError(
            f"{name} is not in this machine's hub cache, and nothing is downloaded to answer this.",
            next_step="Name a family or its published id, or fetch the model first: generate --model-path does.",
        )
    return snapshot.folder


def _from_config(checkpoint: Checkpoint, component: str) -> Any:
    library, class_name = checkpoint.components[component]
    component_class = library_class(library, class_name, component)
    try:
        with torch.device("meta"):
            return component_class.from_config(dict(checkpoint.config(component))).eval()
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise FuseproofError(
            f"The {component} of {checkpoint.folder} cannot be built from its config: {str(error).splitlines()[0]}.",
            next_step="Check that the installed diffusers is the one the checkpoint was made for.",
        ) from error
