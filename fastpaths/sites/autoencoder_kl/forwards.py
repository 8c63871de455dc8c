"""The forwards that stand in for diffusers' (0.42.1) ``ResnetBlock2D``, ``Upsample2D``, ``Downsample2D``, the GroupNorm
of ``Attention``, ``Encoder`` and ``Decoder``."""

from __future__ import annotations

from typing import Any

import torch

from fuseproof.fastpaths.replacements import Forward
from fuseproof.fastpaths.sites.autoencoder_kl import modules
from fuseproof.fastpaths.sites.autoencoder_kl.layouts import narrow_reason
from fuseproof.fastpaths.sites.autoencoder_kl.paths import (
    CONVOLUTIONS,
    NORMS,
    Paths,
    Tensors,
    convolution_key,
    norm_key,
    runs_channels_last,
    shortcut_of,
)

# The kernel addresses fewer output elements of a sample than this.
LARGEST_UPSAMPLED = 2**31


def norm_forward(paths: Paths, norm: Any, eager: Forward) -> Forward:
    """A GroupNorm that no SiLU follows."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return eager(x)
        reason = paths.decline_reason(x, norm)
        if reason is not None:
            return paths.decline(reason, lambda: eager(x), NORMS)
        return paths.norm(norm, x, silu=False)

    return forward


def residual_block_forward(paths: Paths, block: Any, eager: Forward) -> Forward:
    """norm, SiLU, convolution, norm, SiLU, convolution, residual; a time embedding makes the call eager."""
    children = modules.rewritten_children("residual_block", block)
    structure = (block.conv_shortcut is not None, block.output_scale_factor)
    convolutions = (block.conv1, block.conv2, *([block.conv_shortcut] if block.conv_shortcut is not None else []))
    narrow = narrow_reason(*convolutions)

    def forward(input_tensor: torch.Tensor, temb: torch.Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        def plain() -> Any:
            return eager(input_tensor, temb, *args, **kwargs)

        def turned() -> torch.Tensor:
            hidden = paths.finish(block.conv1, paths.norm_and_convolution(block.norm1, block.conv1, input_tensor))
            output = paths.norm_and_convolution(block.norm2, block.conv2, hidden)
            residual, residual_bias = shortcut_of(block, input_tensor)
            is_reusable = residual.is_contiguous() and residual.shape == hidden.shape
            reused = {"out": hidden} if is_reusable else {}
            return paths.finish(block.conv2, output, residual, residual_bias, block.output_scale_factor, **reused)

        def contiguous() -> torch.Tensor:
            hidden = block.conv1(paths.norm(block.norm1, input_tensor))
            return paths.last_convolution(block, paths.norm(block.norm2, hidden), input_tensor)

        if torch.compiler.is_compiling():
            return plain()
        reason = _call_reason(temb is not None or args or kwargs or block.training, "a time embedding or training mode")
        reason = reason or paths.decline_reason(input_tensor, *children)
        if reason is not None:
            return paths.decline(reason, plain, NORMS, CONVOLUTIONS)
        if narrow is not None:
            return paths.stay_contiguous(narrow, contiguous)
        layers = (*map(norm_key, (block.norm1, block.norm2)), *map(convolution_key, convolutions))
        return paths.turned(("residual", structure, layers), input_tensor, turned, plain, contiguous)

    return forward


def upsampler_forward(paths: Paths, upsampler: Any, eager: Forward) -> Forward:
    """Nearest upsampling by two and a convolution."""
    narrow = narrow_reason(upsampler.conv)

    def forward(hidden_states: torch.Tensor, output_size: int | None = None, *args: Any, **kwargs: Any) -> torch.Tensor:
        def plain() -> torch.Tensor:
            result: torch.Tensor = eager(hidden_states, output_size, *args, **kwargs)
            return result

        def turned() -> torch.Tensor:
            output = paths.copy_and_convolution(upsampler.conv, hidden_states, factor=2)
            return paths.finish(upsampler.conv, output)

        if torch.compiler.is_compiling():
            return plain()
        is_large = 4 * hidden_states.shape[1:].numel() >= LARGEST_UPSAMPLED
        reason = _call_reason(output_size is not None or args or kwargs, "an output size")
        reason = reason or _call_reason(is_large, "2**31 elements or more after upsampling")
        reason = reason or paths.decline_reason(hidden_states, upsampler.conv)
        reason = reason or _already_turned(hidden_states) or narrow
        if reason is not None:
            return paths.decline(reason, plain, CONVOLUTIONS)
        key = ("upsampler", convolution_key(upsampler.conv))
        return paths.turned(key, hidden_states, turned, plain, plain)

    return forward


def downsampler_forward(paths: Paths, downsampler: Any, eager: Forward) -> Forward:
    """A convolution of stride two, behind a row and a column of zeros where the module pads by itself."""
    narrow = narrow_reason(downsampler.conv)

    def forward(hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        def plain() -> torch.Tensor:
            result: torch.Tensor = eager(hidden_states, *args, **kwargs)
            return result

        def turned() -> torch.Tensor:
            border = 1 if downsampler.padding == 0 else 0
            output = paths.copy_and_convolution(downsampler.conv, hidden_states, border=border)
            return paths.finish(downsampler.conv, output)

        if torch.compiler.is_compiling():
            return plain()
        reason = _call_reason(args or kwargs, "further arguments")
        reason = reason or paths.decline_reason(hidden_states, downsampler.conv)
        reason = reason or _already_turned(hidden_states) or narrow
        if reason is not None:
            return paths.decline(reason, plain, CONVOLUTIONS)
        key = ("downsampler", downsampler.padding, convolution_key(downsampler.conv))
        return paths.turned(key, hidden_states, turned, plain, plain)

    return forward


def coder_forward(paths: Paths, coder: Any, eager: Forward) -> Forward:
    """``Encoder`` or ``Decoder``: its blocks as they are, first convolution and last norm + SiLU + convolution ours."""
    children = modules.rewritten_children("coder", coder)
    is_encoder = type(coder).__name__ == "Encoder"

    def forward(sample: torch.Tensor, latent_embeds: torch.Tensor | None = None) -> torch.Tensor:
        def plain() -> torch.Tensor:
            result: torch.Tensor = eager(sample) if latent_embeds is None else eager(sample, latent_embeds)
            return result

        if torch.compiler.is_compiling():
            return plain()
        with paths.coder.called():
            return plain() if torch.is_grad_enabled() else fused(sample, latent_embeds, plain)

    def fused(sample: torch.Tensor, latent_embeds: torch.Tensor | None, plain: Tensors) -> torch.Tensor:
        reason = _call_reason(latent_embeds is not None, "latent embeddings")
        reason = reason or paths.decline_reason(sample, *children)
        if reason is not None:
            declined: torch.Tensor = paths.decline(reason, plain, NORMS, CONVOLUTIONS)
            return declined
        hidden = _first_convolution(paths, coder, sample)
        blocks = (*coder.down_blocks, coder.mid_block) if is_encoder else (coder.mid_block, *coder.up_blocks)
        for block in blocks:
            hidden = block(hidden)
        return _last_layers(paths, coder, hidden)

    return forward


def _first_convolution(paths: Paths, coder: Any, sample: torch.Tensor) -> torch.Tensor:
    def plain() -> torch.Tensor:
        result: torch.Tensor = coder.conv_in(sample)
        return result

    def turned() -> torch.Tensor:
        return paths.finish(coder.conv_in, paths.copy_and_convolution(coder.conv_in, sample))

    reason = _already_turned(sample) or narrow_reason(coder.conv_in)
    if reason is not None:
        declined: torch.Tensor = paths.decline(reason, plain, CONVOLUTIONS)
        return declined
    return paths.turned(("convolution", convolution_key(coder.conv_in)), sample, turned, plain, plain)


def _last_layers(paths: Paths, coder: Any, hidden: torch.Tensor) -> torch.Tensor:
    norm, convolution = coder.conv_norm_out, coder.conv_out

    def plain() -> torch.Tensor:
        result: torch.Tensor = convolution(coder.conv_act(norm(hidden)))
        return result

    def turned() -> torch.Tensor:
        return paths.finish(convolution, paths.norm_and_convolution(norm, convolution, hidden))

    def contiguous() -> torch.Tensor:
        result: torch.Tensor = convolution(paths.norm(norm, hidden))
        return result

    narrow = narrow_reason(convolution)
    if narrow is not None:
        return paths.stay_contiguous(narrow, contiguous)
    key = ("norm-convolution", norm_key(norm), convolution_key(convolution))
    return paths.turned(key, hidden, turned, plain, contiguous)


def _already_turned(x: torch.Tensor) -> str | None:
    return "eager convolves this tensor in channels-last already" if runs_channels_last(x) else None


def _call_reason(condition: object, what: str) -> str | None:
    return f"called with {what}" if condition else None
