"""What the VAE's kernels meet in real requests: one decode, or encode, of the meta VAE with its modules listened to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.call_layouts import CallLayout, layout_of
from fuseproof.fastpaths.families import family_of, kernel_module
from fuseproof.fastpaths.tracing import SiteCall
from fuseproof.pipelines import fastpath_wan_vae_workloads as wan

SAMPLERS = ("Upsample2D", "Downsample2D")
META = torch.device("meta")
NORM_SITE, CONVOLUTION_SITE = "vae_group_norm_silu", "vae_convolutions"
COPIES = ((1, 0), (2, 0), (1, 1))
"""Factor and border before a convolution: as it is, an upsampler's, a downsampler's."""
ATTENTION_NORM = "group_norm"
"""The one norm that no SiLU follows, by the last part of its name."""


@torch.no_grad()
def vae_calls(vae: Any, width: int, height: int, device: torch.device, *, encodes: bool) -> list[SiteCall]:
    """The distinct kernel calls of one decode (and encode) of ``width`` x ``height`` pixels by a bf16 meta ``vae``.

    ``device`` is where the calls will be made: how torch rounds a norm's statistics is asked there.
    """
    if type(vae).__name__ == wan.CLASS_NAME:
        return wan.wan_vae_calls(vae, width, height, encodes=encodes)
    if family_of(vae) is None:
        return []
    rounds = bool(kernel_module("group_norm_silu").rounds_statistics(device))
    calls: dict[CallLayout, SiteCall] = {}
    scale = 2 ** (len(vae.config.block_out_channels) - 1)
    latents = torch.empty(1, vae.config.latent_channels, height // scale, width // scale, dtype=vae.dtype, device=META)
    with _heard(vae, lambda name, module, x, result: _note(calls, name, module, x, result, rounds)):
        vae.decode(latents, return_dict=False)
        if encodes:
            vae.encode(torch.empty(1, 3, height, width, dtype=vae.dtype, device=META), return_dict=False)
    return list(calls.values())


def small_vae_calls(vae: Any) -> list[SiteCall]:
    """Kernels of the VAE's sites on a few elements, in each layout that it knows; statistics stay fp32, as on a CPU."""
    if type(vae).__name__ == wan.CLASS_NAME:
        return wan.small_wan_vae_calls()
    if family_of(vae) is None:
        return []

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=META)

    x, channel = empty(1, 4, 6, 5), empty(4)
    turned = _channels_last(x)
    calls: list[tuple[str, str, tuple[Any, ...]]] = [
        (NORM_SITE, "group_norm_silu", (x, channel, channel, 2, 1e-6, silu, channels_last, False))
        for silu, channels_last in ((True, False), (True, True), (False, False))
    ]
    calls += [
        (CONVOLUTION_SITE, "conv_bias_residual", parts)
        for parts in ((turned, channel), (turned, channel, x, None, 1.0), (turned, channel, turned, channel, 2.0))
    ]
    calls += [(CONVOLUTION_SITE, "channels_last_copy", (x, factor, border)) for factor, border in COPIES]
    return [SiteCall(site, layout_of(kernel, arguments, {})) for site, kernel, arguments in calls]


def _note(
    calls: dict[CallLayout, SiteCall], name: str, module: nn.Module, x: torch.Tensor, result: torch.Tensor, rounds: bool
) -> None:
    if type(module).__name__ in SAMPLERS:
        is_up = type(module).__name__ == "Upsample2D"
        copied = (x, 2, 0) if is_up else (x, 1, 1 if module.padding == 0 else 0)
        _keep(calls, CONVOLUTION_SITE, layout_of("channels_last_copy", copied, {}))
    elif isinstance(module, nn.GroupNorm):
        silu = not name.endswith(ATTENTION_NORM)
        for channels_last in (False, True) if x.ndim == 4 else (False,):
            arguments = (x, module.weight, module.bias, module.num_groups, module.eps, silu, channels_last, rounds)
            _keep(calls, NORM_SITE, layout_of("group_norm_silu", arguments, {}))
    elif isinstance(module, nn.Conv2d) and not name.endswith(("conv1", "conv_shortcut", "quant_conv")):
        _keep(calls, CONVOLUTION_SITE, layout_of("conv_bias_residual", (_channels_last(result), module.bias), {}))
    elif type(module).__name__ == "ResnetBlock2D":
        residual, residual_bias = x, None
        if module.conv_shortcut is not None:
            residual, residual_bias = _channels_last(result), module.conv_shortcut.bias
        output, factor = _channels_last(result), module.output_scale_factor
        layout = layout_of("conv_bias_residual", (output, module.conv2.bias, residual, residual_bias, factor), {})
        _keep(calls, CONVOLUTION_SITE, layout)


def _keep(calls: dict[CallLayout, SiteCall], site: str, layout: CallLayout) -> None:
    calls.setdefault(layout, SiteCall(site, layout))


def _channels_last(like: torch.Tensor) -> torch.Tensor:
    """A convolution's output as it leaves cuDNN."""
    return torch.empty(like.shape, dtype=like.dtype, device=META, memory_format=torch.channels_last)


@contextmanager
def _heard(vae: nn.Module, note: Callable[[str, nn.Module, torch.Tensor, torch.Tensor], None]) -> Iterator[None]:
    def hear(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, result: note(name, module, inputs[0], result)

    kinds = ("GroupNorm", "Conv2d", "ResnetBlock2D", *SAMPLERS)
    hooks = [
        module.register_forward_hook(hear(name))
        for name, module in vae.named_modules()
        if type(module).__name__ in kinds
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
