"""What an upsampler of the decoder does before the bias of its last convolution."""

from __future__ import annotations

from typing import Any

import torch

from fuseproof.fastpaths.sites.autoencoder_kl_wan.caches import FIRST
from fuseproof.fastpaths.sites.autoencoder_kl_wan.paths import Form


def upsampled(paths: Any, sampler: Any, x: torch.Tensor, entry: Any, form: Form, new: list[Any]) -> torch.Tensor:
    """The sampler's pictures without the bias of their convolution; the time convolution runs from the second chunk."""
    bias, frames = None, 1
    if sampler.mode == "upsample3d" and entry is None:
        new.append(FIRST)
    elif sampler.mode == "upsample3d":
        cache = None if isinstance(entry, str) else entry
        padded, following = paths.input_of(sampler.time_conv, x, form, None, None, cache)
        new.append(following)
        x, bias, frames = paths.convolve(sampler.time_conv, padded, form), sampler.time_conv.bias, 2
    large = paths.upsampled(x, bias, frames)
    samples, channels, count, height, width = large.shape
    pictures = large.transpose(1, 2).reshape(samples * count, channels, height, width)
    pictures = pictures if form.channels_last else pictures.contiguous()
    output: torch.Tensor = paths.convolve(sampler.resample[1], pictures, form)
    return output.unflatten(0, (samples, count)).transpose(1, 2)
