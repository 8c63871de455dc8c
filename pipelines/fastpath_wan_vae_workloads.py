"""What the Wan VAE's kernels meet: the widest frames of one decode, frames of any size, and a few elements."""

from __future__ import annotations

from typing import Any

import torch

from fuseproof.fastpaths.call_layouts import layout_of
from fuseproof.fastpaths.kernels import channel_norms, wan_norm_silu
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.fastpaths.user_sites import UserSite

META = torch.device("meta")
CLASS_NAME = "AutoencoderKLWan"
NORMS, BLOCKS = "wan_vae_norms", "wan_vae_blocks"
UPSAMPLING, DOWNSAMPLING = "wan_vae_upsampling", "wan_vae_downsampling"
FRAMES_OF_A_CHUNK = 4
PAIRS = (
    (torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.float32),
)
"""Activations and weights: fp32 weights under autocast, all bf16, all fp32."""
WHOLE_NORM = "norm + wan_norm_silu"
"""A norm's reduction by torch, then what follows it: the whole of what a norm and its SiLU cost."""


def wan_vae_calls(vae: Any, width: int, height: int, *, encodes: bool) -> list[SiteCall]:
    """The kernels at the last level of a decode of ``width`` x ``height`` pixels, where most of its time goes.

    And those of the first sampler of an encode, where a request ``encodes``.
    """
    patch = vae.config.patch_size or 1
    channels = vae.config.decoder_base_dim or vae.config.base_dim
    calls = _calls(channels, FRAMES_OF_A_CHUNK, height // patch, width // patch)
    if encodes:
        calls += _encoder_calls(vae.config.base_dim, FRAMES_OF_A_CHUNK, height // patch, width // patch, 2)
    return calls


def wan_vae_calls_at(channels: int, frames: int, height: int, width: int) -> list[SiteCall]:
    """Every kernel on frames of one size, norms in every pair of dtypes, and each norm with its reduction besides."""
    calls = [call for call in _calls(channels, frames, height, width) if call.layout.operation != "wan_norm_silu"]
    for x_dtype, gamma_dtype in PAIRS:
        planes = torch.empty(1, channels, frames, height, width, dtype=x_dtype, device=META)
        denominator = torch.empty(1, 1, frames, height, width, device=META)
        gamma = torch.empty(channels, 1, 1, 1, dtype=gamma_dtype, device=META)
        for x in (planes, planes.contiguous(memory_format=torch.channels_last_3d)):
            arguments = (x, denominator, gamma, None, channels**0.5, True, False)
            calls.append(SiteCall(NORMS, layout_of("wan_norm_silu", arguments, {})))
            calls.append(_whole_norm(x, gamma_dtype))
    return calls


def _whole_norm(x: torch.Tensor, gamma_dtype: torch.dtype) -> SiteCall:
    from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm

    with META:
        module = torch.nn.Sequential(WanRMS_norm(x.shape[1], images=False).to(gamma_dtype), torch.nn.SiLU())
    site = UserSite(NORMS, fused=_norm_in_two, modules="*")
    name = f"{WHOLE_NORM}, {'bf16' if gamma_dtype == torch.bfloat16 else 'fp32'} weights"
    return SiteCall(NORMS, layout_of(name, (x,), {}), site, module.requires_grad_(requires_grad=False))


def _norm_in_two(module: Any, x: torch.Tensor) -> torch.Tensor:
    """As the site runs a norm: torch's own sum, then the kernel."""
    norm = module[0]
    return wan_norm_silu.fused(x, channel_norms.denominators(x), norm.gamma, None, norm.scale, True, False)


def small_wan_vae_calls() -> list[SiteCall]:
    """The same calls on a few elements; a CPU rounds a mean of several in a way of its own."""
    return _calls(4, 2, 3, 4) + _encoder_calls(4, 2, 3, 4, 1)


def _encoder_calls(channels: int, frames: int, height: int, width: int, side_factor: int) -> list[SiteCall]:
    """bf16 calls channels-last: a border in front of a convolution, and the averaged shortcut behind it."""
    x = torch.empty(1, channels, frames, height, width, dtype=torch.bfloat16, device=META)
    x = x.contiguous(memory_format=torch.channels_last_3d)
    small = (1, channels, frames, height // side_factor, width // side_factor)
    output = torch.empty(small, dtype=x.dtype, device=META).contiguous(memory_format=torch.channels_last_3d)
    bias = torch.empty(channels, dtype=x.dtype, device=META)
    return [
        SiteCall(DOWNSAMPLING, layout_of("bordered_frames", (x, 1), {})),
        SiteCall(DOWNSAMPLING, layout_of("average_downsample_add", (output, bias, x, 1, side_factor, True), {})),
    ]


def _calls(channels: int, frames: int, height: int, width: int) -> list[SiteCall]:
    """bf16 calls in each layout; norms get their denominators, since a CPU sums in another order."""
    planes = torch.empty(1, channels, frames, height, width, dtype=torch.bfloat16, device=META)
    turned = planes.contiguous(memory_format=torch.channels_last_3d)
    denominator = torch.empty(1, 1, frames, height, width, device=META)
    gamma = torch.empty(channels, 1, 1, 1, dtype=torch.bfloat16, device=META)
    bias, scale = torch.empty(channels, dtype=torch.bfloat16, device=META), channels**0.5
    calls: list[tuple[str, str, tuple[Any, ...]]] = []
    for x in (planes, turned):
        last = x is turned
        cache = torch.empty_like(x[:, :, :2])
        calls += [
            (NORMS, "wan_norm_silu", (x, denominator, gamma, None, scale, True, False)),
            (
                BLOCKS,
                "causal_conv_input",
                (x, gamma, bias, cache, denominator, scale, True, 2, 1, 1, last, False, None),
            ),
            (BLOCKS, "duplicate_upsample_add", (x, bias, torch.empty_like(x), None, 1, 1, 0, last)),
            (UPSAMPLING, "nearest_upsample", (x, bias, 2)),
        ]
    return [SiteCall(site, layout_of(kernel, arguments, {})) for site, kernel, arguments in calls]
