"""What Wan's configs must say so that diffusers' pipeline runs the model that the folder holds. Torch-free.

``WanPipeline`` (diffusers 0.42.1) computes with all of this and looks at none of it: a scheduler made for another kind
of prediction ends in noise, one whose last step has no finite value in NaN; statistics of latents that the VAE's config
leaves out become those of another VAE; scale factors that are not those of its blocks make a clip of another size or
length; channels that do not fit, and a scheduler that wants a number of tokens, fail deep inside.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.config_numbers import SHOWN_CHARACTERS, NumberRule

if TYPE_CHECKING:
    from fuseproof.pipelines.checkpoints import Checkpoint

SCHEDULER: Mapping[str, tuple[object, object]] = MappingProxyType(
    {
        "prediction_type": ("epsilon", "flow_prediction"),
        "use_flow_sigmas": (False, True),
        "use_dynamic_shifting": (False, False),
        "predict_x0": (True, True),
        "use_beta_sigmas": (False, False),
        "use_exponential_sigmas": (False, False),
        "solver_p": (None, None),
    }
)
"""What UniPC's config must say, behind what the class takes for a key that is absent. Sigmas above 1 have no logarithm
here, a solver of another kind is no JSON, and a noise prediction is not made of a velocity."""
SCHEDULER_CHOICES: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "solver_type": ("bh2", "bh1"),
        "final_sigmas_type": ("zero", "sigma_min"),
        "timestep_spacing": ("linspace", "leading", "trailing"),
        "lower_order_final": (True, False),
        "thresholding": (False, True),
        "use_karras_sigmas": (False, True),
        "rescale_betas_zero_snr": (False, True),
    }
)
"""What it may say, the class's own value first."""
SCHEDULER_NUMBERS = (
    NumberRule("flow_shift", "a number from 0.01 to 1,000", smallest=0.01, largest=1000),
    NumberRule("solver_order", "a whole number from 1 to 3", is_whole=True, smallest=1, largest=3),
    NumberRule("num_train_timesteps", "2 or more", is_whole=True, smallest=2),
    NumberRule("steps_offset", "a whole number", is_whole=True),
    NumberRule("shift_terminal", "null or a number from 0 to below 1", allows_null=True, smallest=0, below=1),
    NumberRule("sigma_min", "null or a positive number", allows_null=True, is_positive=True),
    NumberRule("sigma_max", "null or a positive number", allows_null=True, is_positive=True),
    NumberRule("dynamic_thresholding_ratio", "a number from 0 to 1", smallest=0, largest=1),
    NumberRule("sample_max_value", "a positive number", is_positive=True),
)
"""Published shifts are 1 to 17: far outside, sigmas are no longer told apart in fp32."""
STATISTICS = ("latents_mean", "latents_std")
WIDTH_OF_14B = 5120
DEFAULT_Z_DIM = 16
DEFAULT_SCALES: Mapping[str, int] = MappingProxyType({"scale_factor_spatial": 8, "scale_factor_temporal": 4})
COLOURS = 3
PATCH = (1, 2, 2)
"""Frames, rows and columns of a token: timesteps are told to the tokens of no other kind."""


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


def vae_scale_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """How the config of an ``AutoencoderKLWan`` contradicts its own blocks in what it says of sizes and lengths.

    The pipelines compute the latents' shape from ``scale_factor_spatial`` and ``scale_factor_temporal``; what comes of
    them is the doing of the blocks and of ``patch_size``.
    """
    widths, doubles = config.get("dim_mult", [1, 2, 4, 4]), config.get("temperal_downsample", [False, True, True])
    patch = config.get("patch_size")
    if not isinstance(widths, list | tuple) or not widths:
        yield f"has dim_mult {_shown(widths)}; a factor for each of its levels was expected"
    elif not isinstance(doubles, list | tuple) or [type(one) for one in doubles] != [bool] * (len(widths) - 1):
        yield (
            f"has temperal_downsample {_shown(doubles)}; true or false for each of its {len(widths) - 1} scalings was "
            "expected"
        )
    elif patch is not None and (type(patch) is not int or patch < 1):
        yield f"has patch_size {_shown(patch)}; null or a positive whole number was expected"
    else:
        side = patch or 1
        for key in ("in_channels", "out_channels"):
            found = config.get(key, COLOURS)
            if found != COLOURS * side**2:
                yield f"has {key} {_shown(found)}; {COLOURS * side**2} was expected for patch_size {_shown(patch)}"
        made = {"scale_factor_spatial": 2 ** (len(widths) - 1) * side, "scale_factor_temporal": 2 ** sum(doubles)}
        for key, scale in made.items():
            found = config.get(key, DEFAULT_SCALES[key])
            if type(found) is not int or found != scale:
                yield f"has {key} {_shown(found)}; its blocks and patches scale by {scale}"


def _scheduler_faults(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, (default, expected) in SCHEDULER.items():
        found = config.get(key, default)
        if found != expected:
            yield "scheduler", f"has {key} {_shown(found)}; {json.dumps(expected)} was expected"
    for key, choices in SCHEDULER_CHOICES.items():
        found = config.get(key, choices[0])
        if found not in choices:
            allowed = " or ".join(json.dumps(choice) for choice in choices)
            yield "scheduler", f"has {key} {_shown(found)}; {allowed} was expected"
    for rule in SCHEDULER_NUMBERS:
        if rule.key in config and not rule.allows(config[rule.key]):
            yield "scheduler", f"has {rule.key} {_shown(config[rule.key])}; {rule.expected} was expected"
    uncorrected = config.get("disable_corrector", [])
    if not isinstance(uncorrected, list) or any(type(step) is not int for step in uncorrected):
        yield "scheduler", f"has disable_corrector {_shown(uncorrected)}; a list of whole numbers was expected"
    yield from (("scheduler", fault) for fault in _faults_of_last_step(config))


def _faults_of_last_step(config: Mapping[str, Any]) -> Iterator[str]:
    """The last sigma is 0, or the one before again: what divides by that difference makes NaN of all latents."""
    if config.get("solver_type", "bh2") == "bh1" and config.get("final_sigmas_type", "zero") == "zero":
        yield 'has solver_type "bh1" and final_sigmas_type "zero", whose last step is not finite; "bh2" was expected'
    if not config.get("lower_order_final", True) and config.get("solver_order", 2) != 1:
        yield "has lower_order_final false, whose last step is not finite; true was expected"


def _vae_faults(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from (("vae", fault) for fault in vae_scale_faults(config))
    channels = config.get("z_dim", DEFAULT_Z_DIM)
    for key in STATISTICS:
        values = config.get(key)
        if values is None and channels == DEFAULT_Z_DIM:
            continue  # the class's own, which are Wan 2.1's
        if not isinstance(values, list) or len(values) != channels or not all(map(_is_number, values)):
            count = f"{len(values)} values" if isinstance(values, list) else _shown(values)
            yield "vae", f"has {key} {count}; a number for each of its {channels} channels was expected"
        elif key == "latents_std" and min(values) <= 0:
            yield "vae", f"has {min(values)} in {key}; positive numbers were expected"


def _transformer_faults(config: Mapping[str, Any], vae: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    channels = vae.get("z_dim", DEFAULT_Z_DIM)
    for key in ("in_channels", "out_channels"):
        found = config.get(key, DEFAULT_Z_DIM)
        if found != channels:
            yield "transformer", f"has {key} {_shown(found)}, and the VAE has {channels}"
    patch = config.get("patch_size", list(PATCH))
    if not isinstance(patch, list) or tuple(patch) != PATCH:
        yield "transformer", f"has patch_size {_shown(patch)}; {json.dumps(PATCH)} was expected"
    if config.get("image_dim") is not None:
        yield "transformer", "has an image_dim: it needs an image encoder, which no model that runs here has"
    heads, width = config.get("num_attention_heads", 40), config.get("attention_head_dim", 128)
    if isinstance(heads, int) and isinstance(width, int) and heads * width == WIDTH_OF_14B:
        yield "transformer", f"is {WIDTH_OF_14B} channels wide: a model of 14B, which does not run here yet"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _shown(value: object) -> str:
    return json.dumps(value)[:SHOWN_CHARACTERS]
