"""The names by which launches are told where they belong: of a loaded pipeline's modules, files, blocks and sites."""

from __future__ import annotations

import inspect
from typing import Any

from fuseproof.fastpaths import Mount
from fuseproof.fastpaths.families import family_of, kernels_of_site
from fuseproof.fastpaths.mounted import COMPONENTS
from fuseproof.pipelines.divergence.subject import Subject
from fuseproof.pipelines.profiling.launches import PIPELINE, TEXT_ENCODER, TRANSFORMER, VAE, Names

BLOCKS_SUFFIX = "_blocks"


def names_of(subject: Subject, mounted: Mount) -> Names:
    """Everything that joining needs to know of a pipeline; nothing of it is touched or held."""
    modules = {}
    files = {}
    for label, module in subject.modules.items():
        component, _, path = label.partition(".")
        modules[id(module)] = component_word(component), path
        if not path:
            file = _source_file(module)
            if file is not None:
                files[file] = component_word(component)
    blocks = tuple((label.partition(".")[2], type(subject.modules[label]).__name__) for label in subject.blocks)
    components = site_components(subject.pipe)
    block_sites = {name for name in (*components, *mounted.gates) if name.endswith(BLOCKS_SUFFIX)}
    family = family_of(subject.denoiser) if subject.denoiser is not None else None
    block_sites |= set(getattr(family, "APPROXIMATE_SITES", ()))
    return Names(
        modules,
        files,
        blocks,
        None if subject.denoiser is None else id(subject.denoiser),
        frozenset(block_sites),
        components,
        weights_of(subject),
    )


def weights_of(subject: Subject) -> dict[int, tuple[str, str, str]]:
    """By where a parameter's storage begins, the module whose it is; storages that several share are left out.

    A product may be made of a module's weight without the module's own call; this tells whose it is all the same.
    """
    found: dict[int, tuple[str, str, str]] = {}
    shared: set[int] = set()
    for label, module in subject.modules.items():
        component, _, path = label.partition(".")
        owner = component_word(component), path, type(module).__name__
        for parameter in module.parameters(recurse=False):
            address = 0 if parameter.is_meta else parameter.untyped_storage().data_ptr()
            if address and found.setdefault(address, owner) != owner:
                shared.add(address)
    return {address: owner for address, owner in found.items() if address not in shared}


def component_word(name: str) -> str:
    """Of a pipeline's component its word in a profile: whatever encodes what a request says is a text encoder."""
    if name.startswith((TRANSFORMER, "unet", "prior")):
        return TRANSFORMER
    return VAE if name.startswith(VAE) else TEXT_ENCODER


def site_components(pipe: Any) -> dict[str, str]:
    """In which component each built-in site works; what the loop calls itself belongs to the pipeline."""
    found: dict[str, str] = {}
    for name in COMPONENTS:
        family = family_of(getattr(pipe, name, None))
        if family is not None:
            loop = getattr(family, "LOOP_OPERATIONS", ())
            found |= {site: PIPELINE if site in loop else component_word(name) for site in family.SITES}
    return found


def site_kernels(pipe: Any) -> dict[str, tuple[str, ...]]:
    """The kernels of each built-in site that has any."""
    families = [family_of(getattr(pipe, name, None)) for name in COMPONENTS]
    return {site: kernels for family in families if family for site, kernels in kernels_of_site(family).items()}


def _source_file(module: Any) -> str | None:
    try:
        return inspect.getfile(type(module)).replace("\\", "/").rpartition("/")[2]
    except (OSError, TypeError):
        return None
