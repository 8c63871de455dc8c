"""The forwards that stand in for diffusers' (0.42.1) ``WanResidualBlock``, ``WanResample``, ``WanResidualUpBlock``,
``WanAttentionBlock``, ``WanRMS_norm``, ``WanEncoder3d`` and ``WanDecoder3d``; ``WanResidualDownBlock`` is in
:mod:`down_blocks`."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
from torch import nn

from fuseproof.fastpaths.replacements import Forward
from fuseproof.fastpaths.sites.autoencoder_kl_wan import approximate
from fuseproof.fastpaths.sites.autoencoder_kl_wan.approximate import CoderForm
from fuseproof.fastpaths.sites.autoencoder_kl_wan.caches import Caches
from fuseproof.fastpaths.sites.autoencoder_kl_wan.down_blocks import down_block_forward, downsampled
from fuseproof.fastpaths.sites.autoencoder_kl_wan.eager_layouts import as_eager, eager_stride
from fuseproof.fastpaths.sites.autoencoder_kl_wan.paths import (
    BLOCKS,
    DOWNSAMPLING,
    NORMS,
    UPSAMPLING,
    Form,
    Paths,
    computed_in,
    norm_key,
    sums_last_behind,
    turned,
)
from fuseproof.fastpaths.sites.autoencoder_kl_wan.up_samplers import upsampled
from fuseproof.fastpaths.sites.forms import FormsInForce

CACHED_FRAMES = 2
Cache = list[Any] | None


def norm_forward(paths: Paths, norm: Any, eager: Forward) -> Forward:
    """An RMS norm that no rewritten block takes along."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling() or type(x) not in (torch.Tensor, nn.Parameter) or x.is_meta:
            return eager(x)
        reason = paths.coder.reason() or (None if x.dtype in (torch.bfloat16, torch.float32) else f"x is {x.dtype}")
        if reason is not None:
            return paths.decline(reason, lambda: eager(x), NORMS)
        return paths.norm(norm, x)

    return forward


def attention_forward(paths: Paths, _: Any, eager: Forward) -> Forward:
    """The attention as it is, in eager's layout."""
    return lambda x: eager(as_eager(x))


def residual_block_forward(paths: Paths, block: Any, eager: Forward) -> Forward:
    """norm, SiLU, convolution, norm, SiLU, convolution, and the sum with the input or its convolution."""
    shortcut = None if isinstance(block.conv_shortcut, nn.Identity) else block.conv_shortcut
    convolutions = (block.conv1, block.conv2, *(() if shortcut is None else (shortcut,)))
    children = (block.norm1, block.norm2, block.nonlinearity, block.dropout, *convolutions[1:])

    def forward(x: torch.Tensor, feat_cache: Cache = None, feat_idx: list[int] = [0]) -> torch.Tensor:  # noqa: B006
        def plain(entries: Cache, index: list[int]) -> torch.Tensor:
            result: torch.Tensor = eager(as_eager(x), feat_cache=entries, feat_idx=index)
            return result

        def fused(form: Form, new: list[Any]) -> torch.Tensor:
            padded, entry = paths.input_of(block.conv1, x, form, block.norm1, None, caches[0])
            hidden = paths.convolve(block.conv1, padded, form)
            new.append(entry)
            last = sums_last_behind(x, caches[0])
            padded, entry = paths.input_of(block.conv2, hidden, form, block.norm2, block.conv1.bias, caches[1], last)
            output = paths.convolve(block.conv2, padded, form)
            new.append(entry)
            if shortcut is None:
                return paths.finish(output, block.conv2.bias, x, channels_last=form.channels_last)
            residual = paths.convolve(shortcut, turned(x, form), form)
            return paths.finish(output, block.conv2.bias, residual, shortcut.bias, channels_last=form.channels_last)

        if torch.compiler.is_compiling():
            return plain(feat_cache, feat_idx)
        reason = paths.decline_reason(x, block.conv1, *children)
        if reason is not None:
            return paths.decline(reason, lambda: plain(feat_cache, feat_idx), BLOCKS)
        caches = Caches(feat_cache, feat_idx)
        key = ("residual", norm_key(block.norm1), norm_key(block.norm2), shortcut is not None)
        return paths.run(BLOCKS, key, x, caches, 2, fused, plain, convolutions)

    return forward


def sampler_forward(paths: Paths, sampler: Any, eager: Forward) -> Forward:
    """Sampling of a block without a shortcut around it."""
    convolutions = _sampler_convolutions(sampler)
    is_up = sampler.mode.startswith("up")
    site = UPSAMPLING if is_up else DOWNSAMPLING

    def forward(x: torch.Tensor, feat_cache: Cache = None, feat_idx: list[int] = [0]) -> torch.Tensor:  # noqa: B006
        def plain(entries: Cache, index: list[int]) -> torch.Tensor:
            result: torch.Tensor = eager(as_eager(x), feat_cache=entries, feat_idx=index)
            return result

        def fused(form: Form, new: list[Any]) -> torch.Tensor:
            if not is_up:
                output, bias = downsampled(paths, sampler, x, caches[0], form, new)
                return output if bias is None else paths.finish(output, bias, channels_last=form.channels_last)
            output = upsampled(paths, sampler, x, caches[0], form, new)
            return paths.finish(output, sampler.resample[1].bias, channels_last=paths.has(BLOCKS))

        if torch.compiler.is_compiling() or not paths.has(site):
            return plain(feat_cache, feat_idx)
        reason = _no_cache(feat_cache) or paths.decline_reason(
            x, *convolutions, sampler.resample[0], growth=8 if is_up else 2
        )
        if reason is not None:
            return paths.decline(reason, lambda: plain(feat_cache, feat_idx), site)
        caches = Caches(feat_cache, feat_idx)
        entries = len(convolutions) - 1
        return paths.run(site, ("sampler", sampler.mode), x, caches, entries, fused, plain, convolutions)

    return forward


def up_block_forward(paths: Paths, block: Any, eager: Forward) -> Forward:
    """Residual blocks, then upsampling and the sum with the duplicated input of the first of them."""
    sampler, shortcut = block.upsampler, block.avg_shortcut
    convolutions = () if sampler is None else _sampler_convolutions(sampler)

    def forward(
        x: torch.Tensor,
        feat_cache: Cache = None,
        feat_idx: list[int] = [0],  # noqa: B006
        first_chunk: bool = False,
    ) -> torch.Tensor:
        def whole() -> torch.Tensor:
            large = x
            for layer in (*block.resnets, *(() if sampler is None else (sampler,))):
                large = layer(large, feat_cache=feat_cache, feat_idx=feat_idx)
            if shortcut is None:
                return large
            total: torch.Tensor = as_eager(large) + shortcut(as_eager(x), first_chunk=first_chunk)
            return total

        def plain(entries: Cache, index: list[int]) -> torch.Tensor:
            large = type(sampler).forward(sampler, as_eager(hidden), feat_cache=entries, feat_idx=index)
            total: torch.Tensor = large + shortcut(as_eager(x), first_chunk=first_chunk)
            return total

        def fused(form: Form, new: list[Any]) -> torch.Tensor:
            output = upsampled(paths, sampler, hidden, caches[0], form, new)
            factors = (shortcut.factor_t, shortcut.factor_s, shortcut.factor_t - 1 if first_chunk else 0)
            bias = sampler.resample[1].bias
            return paths.finish(output, bias, x, factors=factors, channels_last=paths.has(BLOCKS))

        if torch.compiler.is_compiling():
            return eager(x, feat_cache=feat_cache, feat_idx=feat_idx, first_chunk=first_chunk)
        if sampler is None or not paths.has(UPSAMPLING):
            return whole()
        reason = _no_cache(feat_cache) or paths.decline_reason(x, *convolutions, sampler.resample[0], growth=8)
        if reason is not None:
            return paths.decline(reason, whole, UPSAMPLING)
        hidden = x
        for resnet in block.resnets:
            hidden = resnet(hidden, feat_cache=feat_cache, feat_idx=feat_idx)
        caches = Caches(feat_cache, feat_idx)
        factors = (shortcut.factor_t, shortcut.factor_s, shortcut.repeats)
        key = ("up", sampler.mode, factors, first_chunk, x.stride(), eager_stride(x))
        entries = len(convolutions) - 1
        return paths.run(UPSAMPLING, key, hidden, caches, entries, fused, plain, convolutions)

    return forward


def coder_forward(paths: Paths, coder: Any, eager: Forward, forms: FormsInForce[CoderForm] | None = None) -> Forward:
    """``WanEncoder3d`` or ``WanDecoder3d``: its blocks as they are, its first and last convolution; or another form."""
    is_encoder = type(coder).__name__ == "WanEncoder3d"

    def forward(
        x: torch.Tensor,
        feat_cache: Cache = None,
        feat_idx: list[int] = [0],  # noqa: B006
        **first_chunk: bool,
    ) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return eager(x, feat_cache, feat_idx, **first_chunk)
        with paths.coder.called(_no_cache(feat_cache) or _whole_reason(x, coder)) as reason:
            if reason is not None:
                return paths.decline(reason, lambda: eager(x, feat_cache, feat_idx, **first_chunk), BLOCKS)
            form = None if forms is None else forms.in_force()
            try:
                if form is None or form.gate is None or feat_cache is None:
                    return blocks(x, feat_cache, feat_idx, **first_chunk)
                is_first = first_chunk.get("first_chunk", False)

                def exact(entries: list[Any], index: list[int]) -> torch.Tensor:
                    return blocks(x, entries, index, **first_chunk)

                return approximate.run(form, coder, paths.weights, x, feat_cache, feat_idx, is_first, exact)
            except BaseException:
                paths.weights.clear()
                raise

    def blocks(x: torch.Tensor, feat_cache: Cache, feat_idx: list[int], **first_chunk: bool) -> torch.Tensor:
        caching = {"feat_cache": feat_cache, "feat_idx": feat_idx}
        hidden = _convolution(paths, coder, coder.conv_in, None, x, **caching)
        for block in coder.down_blocks if is_encoder else ():
            hidden = block(hidden, **caching)
        hidden = coder.mid_block(hidden, **caching)
        for block in () if is_encoder else coder.up_blocks:
            hidden = block(hidden, **caching, **first_chunk)
        last: torch.Tensor = as_eager(_convolution(paths, coder, coder.conv_out, coder.norm_out, hidden, **caching))
        return last

    return forward


def _convolution(
    paths: Paths, coder: Any, convolution: Any, norm: Any, x: torch.Tensor, feat_cache: Any, feat_idx: Any
) -> torch.Tensor:
    """A causal convolution with its cache, behind a norm and SiLU (the last one, whose result is eager's) or not."""

    def plain(entries: Cache, index: list[int]) -> torch.Tensor:
        assert entries is not None
        hidden = as_eager(x)
        hidden = hidden if norm is None else coder.nonlinearity(norm(hidden))
        before, recent = entries[index[0]], hidden[:, :, -CACHED_FRAMES:].clone()
        if recent.shape[2] < CACHED_FRAMES and before is not None:
            recent = torch.cat([before[:, :, -1:].to(recent.device), recent], dim=2)
        result: torch.Tensor = convolution(hidden, before)
        entries[index[0]] = recent
        index[0] += 1
        return result

    def fused(form: Form, new: list[Any]) -> torch.Tensor:
        padded, entry = paths.input_of(convolution, x, form, norm, None, caches[0])
        new.append(entry)
        output = paths.convolve(convolution, padded, form)
        return paths.finish(output, convolution.bias, channels_last=form.channels_last)

    children = () if norm is None else (norm, coder.nonlinearity)
    if not paths.has(BLOCKS):
        return plain(feat_cache, feat_idx)
    reason = paths.decline_reason(x, convolution, *children, casts=norm is None)
    if reason is not None:
        return paths.decline(reason, lambda: plain(feat_cache, feat_idx), BLOCKS)
    key = ("convolution", None if norm is None else norm_key(norm))
    caches = Caches(feat_cache, feat_idx)
    return paths.run(BLOCKS, key, x, caches, 1, fused, plain, (convolution,))


def _sampler_convolutions(sampler: Any) -> tuple[Any, ...]:
    """The convolutions of a sampler, that of the pictures first."""
    return (sampler.resample[1], *((sampler.time_conv,) if hasattr(sampler, "time_conv") else ()))


def _no_cache(feat_cache: Cache) -> str | None:
    return "called without a feature cache" if feat_cache is None else None


def _whole_reason(x: torch.Tensor, coder: Any) -> str | None:
    """Why a whole call of the coder must be eager, whose layouts are then eager's throughout; or None."""
    if torch.is_grad_enabled():
        return "gradients are recorded"
    if x.ndim != 5 or x.is_meta or not _reads_as_planes(x):
        return "the input is channels-last or has other than five dimensions"
    dtype = computed_in(x, coder.conv_in)
    if x.dtype != dtype and (x.dtype, dtype) != (torch.float32, torch.bfloat16):
        return f"the input is {x.dtype} in front of convolutions in {dtype}"
    return None


def _reads_as_planes(x: torch.Tensor) -> bool:
    """Whether torch would not take ``x`` as channels-last; frames cut out of a contiguous tensor are planes too."""
    return x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last_3d)


def is_wanted(kind: str, module: Any, gates: Container[str]) -> bool:
    """Whether a forward of this ``kind`` has anything to do where the sites in ``gates`` are on."""
    turns = BLOCKS in gates or UPSAMPLING in gates or DOWNSAMPLING in gates
    if kind == "norm":
        return NORMS in gates and (BLOCKS not in gates or len(module.gamma.shape) < 4)
    if kind == "residual_block":
        return BLOCKS in gates
    return turns or kind == "coder"


MAKERS: dict[str, Callable[..., Forward]] = {
    "coder": coder_forward,
    "residual_block": residual_block_forward,
    "sampler": sampler_forward,
    "up_block": up_block_forward,
    "down_block": down_block_forward,
    "attention": attention_forward,
    "norm": norm_forward,
}
