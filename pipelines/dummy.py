"""``--load-format dummy``: a family's real pipeline on seeded random weights, made where it will run.

No file is read and nothing is downloaded. Models are built on the meta device, counted, and refused while nothing is
allocated yet if they do not fit; then each gets its memory on the target device and is drawn there
(:mod:`fuseproof.pipelines.dummy_weights`). Which classes those are, and the gains that make random weights behave like
a model, stand in :mod:`fuseproof.pipelines.dummy_longcat`, :mod:`fuseproof.pipelines.dummy_ernie`,
:mod:`fuseproof.pipelines.dummy_wan` and :mod:`fuseproof.pipelines.dummy_longlive2`. The gains are those of the tiny
checkpoint and do not depend on width, so 50 steps stay finite in bf16 and the picture depends on seed and prompt. The
tokenizer is the tiny checkpoint's too, one token a byte: where prompts are padded to a fixed length, only the chat
template around them gets longer than with real merges; where they keep their own, it is their bytes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from fuseproof.errors import FuseproofError
from fuseproof.pipelines import dummy_ernie, dummy_longcat, dummy_longlive2, dummy_wan, memory
from fuseproof.pipelines.dummy_geometry import DummyGeometry, geometry_of
from fuseproof.pipelines.dummy_weights import cast, materialise
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.libraries import silence_libraries
from fuseproof.pipelines.own_classes import library_class

GIB = 1024**3
META = torch.device("meta")

ARCHITECTURES: dict[str, ModuleType] = {
    "longcat": dummy_longcat,
    "ernie": dummy_ernie,
    "wan": dummy_wan,
    "longlive2": dummy_longlive2,
}


def load_dummy_pipeline(
    family: Family, *, dtype: torch.dtype, device: torch.device, seed: int = 0, geometry: DummyGeometry | None = None
) -> Any:
    """The diffusers pipeline of ``family`` in eval mode, every parameter drawn on ``device`` in ``dtype``.

    What a loaded model keeps in fp32 is fp32 here too.
    ``seed`` selects the weights; the same seed, device and dtype give the same bits. ``geometry`` replaces the released
    sizes, for tests. torch's global generators are not touched. A FuseproofError says how much memory is missing,
    before any is taken.
    """
    silence_libraries()
    sizes = geometry or geometry_of(family)
    architecture = ARCHITECTURES[sizes.architecture]
    models = build_on_meta(sizes)
    dtypes = {name: torch.float32 if name in family.float32_components else dtype for name in models}
    for name, model in models.items():
        cast(model, dtypes[name])
    needed = sum(one.numel() * one.itemsize for model in models.values() for one in model.parameters())
    free = memory.free_bytes(device)
    if needed > free:
        raise _too_little_memory(family, needed, dtype, device, f"only {free / GIB:.1f} GiB are free")
    try:
        for name, model in models.items():
            materialise(model, name, dtype=dtypes[name], device=device, seed=seed, gain=architecture.GAINS[name])
    except torch.OutOfMemoryError as error:
        raise _too_little_memory(family, needed, dtype, device, "the allocation failed") from error
    architecture.finish(models)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # drawing belongs to the load time, not to what runs next
    pipeline = library_class("diffusers", family.pipeline_class, "pipeline")(
        **architecture.other_components(family), **models, **family.pipeline_options
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def build_on_meta(geometry: DummyGeometry) -> dict[str, torch.nn.Module]:
    """Every model component of ``geometry`` on the meta device, in eval mode: shapes without memory."""
    builders = ARCHITECTURES[geometry.architecture].builders(geometry)
    with META:
        return {name: build().eval() for name, build in builders.items()}


def _too_little_memory(
    family: Family, needed: int, dtype: torch.dtype, device: torch.device, found: str
) -> FuseproofError:
    name = str(dtype).removeprefix("torch.")
    half = ""
    if dtype == torch.float32:
        half = f" --dtype bfloat16 needs {geometry_of(family).weight_bytes('bfloat16') / GIB:.1f} GiB."
    return FuseproofError(
        f"the dummy weights of {family.title} need {needed / GIB:.1f} GiB in {name} on {device}, and {found}.",
        next_step=f"Use a device with more memory, or --model-path embedded:{family.name}, which is small.{half}",
    )
