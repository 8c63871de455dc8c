"""What the sites of a family meet in real requests: rows of text and picture, and one forward at those sizes.

Models are built on the meta device, so nothing here needs weights, memory or a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from fuseproof.errors import UsageError
from fuseproof.fastpaths.call_layouts import CallLayout, Place, layout_of
from fuseproof.fastpaths.check_values import NOT_FINITE
from fuseproof.fastpaths.families import family_of
from fuseproof.fastpaths.installation import Installation
from fuseproof.fastpaths.tracing import Run, SiteCall, trace, trace_modules, with_stand_ins
from fuseproof.fastpaths.user_sites import UserSite
from fuseproof.fastpaths.verification import Case, cases_for
from fuseproof.pipelines.family import Family
from fuseproof.pipelines.fastpath_forwards import (
    LARGEST_CHUNK,
    NARROW,
    changes_for_width,
    dtype_of,
    eager_forward,
    forward_inputs,
    head_width,
    prepared_calls,
    quantized_parts,
)
from fuseproof.pipelines.fastpath_vae_workloads import small_vae_calls, vae_calls
from fuseproof.pipelines.skeletons import Skeleton, skeleton_of

META = torch.device("meta")


@dataclass(frozen=True)
class Workload:
    """One forward of a transformer: ``batch`` samples of ``text_rows`` + ``image_rows`` tokens."""

    name: str
    text_rows: int
    image_rows: int
    batch: int = 1


LENGTHS = tuple(Workload(f"{rows} rows", 1, rows - 1) for rows in (512, 859, 4096, 8374))
"""The lengths of single streams, where a model without one buffer for both would run them."""

ODD = (
    Workload("1+1 rows", 1, 1),
    Workload("3+334 rows", 3, 334),
    Workload("2 samples of 7+36 rows", 7, 36, batch=2),
)
SMALL = (Workload("2+3 rows", 2, 3), Workload("2 samples of 3+6 rows", 3, 6, batch=2))
"""For Triton's interpreter, which needs milliseconds a row."""

OTHER_NAN_ON_A_CPU = frozenset({"group_norm_silu"})
"""Kernels whose eager chain gives a NaN another sign there than on a card."""
ODD_SIZE, EDITED_SIZE = (80, 48), (1264, 848)
EMBEDDED_TEXT_ROWS = 24
"""A short prompt in one token a byte, where prompts keep their own length."""

REAL: Mapping[str, tuple[Workload, ...]] = MappingProxyType(
    {
        "longcat-image": (Workload("1024x1024", 512, 4096), Workload("512x512", 512, 1024)),
        "longcat-image-edit": (Workload("1264x848", 859, 8374),),
        "longcat-image-edit-turbo": (Workload("1264x848", 859, 8374),),
        "ernie-image": (Workload("1024x1024, guided", 77, 4096, batch=2), Workload("1024x1024", 77, 4096)),
        "ernie-image-turbo": (Workload("1024x1024", 77, 4096),),
        "wan2.2-ti2v-5b": (Workload("1280x704, 121 frames", 512, 27280), Workload("832x480, 61 frames", 512, 6240)),
        "wan2.1-t2v-1.3b": (Workload("832x480, 81 frames", 512, 32760),),
        "longlive2": (Workload("832x480, a chunk", 512, 3120), Workload("1280x704, a chunk", 512, 7040)),
    }
)
"""By family name. Editing adds the input picture's tokens to both streams. ERNIE-Image takes a prompt at its own length
(77 is a long sentence), and both guidance branches in one batch. LongLive 2 runs a chunk of 8 latent frames at a time.
"""


def real_workloads(family: Family, *, is_embedded: bool) -> tuple[Workload, ...]:
    """The sizes that requests of ``family`` have; the embedded checkpoints draw smaller pictures."""
    if not is_embedded:
        return REAL[family.name]
    width, height = family.embedded_width, family.embedded_height
    rows = (width // family.size_multiple) * (height // family.size_multiple)
    if family.embedded_frames is not None:
        is_chunked = family.frame_remainder > 1
        rows *= LARGEST_CHUNK if is_chunked else (family.embedded_frames - 1) // family.frame_multiple + 1
    images = 2 * rows if family.takes_image else rows
    return (Workload(f"{width}x{height}", family.text_tokens or EMBEDDED_TEXT_ROWS, images),)


def transformer_run(transformer: Any, workload: Workload, dtype: torch.dtype = torch.bfloat16) -> Run:
    """One forward of ``transformer`` on the meta device, through its rewritten form where there is one.

    Where tokens can be told their timesteps, the rewritten form runs both ways: told alike, and told apart.
    """
    inputs = forward_inputs(transformer, workload.batch, workload.text_rows, workload.image_rows, dtype)

    def run(installation: Installation) -> Any:
        target = installation.graph_target
        if target is None:
            return eager_forward(transformer, inputs)
        core = getattr(target.owner, target.attribute)
        return [core(*prepared) for prepared in prepared_calls(target.owner, inputs)][-1]

    return run


def planned_cases(model: Skeleton, user_sites: Sequence[UserSite], device: torch.device) -> list[Case]:
    """What is checked on a card: real sizes and lengths with ordinary values, odd sizes with every kind of values."""
    lengths = () if model.is_embedded or model.family.makes_video else LENGTHS  # a clip's tokens make a grid
    usual = (*real_workloads(model.family, is_embedded=model.is_embedded), *lengths)
    plan = [(workload, False) for workload in usual] + [(workload, True) for workload in ODD]
    pictures = [(real_size(model), False), (ODD_SIZE, True)]
    return _cases(model, user_sites, plan) + _vae_cases(model, pictures, device)


def small_cases(model: Skeleton, user_sites: Sequence[UserSite], device: torch.device) -> list[Case]:
    """A few rows of a narrow transformer with every kind of values, for Triton's interpreter.

    A whole VAE takes minutes there, so its kernels are called by themselves, on a few elements.
    """
    changes = NARROW[type(model.transformer).__name__]
    narrow = replace(model, transformer=_changed(model.transformer, changes))
    pictures = cases_for(small_vae_calls(model.vae), "a few elements", edge_values=True)
    return _cases(narrow, user_sites, [(workload, True) for workload in SMALL]) + [
        case
        for case in pictures
        if case.call.layout.operation not in OTHER_NAN_ON_A_CPU or case.values not in NOT_FINITE
    ]


def real_size(model: Skeleton) -> tuple[int, int]:
    """Width and height of a usual picture."""
    family = model.family
    if model.is_embedded:
        return family.embedded_width, family.embedded_height
    return EDITED_SIZE if family.takes_image else (family.default_width, family.default_height)


def meta_model(name: str) -> Skeleton:
    """The model called ``name`` as shapes in bf16 (:func:`fuseproof.pipelines.skeletons.skeleton_of`)."""
    model = skeleton_of(name)
    return replace(
        model, transformer=in_dtype(model.transformer, torch.bfloat16), vae=in_dtype(model.vae, torch.bfloat16)
    )


def widened(transformer: Any, width: int) -> Any:
    """The same meta transformer ``width`` wide. A :class:`UsageError` where its heads cannot make that width."""
    head = head_width(transformer)
    if width % head or width < head:
        raise UsageError(
            f"--shape asks for a width of {width}, and heads are {head} wide; a multiple of {head} is needed."
        )
    return _changed(transformer, changes_for_width(transformer, width // head))


def _changed(component: Any, changes: Mapping[str, Any]) -> Any:
    with META:
        changed = type(component).from_config({**component.config, **changes}).eval()
    return in_dtype(changed, torch.bfloat16)


def in_dtype(component: Any, dtype: torch.dtype) -> Any:
    """A meta component in ``dtype``, but for what its class keeps in fp32 when it is loaded."""
    kept = frozenset(getattr(component, "_keep_in_fp32_modules", None) or ())
    for path, module in component.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_floating_point():
                kind = dtype if kept.isdisjoint((*path.split("."), name)) else torch.float32
                module._parameters[name] = type(parameter)(parameter.to(kind), requires_grad=False)
    return component


def _cases(model: Skeleton, user_sites: Sequence[UserSite], plan: Sequence[tuple[Workload, bool]]) -> list[Case]:
    return [
        case
        for workload, edge_values in plan
        for case in cases_for(
            site_calls(model.transformer, workload, model.family, user_sites), workload.name, edge_values=edge_values
        )
    ]


def _vae_cases(model: Skeleton, plan: Sequence[tuple[tuple[int, int], bool]], device: torch.device) -> list[Case]:
    return [
        case
        for (width, height), edge_values in plan
        for case in cases_for(
            vae_calls(model.vae, width, height, device, encodes=_encodes(model)),
            f"vae {width}x{height}",
            edge_values=edge_values,
        )
    ]


def _encodes(model: Skeleton) -> bool:
    """Whether a request may bring an image, which the VAE then encodes."""
    return model.family.takes_image or model.family.accepts_image


def real_calls(model: Skeleton, user_sites: Sequence[UserSite], device: torch.device) -> list[tuple[str, SiteCall]]:
    """The calls of usual requests, each with its workload's name."""
    found = [
        (workload.name, call)
        for workload in real_workloads(model.family, is_embedded=model.is_embedded)
        for call in site_calls(model.transformer, workload, model.family, user_sites)
    ]
    width, height = real_size(model)
    pictures = vae_calls(model.vae, width, height, device, encodes=_encodes(model))
    return found + [(f"vae {width}x{height}", call) for call in pictures]


def site_calls(
    transformer: Any, workload: Workload, family: Family, user_sites: Sequence[UserSite] = ()
) -> list[SiteCall]:
    """Every distinct call at a site of the meta ``transformer`` in a step of ``workload``; sites of one's own last."""
    run = transformer_run(transformer, workload, dtype_of(transformer))
    calls = trace(transformer, run)
    calls += dict.fromkeys(alone for call in calls if (alone := _residual_alone(call)) is not None)
    calls += _loop_calls(transformer, workload, family) + _quantized_calls(transformer, workload)
    own = with_stand_ins(calls, user_sites)
    on_modules = [site for site in user_sites if site.modules is not None]
    return calls + own + (trace_modules(transformer, on_modules, run) if on_modules else [])


def _residual_alone(call: SiteCall) -> SiteCall | None:
    """The residual of a block whose following norm is not fused with it: the same tensors, fewer of them."""
    if call.layout.operation == "table_gated_residual_table_layernorm_modulate":
        kept = call.layout.arguments[:6]
        memories = {place.memory for place in kept if isinstance(place, Place)}  # numbered as they appear
        sizes = call.layout.memory_bytes[: max(memories) + 1]
        return SiteCall(call.site, CallLayout("table_gated_residual", kept, (), sizes))
    if call.layout.operation != "gated_residual_layernorm_modulate":
        return None
    residual, update, gate, _, _, _, text_gate, _, _, text_rows = call.layout.arguments
    kept = (residual, update, gate, text_gate, text_rows)
    layout = replace(call.layout, operation="gated_residual", arguments=kept, keywords=(("out", residual),))
    return SiteCall(call.site, layout)


def _quantized_calls(transformer: Any, workload: Workload) -> list[SiteCall]:
    """What ``fp8_linear`` quantises."""
    used = getattr(family_of(transformer), "HELPER_KERNELS", {})
    rows = workload.text_rows + workload.image_rows
    calls = quantized_parts(transformer, workload.batch, rows, dtype_of(transformer))
    return [
        SiteCall(site, layout_of("row_quantize", parts, {}))
        for site, kernels in used.items()
        if "row_quantize" in kernels
        for parts in calls
    ]


def _loop_calls(transformer: Any, workload: Workload, family: Family) -> list[SiteCall]:
    """What the denoise loop calls itself: the guided step, with both branches and with one."""
    if "guidance_step" not in getattr(family_of(transformer), "LOOP_OPERATIONS", ()):
        return []
    dtype, channels = next(transformer.parameters()).dtype, transformer.config.in_channels
    rows = workload.image_rows // 2 if family.takes_image and workload.image_rows > 1 else workload.image_rows

    def predicted() -> torch.Tensor:
        return torch.empty(workload.batch, workload.image_rows, channels, dtype=dtype, device=META)[:, :rows]

    latents = torch.empty(workload.batch, rows, channels, dtype=dtype, device=META)
    step = torch.empty(4, dtype=torch.float32, device=META)[0]
    scale, renormalises = family.default_guidance_scale, family.renormalises_guidance
    both = (predicted(), predicted(), latents, step, max(scale, 4.5), renormalises, 0.0)
    one = (predicted(), None, latents, step, scale, renormalises, 0.0)
    return [SiteCall("guidance_step", layout_of("guidance_step", call, {})) for call in (both, one)]
