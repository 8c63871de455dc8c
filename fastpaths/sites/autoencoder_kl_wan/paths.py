"""The arithmetic of the VAE's pieces, each behind the gate of its site, with diffusers' own as the reference."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.kernels import (
    average_downsample_add,
    bordered_frames,
    causal_conv_input,
    channel_norms,
    duplicate_upsample_add,
    nearest_upsample,
    wan_norm_silu,
)
from fuseproof.fastpaths.kernels.launching import device_reason
from fuseproof.fastpaths.operations import GatedOperation, signature
from fuseproof.fastpaths.sites.autoencoder_kl.layouts import narrow_reason
from fuseproof.fastpaths.sites.autoencoder_kl_wan import modules
from fuseproof.fastpaths.sites.autoencoder_kl_wan.caches import Caches, Eager, Layouts
from fuseproof.fastpaths.sites.autoencoder_kl_wan.eager_layouts import eager_stride, is_last
from fuseproof.fastpaths.sites.autoencoder_kl_wan.held_weights import TurnedWeights
from fuseproof.fastpaths.sites.watched_coder import WatchedCoder
from fuseproof.fastpaths.trials import Computation

NORMS, BLOCKS = "wan_vae_norms", "wan_vae_blocks"
UPSAMPLING, DOWNSAMPLING = "wan_vae_upsampling", "wan_vae_downsampling"
LARGEST_SAMPLE = 2**31


class Form(NamedTuple):
    """Which memory convolutions run in, and whether a kernel sums the squares of norms in torch's order itself."""

    channels_last: bool
    own_sums: bool


LAYOUT = "called for the first time: the layout of eager's result was not known"
FORMS = (Form(True, True), Form(True, False), Form(False, True), Form(False, False))
"""Tried in this order; one that its gate rejects gives way to the next, which is tried in the same call."""


@dataclass(frozen=True)
class Seen:
    """What both coders of a VAE have seen: they share gates, so what one of them verified the other does not rerun."""

    layouts: dict[Hashable, Layouts] = field(default_factory=dict)
    rejected: dict[Hashable, set[Form]] = field(default_factory=dict)


class Paths:
    """What the replaced forwards of ``coder`` call. A site that is off has no gate here, and its reference runs."""

    def __init__(
        self, gates: Mapping[str, Gate], coder: WatchedCoder, weights: TurnedWeights, seen: Seen | None = None
    ) -> None:
        self.coder = coder
        self.weights = weights
        self._gates = dict(gates)
        self._seen = seen or Seen()
        inside = gates.get(BLOCKS) or gates.get(UPSAMPLING) or gates.get(DOWNSAMPLING)
        self._norm = GatedOperation("wan_norm_silu", wan_norm_silu, gates.get(NORMS))
        self._input = GatedOperation("causal_conv_input", causal_conv_input, inside)
        self._epilogue = GatedOperation("duplicate_upsample_add", duplicate_upsample_add, inside)
        self._upsample = GatedOperation("nearest_upsample", nearest_upsample, gates.get(UPSAMPLING))
        self._border = GatedOperation("bordered_frames", bordered_frames, gates.get(DOWNSAMPLING))
        self._average = GatedOperation("average_downsample_add", average_downsample_add, gates.get(DOWNSAMPLING))

    def has(self, site: str) -> bool:
        """Whether ``site`` is on."""
        return site in self._gates

    def decline_reason(
        self, x: torch.Tensor, convolution: Any, *children: Any, growth: int = 2, casts: bool = False
    ) -> str | None:
        """Why this call must be eager as a whole, or None; ``growth`` is how much larger than x its tensors become.

        ``casts``: the convolution's input may be made bf16 on its way, as autocast does.
        """
        if type(x) not in (torch.Tensor, nn.Parameter):
            return f"activations are a {type(x).__name__}; the kernels need plain tensors"
        if x.is_meta:
            return "activations are on the meta device"
        dtype = computed_in(x, convolution)
        if dtype not in modules.DTYPES:
            return f"convolutions run in {dtype}; the kernels need torch.bfloat16 or torch.float32"
        if x.dtype != dtype and not (casts and x.dtype in modules.DTYPES and dtype == torch.bfloat16):
            return f"activations are {x.dtype} in front of convolutions in {dtype}; the kernels need the same"
        if x.ndim != 5 or (x.shape[2] > 1 and x.shape[3] * x.shape[4] % 4):
            return f"activations are {list(x.shape)}; the kernels need frames of a multiple of 4 positions"
        if growth * x[0].numel() >= LARGEST_SAMPLE:
            return f"a sample has {x[0].numel()} elements; the kernels need fewer than {LARGEST_SAMPLE // growth}"
        return self.coder.reason() or device_reason("the activation", x) or modules.change_in(convolution, *children)

    def decline(self, reason: str, eager: Callable[[], Any], *sites: str) -> Any:
        """Run ``eager`` and count the call as declined at those of ``sites`` that are mounted."""
        for site in sites:
            if site in self._gates:
                self._gates[site].decline(reason, lambda: None)
        return eager()

    def run(
        self,
        site: str,
        key: Hashable,
        x: torch.Tensor,
        caches: Caches,
        entries: int,
        fused: Callable[[Form, list[Any]], torch.Tensor],
        eager: Eager,
        convolutions: tuple[Any, ...],
    ) -> torch.Tensor:
        """``fused`` in the first form that the gate of ``site`` has not rejected; it writes ``entries`` caches."""
        gate = self._gates[site]
        layers = tuple(convolution_key(convolution) for convolution in convolutions)
        whole = (key, signature(x), eager_stride(x), caches.key(entries), layers, settings_of(x))
        narrow = narrow_reason(*(one for one in convolutions if one.kernel_size[-1] > 1))
        forms = [form for form in FORMS if narrow is None or not form.channels_last]
        layouts = self._seen.layouts
        rejected = self._seen.rejected.setdefault((site, key, x.shape, eager_stride(x), layers, settings_of(x)), set())
        run_eager = caches.eager(eager, entries)
        left = [form for form in forms if form not in rejected] or forms[-1:]
        for form in left:
            result = self._run_form(gate, (form, *whole), caches.fused(partial(fused, form)), run_eager)
            if (form, *whole) not in gate.rejections:
                break
            rejected.add(form)  # in whichever memory the same call comes next
            if form is not left[-1]:
                gate.forget_eager_call()
        if caches.seen is not None:
            layouts[whole] = caches.seen
        return caches.settle(result, layouts[whole])

    def _run_form(self, gate: Gate, key: tuple[Hashable, ...], fused: Computation, eager: Computation) -> Any:
        trusts = gate.certified or gate.mode is GateMode.OFF or gate.is_decided(key)
        if key[1:] not in self._seen.layouts and trusts:  # such a gate would not run eager at first sight
            return gate.run_eager(eager, LAYOUT)
        return gate.run(key, fused, eager, same_layout=False)

    def norm(self, norm: Any, x: torch.Tensor) -> torch.Tensor:
        """An RMS norm by itself: torch's own sum, and what follows it behind the gate."""
        denominator = channel_norms.denominators(x)
        result: torch.Tensor = self._norm(x, denominator, norm.gamma, None, norm.scale, False, False)
        return result

    def input_of(
        self,
        convolution: Any,
        x: torch.Tensor,
        form: Form,
        norm: Any = None,
        x_bias: torch.Tensor | None = None,
        cache: torch.Tensor | None = None,
        sums_last: bool | None = None,
        front: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The padded input of a causal convolution, behind a norm and SiLU or not, and its next cache.

        ``sums_last``: eager would sum x channels-last; x's own note says so where it is None. ``front``: frames in
        front of x's; as many as the convolution pads where it is None.
        """
        right, _, below, _, padded, _ = convolution._padding
        front = padded if front is None else front
        last = is_last(x) if sums_last is None else sums_last
        order = channel_norms.order_on(x, last) if norm is not None and form.own_sums else None
        denominator = _denominator(x, x_bias, last) if norm is not None and order is None else None
        pair: tuple[torch.Tensor, torch.Tensor] = self._within(
            self._input,
            x,
            None if norm is None else norm.gamma,
            x_bias,
            cache,
            denominator,
            1.0 if norm is None else norm.scale,
            norm is not None,
            front,
            below,
            right,
            form.channels_last,
            computed_in(x, convolution) == torch.bfloat16,
            None if order is None else (order.lanes, order.blocks, order.vector),
        )
        return pair

    def convolve(self, convolution: Any, x: torch.Tensor, form: Form) -> torch.Tensor:
        """torch's own convolution without the bias, in the layout of ``form``."""
        weight = convolution.weight
        if form.channels_last:
            weight = self.weights.of(convolution, computed_in(x, convolution))
        operation = F.conv3d if weight.ndim == 5 else F.conv2d
        result: torch.Tensor = operation(
            x, weight, None, convolution.stride, convolution.padding, convolution.dilation, convolution.groups
        )
        return result

    def upsampled(self, x: torch.Tensor, bias: torch.Tensor | None, frames: int) -> torch.Tensor:
        """Twice as high and wide, and ``frames`` times as many of them, in channels-last memory."""
        result: torch.Tensor = self._within(self._upsample, x, bias, frames)
        return result

    def bordered(self, x: torch.Tensor, border: int, form: Form) -> torch.Tensor:
        """``x`` with zeros below and on the right, in the memory that ``form`` convolves in."""
        if not form.channels_last:
            return F.pad(x.contiguous(), (0, border, 0, border))
        result: torch.Tensor = self._within(self._border, x, border)
        return result

    def finish_averaged(
        self,
        output: torch.Tensor,
        bias: torch.Tensor | None,
        shortcut: torch.Tensor,
        factors: tuple[int, int],
        channels_last: bool = True,
    ) -> torch.Tensor:
        """The bias of a convolution on its ``output``, and means of ``shortcut`` over cubes of ``factors``."""
        result: torch.Tensor = self._within(self._average, output, bias, shortcut, *factors, channels_last)
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
        result: torch.Tensor = self._within(
            self._epilogue, output, bias, residual, residual_bias, *factors, channels_last
        )
        return result

    def _within(self, operation: GatedOperation, *arguments: Any) -> Any:
        """A kernel inside something that a gate verifies as a whole; a kernel of the user's keeps its own gate."""
        gate = operation.gate
        if gate is None or gate.site not in self._gates:
            return operation(*arguments)
        if gate.call_observer is not None:
            gate.call_observer(operation, arguments, {})
        return operation.fused_form(*arguments)


def computed_in(x: torch.Tensor, convolution: Any) -> torch.dtype:
    """The dtype that a convolution of ``x`` runs in here: autocast's, or that of its weight."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    dtype: torch.dtype = convolution.weight.dtype
    return dtype


def turned(x: torch.Tensor, form: Form) -> torch.Tensor:
    """``x`` in the memory that ``form`` convolves in."""
    return x.contiguous(memory_format=torch.channels_last_3d if form.channels_last else torch.contiguous_format)


def convolution_key(convolution: Any) -> Hashable:
    """What of a convolution can change its arithmetic, or cuDNN's choice of a kernel."""
    padding = getattr(convolution, "_padding", convolution.padding)
    parts = signature(convolution.weight), signature(convolution.bias)
    return (*parts, convolution.stride, tuple(padding), convolution.dilation)


def norm_key(norm: Any) -> Hashable:
    """What of a norm can change its arithmetic."""
    return signature(norm.gamma), norm.scale


def sums_last_behind(x: torch.Tensor, cache: Any) -> bool:
    """Whether eager's convolution of ``cache`` and ``x`` returns channels-last: all that ``cat`` gets must be."""
    return is_last(x) and (not isinstance(cache, torch.Tensor) or is_last(cache))


def _denominator(x: torch.Tensor, x_bias: torch.Tensor | None, last: bool) -> torch.Tensor:
    """What ``F.normalize`` divides by, of eager's layout."""
    hidden = x if x_bias is None else x + x_bias.to(x.dtype).view(-1, 1, 1, 1)
    layout = torch.channels_last_3d if last else torch.contiguous_format
    return channel_norms.denominators(hidden.contiguous(memory_format=layout)).contiguous()


def settings_of(x: torch.Tensor) -> Hashable:
    """The process-wide switches that choose among convolution algorithms, and what autocast does."""
    cudnn, kind = torch.backends.cudnn, x.device.type
    autocast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
    switches = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32)
    return autocast, switches, torch.are_deterministic_algorithms_enabled()
