"""AutoencoderKL (the VAE of FLUX and LongCat), and AutoencoderKLFlux2 (FLUX.2, ERNIE-Image), whose coders are the same
classes, and whose batch norm is the pipeline's business: GroupNorm + SiLU, what follows a convolution, and its layout.

``vae_group_norm_silu`` replaces each norm with the SiLU behind it, and the attention's norm. ``vae_convolutions`` takes
whole residual blocks, samplers, and the first and last convolutions through channels-last memory: norms write it, cuDNN
convolves without converting anything, and one epilogue adds bias and residual and turns the result back, so that every
norm still reads NCHW in aten's order. Where the gate rejects that, or convolutions have few channels (:mod:`layouts`),
the epilogue alone remains, in NCHW. All is verified against diffusers' own modules. Tiling and slicing call the same
modules and need nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.installation import Installation, taken_off_if_it_fails
from fuseproof.fastpaths.kernels import triton_missing_reason
from fuseproof.fastpaths.replacements import Forward, Replacement
from fuseproof.fastpaths.sites.autoencoder_kl import modules

COMPONENT = "vae"
CLASS_NAME = "AutoencoderKL"
SAME_CODERS = ("AutoencoderKLFlux2",)
"""Other classes around the same encoder and decoder; everything is replaced inside those."""
KERNELS_OF_SITE = {
    "vae_group_norm_silu": ("group_norm_silu",),
    "vae_convolutions": ("conv_bias_residual", "channels_last_copy"),
}
SITES = tuple(KERNELS_OF_SITE)
QUALITY_OF_SITE = dict.fromkeys(SITES, "lossless")


def reject_reason(vae: Any) -> str | None:
    """Why this VAE cannot carry any of the sites, naming the device first, or the module; None if it can."""
    if type(vae).__name__ not in (CLASS_NAME, *SAME_CODERS):
        return f"vae is {type(vae).__name__}, the sites need {' or '.join((CLASS_NAME, *SAME_CODERS))}"
    reason = modules.reject_reason(vae) or triton_missing_reason()
    return None if reason is None else _device_reason(vae) or reason


def site_reasons(vae: Any) -> dict[str, str]:
    """Sites that decline on this VAE although the family does not, and why."""
    reason = _device_reason(vae)
    return {} if reason is None else dict.fromkeys(SITES, reason)


def install(vae: Any, gates: Mapping[str, Gate]) -> Installation:
    """Put the chosen sites into ``vae``; the gates of declining sites are not among ``gates``."""
    from fuseproof.fastpaths.sites.autoencoder_kl import forwards
    from fuseproof.fastpaths.sites.autoencoder_kl.paths import Paths
    from fuseproof.fastpaths.sites.watched_coder import WatchedCoder

    makers: dict[str, Callable[[Paths, Any, Forward], Forward]] = {
        "coder": forwards.coder_forward,
        "residual_block": forwards.residual_block_forward,
    }
    if "vae_group_norm_silu" in gates:
        makers["norm"] = forwards.norm_forward
    if "vae_convolutions" in gates:
        makers |= {"upsampler": forwards.upsampler_forward, "downsampler": forwards.downsampler_forward}
    installation = Installation()
    with taken_off_if_it_fails(installation):
        for name in modules.CODERS:
            coder = WatchedCoder(name, getattr(vae, name), _libraries())
            paths = Paths(gates, coder)
            for kind, _, module in modules.replaced_modules(name, getattr(vae, name)):
                if kind in makers:
                    make = functools.partial(makers[kind], paths, module)
                    installation.replacements.append(Replacement(module, make))
            coder.seal()
    return installation


def _libraries() -> tuple[ModuleType, ...]:
    """Where the functions live that diffusers' own forwards call by name, and the replacements do not."""
    import torch.nn.functional as F
    from diffusers.models import downsampling, resnet, upsampling
    from diffusers.models.autoencoders import vae

    return F, downsampling, resnet, upsampling, vae


def _device_reason(vae: Any) -> str | None:
    device = next(vae.parameters()).device
    return None if device.type == "cuda" else f"the model is on {device}; Triton kernels need a CUDA device"
