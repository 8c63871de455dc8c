"""What Wan's configs must say so that diffusers' pipeline runs the model that the folder holds. Torch-free.

``WanPipeline`` (diffusers 0.42.1) computes with all of this and looks at none of it: a scheduler made for another kind
of prediction ends in noise; statistics of latents that the VAE's config leaves out become those of another VAE;
channels that do not fit, and a scheduler that wants a number of tokens, fail deep inside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fuseproof.errors import FuseproofError

if TYPE_CHECKING:
    from fuseproof.pipelines.checkpoints import Checkpoint

SCHEDULER: Mapping[str, object] = {
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "use_dynamic_shifting": False,
}
STATISTICS = ("latents_mean", "latents_std")
WIDTH_OF_14B = 5120
DEFAULT_Z_DIM = 16


def refuse_unfit_configs(checkpoint: Checkpoint) -> None:
    """Raise a FuseproofError for the first component whose config the pipeline would take for something else."""
    scheduler, transformer, vae = (checkpoint.config(name) for name in ("scheduler", "transformer", "vae"))
    steps = _scheduler_faults(scheduler) if checkpoint.family.is_in_diffusers else ()  # else the model's own
    faults = (*steps, *_vae_faults(vae), *_transformer_faults(transformer, vae))
    for component, fault in faults:
        raise FuseproofError(
            f"The {component} config of {checkpoint.folder} {fault}.",
            next_step=f"{checkpoint.family.title} is published as {checkpoint.family.model_ids[0]}.",
        )


def _scheduler_faults(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    defaults = {"prediction_type": "epsilon", "use_flow_sigmas": False, "use_dynamic_shifting": False}
    for key, expected in SCHEDULER.items():
        found = config.get(key, defaults[key])
        if found != expected:
            yield "scheduler", f"has {key} {json.dumps(found)}; {json.dumps(expected)} was expected"
    shift = config.get("flow_shift", 1.0)
    if not _is_number(shift) or shift <= 0:
        yield "scheduler", f"has flow_shift {json.dumps(shift)[:40]}; a positive number was expected"


def _vae_faults(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    channels = config.get("z_dim", DEFAULT_Z_DIM)
    for key in STATISTICS:
        values = config.get(key)
        if values is None and channels == DEFAULT_Z_DIM:
            continue  # the class's own, which are Wan 2.1's
        if not isinstance(values, list) or len(values) != channels or not all(map(_is_number, values)):
            count = f"{len(values)} values" if isinstance(values, list) else json.dumps(values)[:40]
            yield "vae", f"has {key} {count}; a number for each of its {channels} channels was expected"
        elif key == "latents_std" and min(values) <= 0:
            yield "vae", f"has {min(values)} in {key}; positive numbers were expected"


def _transformer_faults(config: Mapping[str, Any], vae: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    channels = vae.get("z_dim", DEFAULT_Z_DIM)
    for key in ("in_channels", "out_channels"):
        found = config.get(key, DEFAULT_Z_DIM)
        if found != channels:
            yield "transformer", f"has {key} {json.dumps(found)}, and the VAE has {channels}"
    if config.get("image_dim") is not None:
        yield "transformer", "has an image_dim: it needs an image encoder, which no model that runs here has"
    heads, width = config.get("num_attention_heads", 40), config.get("attention_head_dim", 128)
    if isinstance(heads, int) and isinstance(width, int) and heads * width == WIDTH_OF_14B:
        yield "transformer", f"is {WIDTH_OF_14B} channels wide: a model of 14B, which does not run here yet"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
