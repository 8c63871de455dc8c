"""Which sites know which class of component. A table of names: a family's module is imported when it is needed."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

FAMILIES = {
    "LongCatImageTransformer2DModel": "fuseproof.fastpaths.sites.longcat_image",
    "ErnieImageTransformer2DModel": "fuseproof.fastpaths.sites.ernie_image",
    "WanTransformer3DModel": "fuseproof.fastpaths.sites.wan_transformer",
    "LongLive2Transformer3DModel": "fuseproof.fastpaths.sites.longlive2_transformer",
    "AutoencoderKL": "fuseproof.fastpaths.sites.autoencoder_kl",
    "AutoencoderKLFlux2": "fuseproof.fastpaths.sites.autoencoder_kl",
    "AutoencoderKLWan": "fuseproof.fastpaths.sites.autoencoder_kl_wan",
}


def family_of(component: Any) -> ModuleType | None:
    """The sites of ``component``'s class, or None where no site knows it."""
    name = FAMILIES.get(type(component).__name__)
    return importlib.import_module(name) if name is not None else None


def kernels_of_site(family: Any) -> dict[str, tuple[str, ...]]:
    """The kernels (``fastpaths/kernels/<name>.py``) of each site of ``family`` that has any, its loop's included."""
    loop = {name: (name,) for name in getattr(family, "LOOP_OPERATIONS", ())}
    return {**getattr(family, "KERNELS_OF_SITE", {}), **loop}


def kernel_module(name: str) -> ModuleType:
    """The module of the kernel ``name``; ModuleNotFoundError names what is missing, triton included."""
    return importlib.import_module(f"fuseproof.fastpaths.kernels.{name}")
