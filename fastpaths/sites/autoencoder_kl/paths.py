"""The arithmetic of the VAE's pieces, each behind the gate of its site, with diffusers' own as the reference."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fuseproof.fastpaths.gates import Gate, undecidable
from fuseproof.fastpaths.kernels import channels_last_copy, conv_bias_residual, group_norm_silu
from fuseproof.fastpaths.kernels.launching import device_reason
from fuseproof.fastpaths.operations import GatedOperation, signature
from fuseproof.fastpaths.sites.autoencoder_kl import modules
from fuseproof.fastpaths.sites.watched_coder import WatchedCoder

NORMS, CONVOLUTIONS = "vae_group_norm_silu", "vae_convolutions"
Tensors = Callable[[], torch.Tensor]


class Paths:
    """What the replaced forwards of ``coder`` call. A site that is off has no gate here, and its reference runs."""

    def __init__(self, gates: Mapping[str, Gate], coder: WatchedCoder) -> None:
        self.coder = coder
        self._gates = dict(gates)
        self._convolutions = gates.get(CONVOLUTIONS)
        self._norm = GatedOperation("group_norm_silu", group_norm_silu, gates.get(NORMS))
        self._copy = GatedOperation("channels_last_copy", channels_last_copy, self._convolutions)
        self._epilogue = GatedOperation("conv_bias_residual", conv_bias_residual, self._convolutions)
        self._rounds_statistics: dict[torch.device, bool] = {}

    def decline_reason(self, x: torch.Tensor, *children: Any) -> str | None:
        """Why this call must be eager as a whole, or None."""
        if type(x) not in (torch.Tensor, nn.Parameter):
            return f"activations are a {type(x).__name__}; the kernels need plain tensors"
        if x.is_meta:
            return "activations are on the meta device"
        if x.dtype != torch.bfloat16:
            return f"activations are {x.dtype}; the kernels need torch.bfloat16"
        if torch.is_autocast_enabled(x.device.type):
            return "autocast is on"
        changed = self.coder.reason()
        if changed is not None:
            return changed
        if not (x.is_contiguous() or is_channels_last(x)):
            return f"activations have strides {list(x.stride())}; the kernels need them contiguous or channels-last"
        if x.device not in self._rounds_statistics and undecidable():
            return "first called under compilation, capture, or with gradients recorded"
        return device_reason("the activation", x) or modules.change_in(*children)

    def decline(self, reason: str, eager: Callable[[], Any], *sites: str) -> Any:
        """Run ``eager`` and count the call as declined at those of ``sites`` that are mounted."""
        for site in sites:
            if site in self._gates:
                self._gates[site].decline(reason, lambda: None)
        return eager()

    def turned(
        self, key: Hashable, x: torch.Tensor, fused: Tensors, eager: Tensors, contiguous: Tensors
    ) -> torch.Tensor:
        """``fused``, with channels-last convolutions, where the gate has seen ``eager``'s bits; else ``contiguous``."""
        gate = self._convolutions
        if gate is None:
            return contiguous()
        whole_key = ("channels-last", key, signature(x), _convolution_settings())
        if whole_key in gate.rejections and contiguous is not eager:
            return contiguous()
        result: torch.Tensor = gate.run(whole_key, fused, eager)
        if whole_key in gate.rejections and contiguous is not eager:
            return contiguous()  # already now, so that its gates have decided when the next request comes
        return result

    def stay_contiguous(self, reason: str, contiguous: Tensors) -> torch.Tensor:
        """``contiguous``, because channels-last is known to be no way for these convolutions; the report says why.

        No call is counted: what ``contiguous`` still fuses passes the gates by itself.
        """
        if self._convolutions is not None:
            declined = self._convolutions.declined
            declined[reason] = declined.get(reason, 0) + 1
        return contiguous()

    def norm(self, norm: Any, x: torch.Tensor, silu: bool = True) -> torch.Tensor:
        """GroupNorm, and SiLU with it, of [N, C, *], behind the norm's gate; contiguous, as aten's is on CUDA."""
        arguments = self._norm_arguments(norm, x.contiguous(), silu, False)

        def eager() -> torch.Tensor:
            return group_norm_silu.reference(x, *arguments[1:])

        if self._norm.gate is None or x.is_contiguous():
            result: torch.Tensor = self._norm(*arguments)
        else:
            key = ("group_norm_silu of strides", signature(x), *map(signature, arguments[1:]))
            result = self._norm.run(key, eager, arguments)
        return result

    def norm_and_convolution(self, norm: Any, convolution: Any, x: torch.Tensor) -> torch.Tensor:
        """SiLU(GroupNorm(x)) through a channels-last convolution without its bias, to be verified as a whole."""
        arguments = self._norm_arguments(norm, x.contiguous(), True, True)
        return convolve(convolution, self._within(self._norm, *arguments))

    def copy_and_convolution(self, convolution: Any, x: torch.Tensor, factor: int = 1, border: int = 0) -> torch.Tensor:
        """``x``, doubled or with a border of zeros, through a channels-last convolution without its bias."""
        return convolve(convolution, self._within(self._copy, x.contiguous(), factor, border))

    def finish(
        self,
        convolution: Any,
        output: torch.Tensor,
        residual: torch.Tensor | None = None,
        residual_bias: torch.Tensor | None = None,
        scale_factor: float = 1.0,
        **outputs: torch.Tensor,
    ) -> torch.Tensor:
        """The bias of ``convolution`` on its ``output``, and what else the epilogue adds, to be verified as a whole."""
        bias = convolution.bias
        return self._within(self._epilogue, output, bias, residual, residual_bias, scale_factor, **outputs)

    def _within(self, operation: GatedOperation, *arguments: Any, **outputs: torch.Tensor) -> torch.Tensor:
        """A kernel inside something that a gate verifies as a whole; a kernel of the user's keeps its own gate."""
        gate = operation.gate
        if gate is None or gate.site not in self._gates:
            form: Callable[..., torch.Tensor] = operation
        else:
            form = operation.fused_form
            if gate.call_observer is not None:
                gate.call_observer(operation, arguments, outputs)
        return form(*arguments, **outputs)

    def last_convolution(self, block: Any, hidden: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The end of a residual block: second convolution, its bias, shortcut or residual, output factor."""
        convolution, shortcut = block.conv2, block.conv_shortcut

        def fused() -> torch.Tensor:
            output = convolve(convolution, hidden)
            return self.finish(convolution, output, *shortcut_of(block, x), block.output_scale_factor)

        def eager() -> torch.Tensor:
            output = convolution(hidden)  # first, as in diffusers: gradients are summed in reverse order
            total: torch.Tensor = ((x if shortcut is None else shortcut(x)) + output) / block.output_scale_factor
            return total

        gate = self._convolutions
        if gate is None:
            return eager()
        parts = (convolution_key(convolution), None if shortcut is None else convolution_key(shortcut))
        sizes = (signature(hidden), signature(x), block.output_scale_factor)
        result: torch.Tensor = gate.run(("contiguous", sizes, parts, _convolution_settings()), fused, eager)
        return result

    def _norm_arguments(
        self, norm: Any, x: torch.Tensor, silu: bool, channels_last: bool
    ) -> tuple[torch.Tensor, Any, Any, int, float, bool, bool, bool]:
        rounds = self._rounds(x.device)
        return x, norm.weight, norm.bias, norm.num_groups, norm.eps, silu, channels_last, rounds

    def _rounds(self, device: torch.device) -> bool:
        """Whether torch rounds statistics on ``device``: asked once, which waits for the device."""
        if device not in self._rounds_statistics:
            self._rounds_statistics[device] = group_norm_silu.rounds_statistics(device)
        return self._rounds_statistics[device]


def is_channels_last(x: torch.Tensor) -> bool:
    """Whether ``x`` has four dimensions in channels-last memory."""
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def runs_channels_last(x: torch.Tensor) -> bool:
    """Whether torch's convolutions and samplers take ``x`` as channels-last and return that.

    What diffusers' attention returns for one sample lies in that order, but with a first stride too small to count.
    """
    return is_channels_last(x) and not x.is_contiguous() and x.stride(0) >= x.shape[1:].numel()


def convolve(convolution: Any, x: torch.Tensor) -> torch.Tensor:
    """torch's own convolution without the bias, in the layout of ``x``."""
    return F.conv2d(
        x, convolution.weight, None, convolution.stride, convolution.padding, convolution.dilation, convolution.groups
    )


def shortcut_of(block: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The residual of a block, and the bias that is still to be added to it."""
    if block.conv_shortcut is None:
        return x, None
    return convolve(block.conv_shortcut, x), block.conv_shortcut.bias


def convolution_key(convolution: Any) -> Hashable:
    """What of a convolution can change its arithmetic, or cuDNN's choice of a kernel."""
    return (
        signature(convolution.weight),
        signature(convolution.bias),
        convolution.stride,
        convolution.padding,
        convolution.dilation,
        convolution.groups,
    )


def norm_key(norm: Any) -> Hashable:
    """What of a norm can change its arithmetic."""
    return signature(norm.weight), signature(norm.bias), norm.num_groups, norm.eps


def _convolution_settings() -> Hashable:
    """The process-wide switches that choose among convolution algorithms."""
    cudnn = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
