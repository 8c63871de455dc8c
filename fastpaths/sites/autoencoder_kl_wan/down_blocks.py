"""Downsampling of the encoder: the forward that stands in for diffusers' (0.42.1) ``WanResidualDownBlock``."""

from __future__ import annotations

from typing import Any

import torch

from fuseproof.fastpaths.replacements import Forward
from fuseproof.fastpaths.sites.autoencoder_kl_wan.caches import Caches
from fuseproof.fastpaths.sites.autoencoder_kl_wan.eager_layouts import as_eager, eager_stride
from fuseproof.fastpaths.sites.autoencoder_kl_wan.paths import DOWNSAMPLING, Form, Paths

BORDER = 1
"""Rows and columns of zeros behind a picture that a sampler halves."""
Cache = list[Any] | None
Output = tuple[torch.Tensor, torch.Tensor | None]


def down_block_forward(paths: Paths, block: Any, eager: Forward) -> Forward:
    """Residual blocks, then downsampling and the sum with the averaged input of the first of them."""
    sampler, shortcut = block.downsampler, block.avg_shortcut
    convolutions = () if sampler is None else (sampler.resample[1], *([sampler.time_conv] if has_time(sampler) else []))
    children = () if sampler is None else (*convolutions[1:], sampler.resample[0])

    def forward(x: torch.Tensor, feat_cache: Cache = None, feat_idx: list[int] = [0]) -> torch.Tensor:  # noqa: B006
        def plain(entries: Cache, index: list[int]) -> torch.Tensor:
            small = as_eager(hidden)
            if sampler is not None:
                small = type(sampler).forward(sampler, small, feat_cache=entries, feat_idx=index)
            total: torch.Tensor = small + shortcut(as_eager(x))
            return total

        def whole() -> torch.Tensor:
            small = hidden
            if sampler is not None:
                small = sampler(hidden, feat_cache=feat_cache, feat_idx=feat_idx)
            total: torch.Tensor = as_eager(small) + shortcut(as_eager(x))
            return total

        def fused(form: Form, new: list[Any]) -> torch.Tensor:
            output: Output = (hidden, None)
            if sampler is not None:
                output = downsampled(paths, sampler, hidden, caches[0], form, new)
            factors = shortcut.factor_t, shortcut.factor_s
            return paths.finish_averaged(*output, x, factors, channels_last=form.channels_last)

        if torch.compiler.is_compiling():
            return eager(x, feat_cache=feat_cache, feat_idx=feat_idx)
        hidden = x
        for resnet in block.resnets:
            hidden = resnet(hidden, feat_cache=feat_cache, feat_idx=feat_idx)
        if not paths.has(DOWNSAMPLING):
            return whole()
        reason = "called without a feature cache" if feat_cache is None else None
        first = block.resnets[-1].conv2 if sampler is None else convolutions[0]
        reason = reason or paths.decline_reason(hidden, first, *children)
        if reason is not None:
            return paths.decline(reason, whole, DOWNSAMPLING)
        caches = Caches(feat_cache, feat_idx)
        factors = (shortcut.factor_t, shortcut.factor_s, shortcut.group_size)
        mode = None if sampler is None else sampler.mode
        key = ("down", mode, factors, x.shape, x.stride(), eager_stride(x))
        entries = max(0, len(convolutions) - 1)
        return paths.run(DOWNSAMPLING, key, hidden, caches, entries, fused, plain, convolutions)

    return forward


def downsampled(paths: Any, sampler: Any, x: torch.Tensor, entry: Any, form: Form, new: list[Any]) -> Output:
    """The sampler's frames, and the bias that is still to be added; the time convolution runs from the second chunk."""
    pictures = paths.bordered(x, BORDER, form).transpose(1, 2)
    samples, count = pictures.shape[:2]
    output = paths.convolve(sampler.resample[1], pictures.flatten(0, 1), form)
    output, bias = output.unflatten(0, (samples, count)).transpose(1, 2), sampler.resample[1].bias
    if not has_time(sampler):
        return output, bias
    if entry is None:
        result = paths.finish(output, bias, channels_last=form.channels_last)
        new.append(result.view_as(result))  # an object of its own, whose layout in eager is noted by itself
        return result, None
    padded, following = paths.input_of(sampler.time_conv, output, form, None, bias, entry[:, :, -1:], front=1)
    new.append(following[:, :, -1:])
    return paths.convolve(sampler.time_conv, padded, form), sampler.time_conv.bias


def has_time(sampler: Any) -> bool:
    """Whether the sampler halves the number of frames as well."""
    return hasattr(sampler, "time_conv")
