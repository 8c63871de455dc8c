"""A coder of the Wan VAE as a whole, channels-last from its first convolution to its last, norms in one pass.

``wan_vae_one_pass``, quality ``extra-high``: the same modules in the same order. No norm follows torch's order of sums
or rounds on its way, so each reads its input once; nothing waits to be known equal, and the layout is chosen once, when
the input enters. Weights are turned once a decode or encode.

Site: wan_vae_one_pass
Formula: the coder's own; norm and SiLU as in ``norm_silu_conv_input``.
Shapes: x [B, C, T, H, W] of the coder's first convolution, bf16 or fp32; the result is contiguous.
Rounds: once behind each norm with its SiLU, each convolution, bias and sum.
Replaces: a call of ``WanEncoder3d`` or ``WanDecoder3d`` (diffusers 0.42.1) with its feature cache.
Close: rounding moves, a site of quality ``extra-high``.
Declines: what the kernels decline; calls without a feature cache, or where the exact sites would leave all to eager.
Bytes: those of the exact form, less a second reading of each norm's input.
Check first: if the trace shows ``_causal_conv_input_kernel`` with a norm at this quality, read the site's reason in the
report.
Source: diffusers autoencoder_kl_wan.py, 0.42.1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fuseproof.fastpaths.kernels import (
    average_downsample_add,
    bordered_frames,
    causal_conv_input,
    duplicate_upsample_add,
    nearest_upsample,
    norm_silu_conv_input,
)
from fuseproof.fastpaths.sites.autoencoder_kl_wan.down_blocks import downsampled
from fuseproof.fastpaths.sites.autoencoder_kl_wan.held_weights import TurnedWeights
from fuseproof.fastpaths.sites.autoencoder_kl_wan.paths import Form
from fuseproof.fastpaths.sites.autoencoder_kl_wan.up_samplers import upsampled

FORM = Form(channels_last=True, own_sums=True)
ComputedIn = Callable[[torch.Tensor, Any], torch.dtype]


class KernelDeclinesError(Exception):
    """A kernel cannot take what this coder was called with; the text says why."""


class OnePass:
    """One call of ``coder`` on ``entries``, its feature cache, which it fills anew."""

    place: int
    """How many entries of the cache the call has gone through."""

    def __init__(self, coder: Any, weights: TurnedWeights, computed_in: ComputedIn) -> None:
        self._coder = coder
        self._weights = weights
        self._computed_in = computed_in

    def run(self, x: torch.Tensor, entries: list[Any], *, first_chunk: bool) -> torch.Tensor:
        """The coder's result, contiguous, in the dtype that its last convolution computes in here."""
        coder = self._coder
        self._dtype = self._computed_in(x, coder.conv_in)
        self._entries, self.place = entries, 0
        with torch.autocast(x.device.type, enabled=False):
            hidden = self._convolution(coder.conv_in, None, x)
            for block in getattr(coder, "down_blocks", ()):
                hidden = self._down(block, hidden)
            hidden = self._middle(coder.mid_block, hidden)
            for block in getattr(coder, "up_blocks", ()):
                hidden = self._up(block, hidden, first_chunk)
            return self._convolution(coder.conv_out, coder.norm_out, hidden).contiguous()

    def input_of(
        self,
        convolution: Any,
        x: torch.Tensor,
        form: Form,
        norm: Any = None,
        x_bias: torch.Tensor | None = None,
        cache: torch.Tensor | None = None,
        front: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The padded input of a causal convolution, behind a norm and SiLU or not, and its next cache."""
        right, _, below, _, padded, _ = convolution._padding
        place = (padded if front is None else front, below, right)
        to_bf16 = self._dtype == torch.bfloat16
        pair: tuple[torch.Tensor, torch.Tensor]
        if norm is None:
            pair = _called(causal_conv_input, x, None, x_bias, cache, None, 1.0, False, *place, True, to_bf16, None)
        else:
            pair = _called(norm_silu_conv_input, x, norm.gamma, x_bias, cache, norm.scale, True, *place, to_bf16)
        return pair

    def convolve(self, convolution: Any, x: torch.Tensor, form: Form) -> torch.Tensor:
        """torch's own convolution without the bias, channels-last."""
        weight = self._weights.of(convolution, self._dtype)
        operation = F.conv3d if weight.ndim == 5 else F.conv2d
        result: torch.Tensor = operation(x, weight, None, convolution.stride, convolution.padding)
        return result

    def upsampled(self, x: torch.Tensor, bias: torch.Tensor | None, frames: int) -> torch.Tensor:
        """Twice as high and wide, and ``frames`` times as many of them."""
        result: torch.Tensor = _called(nearest_upsample, x, bias, frames)
        return result

    def bordered(self, x: torch.Tensor, border: int, form: Form) -> torch.Tensor:
        """``x`` with zeros below and on the right."""
        result: torch.Tensor = _called(bordered_frames, x, border)
        return result

    def finish(
        self,
        output: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor | None = None,
        residual_bias: torch.Tensor | None = None,
        factors: tuple[int, int, int] = (1, 1, 0),
        channels_last: bool = True,
    ) -> torch.Tensor:
        """The bias of a convolution on its ``output``, and the residual, duplicated by ``factors``."""
        result: torch.Tensor = _called(
            duplicate_upsample_add, output, bias, residual, residual_bias, *factors, channels_last
        )
        return result

    def _convolution(self, convolution: Any, norm: Any, x: torch.Tensor) -> torch.Tensor:
        padded, following = self.input_of(convolution, x, FORM, norm, None, self._entry())
        self._keep([following])
        return self.finish(self.convolve(convolution, padded, FORM), convolution.bias)

    def _residual(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        padded, following = self.input_of(block.conv1, x, FORM, block.norm1, None, self._entry())
        self._keep([following])
        hidden = self.convolve(block.conv1, padded, FORM)
        padded, following = self.input_of(block.conv2, hidden, FORM, block.norm2, block.conv1.bias, self._entry())
        self._keep([following])
        output = self.convolve(block.conv2, padded, FORM)
        if isinstance(block.conv_shortcut, nn.Identity):
            return self.finish(output, block.conv2.bias, x)
        residual = self.convolve(block.conv_shortcut, x, FORM)
        return self.finish(output, block.conv2.bias, residual, block.conv_shortcut.bias)

    def _attention(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        """Tokens are positions, which lie next to each other channels-last; a frame attends to itself."""
        samples, channels, frames, height, width = x.shape
        to_bf16 = self._dtype == torch.bfloat16
        normed, _ = _called(
            norm_silu_conv_input, x, block.norm.gamma, None, None, block.norm.scale, False, 0, 0, 0, to_bf16
        )
        tokens = normed.movedim(1, -1).reshape(samples * frames, 1, height * width, channels)
        query, key, value = self._projected(block.to_qkv, tokens).chunk(3, dim=-1)
        attended = self._projected(block.proj, F.scaled_dot_product_attention(query, key, value))
        return x + attended.view(samples, frames, height, width, channels).movedim(-1, 1)

    def _projected(self, convolution: Any, tokens: torch.Tensor) -> torch.Tensor:
        weight = self._weights.of(convolution, self._dtype).flatten(1)
        return F.linear(tokens, weight, convolution.bias.to(self._dtype))

    def _middle(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = self._residual(block.resnets[0], x)
        for attention, resnet in zip(block.attentions, block.resnets[1:], strict=True):
            hidden = self._residual(resnet, self._attention(attention, hidden))
        return hidden

    def _down(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        if type(block).__name__ == "WanResidualBlock":
            return self._residual(block, x)
        if type(block).__name__ == "WanResample":
            output, bias = self._downsampled(block, x)
            return output if bias is None else self.finish(output, bias)
        hidden = x
        for resnet in block.resnets:
            hidden = self._residual(resnet, hidden)
        output = (hidden, None) if block.downsampler is None else self._downsampled(block.downsampler, hidden)
        shortcut = block.avg_shortcut
        result: torch.Tensor = _called(average_downsample_add, *output, x, shortcut.factor_t, shortcut.factor_s, True)
        return result

    def _downsampled(self, sampler: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        new: list[Any] = []
        output = downsampled(self, sampler, x, self._entry(), FORM, new)
        self._keep(new)
        return output

    def _up(self, block: Any, x: torch.Tensor, first_chunk: bool) -> torch.Tensor:
        hidden = x
        for resnet in block.resnets:
            hidden = self._residual(resnet, hidden)
        is_residual = type(block).__name__ == "WanResidualUpBlock"
        samplers = [block.upsampler] if is_residual else (block.upsamplers or ())
        for sampler in samplers:
            if sampler is not None:
                hidden = self._upsampled(sampler, hidden, x, block.avg_shortcut if is_residual else None, first_chunk)
        return hidden

    def _upsampled(
        self, sampler: Any, x: torch.Tensor, residual: torch.Tensor, shortcut: Any, first_chunk: bool
    ) -> torch.Tensor:
        new: list[Any] = []
        output = upsampled(self, sampler, x, self._entry(), FORM, new)
        self._keep(new)
        bias = sampler.resample[1].bias
        if shortcut is None:
            return self.finish(output, bias)
        skip = shortcut.factor_t - 1 if first_chunk else 0
        return self.finish(output, bias, residual, factors=(shortcut.factor_t, shortcut.factor_s, skip))

    def _entry(self) -> Any:
        """What the cache has for the next convolution; None at the end: a sampler in space alone has none."""
        return self._entries[self.place] if self.place < len(self._entries) else None

    def _keep(self, new: list[Any]) -> None:
        self._entries[self.place : self.place + len(new)] = new
        self.place += len(new)


def _called(kernel: Any, *arguments: Any) -> Any:
    reason = kernel.reject_reason(*arguments)
    if reason is not None:
        raise KernelDeclinesError(reason)
    return kernel.fused(*arguments)
