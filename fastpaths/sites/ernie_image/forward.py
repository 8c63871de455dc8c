"""The transformer's forward, rewritten: what stays the same is held, the blocks run on one stream, each behind a gate.

A call is split in two. ``prepare`` computes what depends on prompt, size and step only. ``core`` is the rest, from
latents to velocity; it is what a CUDA graph captures, so nothing held is baked into one. Neither waits for the device,
but for one question a request where a quality permits a full mask to be left out.

Site: image_rows
Formula: final norm and final matrix on the picture's rows alone, which come first in the stream.
Shapes: [S, B, D] -> [N, B, channels], N rows of picture.
Rounds: where eager does.
Replaces: ``final_linear(final_norm(x, c))[:N]`` of ``ErnieImageTransformer2DModel.forward``, diffusers 0.42.1.
Exact: where its gate says so, by shape: with fewer rows the library may choose another tile.
Declines: hooks on ``final_norm`` or ``final_linear``, which are then called on all rows.
Bytes: text rows are neither normed nor multiplied: 8 T B D less.
Check first: if the trace shows the last product with S B rows, read the site's reason in the report.
Source: diffusers transformer_ernie_image.py, 0.42.1.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.transformers.transformer_ernie_image import ErnieImageTransformer2DModelOutput
from torch import nn

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.hoisting import HeldResults
from fuseproof.fastpaths.module_state import Guard
from fuseproof.fastpaths.numerics import numerics_of
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.replacements import Forward
from fuseproof.fastpaths.sites.ernie_image import soundness
from fuseproof.fastpaths.sites.ernie_image.blocks import Modulation, Operations, Stream, stream_of
from fuseproof.fastpaths.sites.ernie_image.forms import Forms
from fuseproof.fastpaths.sites.ernie_image.request_tensors import Positions, RequestTensors
from fuseproof.fastpaths.sites.forms import run_approximate
from fuseproof.fastpaths.sites.whole_forward import run_whole

Size = tuple[int, int]


@dataclass(frozen=True)
class CallArguments:
    """The parameters of ``ErnieImageTransformer2DModel.forward``; a TypeError where a call has others."""

    hidden_states: torch.Tensor
    timestep: torch.Tensor
    text_bth: torch.Tensor
    text_lens: torch.Tensor
    return_dict: bool = True

    def reject_reason(self) -> str | None:
        """Why nothing can be decided about these, or why they are none that the rewritten blocks take; or None."""
        for name, dimensions in (("hidden_states", 4), ("timestep", 1), ("text_bth", 3), ("text_lens", 1)):
            value = getattr(self, name)
            if type(value) not in (torch.Tensor, nn.Parameter):
                return f"{name} is a {type(value).__name__}; the sites take plain tensors"
            if value.is_meta:
                return f"{name} is on the meta device"
            if value.ndim != dimensions:
                return f"{name} has {value.ndim} dimensions; the rewritten blocks take {dimensions}"
            if value.device != self.hidden_states.device:
                return f"{name} is on {value.device}, hidden_states on {self.hidden_states.device}"
        batches = {len(getattr(self, name)) for name in ("hidden_states", "timestep", "text_bth", "text_lens")}
        if len(batches) != 1:
            return f"batch sizes are {', '.join(map(str, sorted(batches)))}; the rewritten blocks need one"
        return "text_bth is empty" if self.text_bth.numel() == 0 else None


class RewrittenForward:
    """Stands in for ``ErnieImageTransformer2DModel.forward``."""

    def __init__(
        self,
        transformer: Any,
        operations: Operations,
        gates: Mapping[str, Gate],
        held: HeldResults,
        guard: Guard,
        eager: Forward,
    ) -> None:
        self.core: Callable[..., torch.Tensor] = self.run_core
        self._transformer = transformer
        self._operations = operations
        self._gates = gates
        self._block_gate = gates["stream_blocks"]
        self._rows_gate = gates.get("image_rows")
        self._request = RequestTensors(transformer, gates, held)
        self._guard = guard
        self._eager = eager
        self.forms = Forms(transformer, operations, gates.get("packed_projections"))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        def eager() -> Any:
            return self._eager(*args, **kwargs)

        try:
            arguments = CallArguments(*args, **kwargs)
        except TypeError:
            return eager()
        if torch.compiler.is_compiling():
            return eager()
        reason = self._guard.reason() or arguments.reject_reason() or self._reject_reason(arguments)
        if reason is not None:
            return self._block_gate.decline(reason, eager)
        self.forms.in_force().linears.refresh()
        output = self._rewritten(arguments, lambda: eager()[0])
        return ErnieImageTransformer2DModelOutput(sample=output) if arguments.return_dict else (output,)

    def _rewritten(self, arguments: CallArguments, eager: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The velocity; ``eager`` gives the library's own of the same call."""
        tensors = arguments.hidden_states, arguments.timestep, arguments.text_bth, arguments.text_lens

        def core() -> torch.Tensor:
            return self.core(*self.prepare(*tensors))

        if self.forms.in_force().gate is not None:
            return core()
        key = (*map(signature, tensors), numerics_of(arguments.hidden_states.device))
        return run_whole("stream_blocks", self._gates, key, core, eager)

    def graph_state(self) -> Hashable:
        """What a captured graph of ``core`` has baked in besides its inputs."""
        return self._guard.addresses(), soundness.plain(self._transformer), self.forms.state()

    def prepare(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, text_bth: torch.Tensor, text_lens: torch.Tensor
    ) -> tuple[Any, ...]:
        """What :meth:`run_core` takes, in order."""
        model, dtype = self._transformer, hidden_states.dtype
        numerics, text_rows = numerics_of(hidden_states.device), text_bth.shape[1]
        context = self._request.context(text_bth, numerics)
        size = self._size(hidden_states)
        positions = self._request.positions(text_lens, text_rows, size, dtype, numerics)
        is_full = self.forms.in_force().gate is not None and self._request.is_mask_full(text_lens, text_rows)
        conditioning = model.time_embedding(model.time_proj(timestep).to(dtype=dtype))
        modulation = model.adaLN_modulation(conditioning)
        return hidden_states, context, *positions, is_full, conditioning, modulation

    def run_core(
        self,
        latents: torch.Tensor,
        context: torch.Tensor,
        angles: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor,
        is_mask_full: bool,
        conditioning: torch.Tensor,
        modulation: torch.Tensor,
    ) -> torch.Tensor:
        """Velocity [B, channels, H, W] from latents like it, context [B, T, D], the positions of the request,
        conditioning [B, D] and modulation [B, 6 D].
        """
        height, width = self._size(latents)
        rows = height * width
        hidden = torch.cat([self._transformer.x_embedder(latents).transpose(0, 1), context.transpose(0, 1)])
        stream = Stream(hidden, cos, sin, mask, is_mask_full, numerics_of(latents.device))
        positions = Positions(angles, cos, sin, mask)
        for index in range(len(self._transformer.layers)):
            self._advance(stream, index, modulation, positions)
        projected = self._finished(stream, rows, conditioning)
        return self._unpatched(projected.transpose(0, 1).contiguous(), height, width)

    def _advance(self, stream: Stream, index: int, modulation: torch.Tensor, positions: Positions) -> None:
        """Run block ``index`` in the form that is in force: exact, or approximate behind a gate of its own."""
        hidden, form = stream.hidden, self.forms.in_force()
        parts = Modulation(*modulation.chunk(6, dim=-1))
        key = (index, signature(hidden), signature(positions.mask), signature(positions.cos), stream.numerics)

        def eager() -> torch.Tensor:
            stream.hidden, stream.normed = hidden, None
            return self._eager_block(hidden, index, modulation, positions)

        def exact() -> torch.Tensor:
            result: torch.Tensor = self._block_gate.run(
                key, lambda: self.forms.exact.run(stream, index, parts), eager, writes=(hidden,)
            )
            return result

        def exact_anew() -> torch.Tensor:
            stream.hidden, stream.normed = hidden, None
            result = exact()
            stream.normed = None  # of the exact block; what is returned may be the approximate one's
            return result

        if form.gate is None:
            stream.hidden = exact()
        else:
            full_key = (form.name, stream.is_mask_full, *key)
            stream.hidden = run_approximate(
                form.gate, self._block_gate, full_key, lambda: form.run(stream, index, parts), exact_anew, (hidden,)
            )

    def _eager_block(
        self, hidden: torch.Tensor, index: int, modulation: torch.Tensor, positions: Positions
    ) -> torch.Tensor:
        """diffusers' own block, its modulations expanded as diffusers expands them: [S, B, D]."""
        expanded = [part.unsqueeze(0).expand(len(hidden), -1, -1).contiguous() for part in modulation.chunk(6, dim=-1)]
        result: torch.Tensor = self._transformer.layers[index](hidden, positions.angles, expanded, positions.mask)
        return result

    def _finished(self, stream: Stream, rows: int, conditioning: torch.Tensor) -> torch.Tensor:
        """Final norm and matrix: [rows, B, channels]."""
        model, x = self._transformer, stream.hidden
        if not {"final_norm", "final_linear"} <= soundness.plain(model):
            result: torch.Tensor = model.final_linear(model.final_norm(x, conditioning).type_as(x))[:rows]
            return result
        scale, shift = model.final_norm.linear(conditioning).chunk(2, dim=-1)

        def of(count: int) -> torch.Tensor:
            some = x[:count].transpose(0, 1)
            room = torch.empty_like(x[:count]).transpose(0, 1)
            eps = model.final_norm.norm.eps
            normed = self._operations.layernorm_modulate(some, scale, shift, eps, None, None, 0, out=room)
            return F.linear(stream_of(normed), model.final_linear.weight, model.final_linear.bias)

        if self._rows_gate is None:
            return of(len(x))[:rows]
        key = ("image_rows", rows, signature(x), stream.numerics)
        finished: torch.Tensor = self._rows_gate.run(key, lambda: of(rows), lambda: of(len(x))[:rows])
        return finished

    def _unpatched(self, patches: torch.Tensor, height: int, width: int) -> torch.Tensor:
        """[B, H W, p p C] -> [B, C, H p, W p]."""
        model, batch = self._transformer, len(patches)
        side, channels = model.patch_size, model.out_channels
        grid = patches.view(batch, height, width, side, side, channels).permute(0, 5, 1, 3, 2, 4)
        return grid.contiguous().view(batch, channels, height * side, width * side)

    def _size(self, latents: torch.Tensor) -> Size:
        """Rows and columns of patches."""
        side = self._transformer.patch_size
        return latents.shape[2] // side, latents.shape[3] // side

    def _reject_reason(self, arguments: CallArguments) -> str | None:
        """Why this call must be eager as a whole, or None."""
        latents = arguments.hidden_states
        if torch.is_grad_enabled():
            return "gradients are recorded; call the pipeline under torch.no_grad()"
        if torch.is_autocast_enabled(latents.device.type):
            return "autocast is on"
        side = self._transformer.patch_size
        if latents.shape[2] % side or latents.shape[3] % side:
            return f"latents are {latents.shape[2]} x {latents.shape[3]}, which patches of {side} do not divide"
        weight = next(self._transformer.parameters())
        for name in ("hidden_states", "text_bth"):
            value = getattr(arguments, name)
            if value.dtype != weight.dtype or value.device != weight.device:
                return f"{name} is {value.dtype} on {value.device}, weights {weight.dtype} on {weight.device}"
        return None
