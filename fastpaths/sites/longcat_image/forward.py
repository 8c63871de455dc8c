"""The transformer's forward, rewritten: what stays the same is held, the blocks run on one stream, each behind a gate.

A call is split in two. ``prepare`` computes what depends on prompt, size and step only, each through its hoisting
site. ``core`` is the rest, from latents to velocity; it is what a CUDA graph captures, so nothing held is baked into
one.

An approximate form of the blocks (:mod:`forms`) has a gate of its own around the block gate: what it is compared with
is the exact block as the block gate lets it run, so approximation never reaches the verdicts of lossless.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.hoisting import HeldResults, are_countable
from fuseproof.fastpaths.module_state import Guard
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.replacements import Forward
from fuseproof.fastpaths.sites.forms import run_approximate
from fuseproof.fastpaths.sites.longcat_image import soundness, steps_ahead
from fuseproof.fastpaths.sites.longcat_image.blocks import Operations, Stream
from fuseproof.fastpaths.sites.longcat_image.forms import Form, Forms
from fuseproof.fastpaths.sites.longcat_image.hoists import CallArguments, CurrentCall, arguments_of
from fuseproof.fastpaths.sites.longcat_image.modulation import Modulations, ModulationTable
from fuseproof.fastpaths.sites.packing import is_aligned, linear_into
from fuseproof.fastpaths.sites.whole_forward import run_whole


class RewrittenForward:
    """Stands in for ``LongCatImageTransformer2DModel.forward``."""

    def __init__(
        self,
        transformer: Any,
        operations: Operations,
        gates: Mapping[str, Gate],
        call: CurrentCall,
        held: HeldResults,
        guard: Guard,
        eager: Forward,
    ) -> None:
        self.core: Callable[..., torch.Tensor] = self.run_core
        self._transformer = transformer
        self._operations = operations
        self._gates = gates
        self._block_gate = gates["packed_blocks"]
        self._modulation_gate = gates.get("modulation")
        self._held = held
        self._eager = eager
        self._call = call
        self._guard = guard
        self._table = ModulationTable(transformer)
        self._number_of_blocks = len(transformer.transformer_blocks) + len(transformer.single_transformer_blocks)
        self.forms = Forms(transformer, operations)
        time_gate = gates.get("timestep_embedding")
        self.ahead: steps_ahead.StepsAhead | None = None
        if time_gate is not None and self._modulation_gate is not None and steps_ahead.pays(transformer):
            self.ahead = steps_ahead.StepsAhead(transformer, self._table, time_gate, self._modulation_gate)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        def eager() -> Any:
            return self._eager(*args, **kwargs)

        arguments = arguments_of(args, kwargs)
        if arguments is None or torch.compiler.is_compiling():
            return eager()
        reason = self._guard.reason() or arguments.reject_reason()
        with self._call.of(arguments, reason):
            reason = reason or self._reject_reason(arguments)
            if reason is not None:
                return self._block_gate.decline(reason, eager)
            self.forms.in_force().linears.refresh()
            output = self._rewritten(arguments, lambda: eager()[0])
        return Transformer2DModelOutput(sample=output) if arguments.return_dict else (output,)

    def _rewritten(self, arguments: CallArguments, eager: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The velocity; ``eager`` gives the library's own of the same call."""
        tensors = (
            arguments.hidden_states,
            arguments.encoder_hidden_states,
            arguments.timestep,
            arguments.img_ids,
            arguments.txt_ids,
        )

        def core() -> torch.Tensor:
            return self.core(*self.prepare(*tensors))

        if self.forms.in_force().gate is not None:
            return core()
        key = (*map(signature, tensors), self._call.numerics)
        return run_whole("packed_blocks", self._gates, key, core, eager)

    def graph_state(self) -> Hashable:
        """What a captured graph of ``core`` has baked in besides its inputs."""
        return self._guard.addresses(), soundness.plain(self._transformer), self.forms.state()

    def prepare(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        img_ids: torch.Tensor,
        txt_ids: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        """Latents, context [B, T, D], cos and sin [S, head_dim], temb [B, D] and the modulation table [B, total]."""
        model = self._transformer
        dtype = hidden_states.dtype
        ahead = self.ahead.find(timestep, dtype, self._call.numerics) if self.ahead is not None else None
        if ahead is None:
            temb = model.time_embed(timestep.to(dtype) * 1000, dtype)
            ahead = temb, self._modulation(temb)
        context = model.context_embedder(encoder_hidden_states)
        cos, sin = model.pos_embed(torch.cat((txt_ids, img_ids), dim=0))
        return hidden_states, context, cos, sin, *ahead

    def run_core(
        self,
        latents: torch.Tensor,
        context: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        temb: torch.Tensor,
        table: torch.Tensor,
    ) -> torch.Tensor:
        """Velocity [B, N, channels] from latents [B, N, channels] and what :meth:`prepare` computed."""
        model, modulations, plain = self._transformer, self._table.cut(table), soundness.plain(self._transformer)
        rows = context.shape[1]
        stream = Stream(self._joined(context, latents), rows, cos, sin)
        for index in range(self._number_of_blocks):
            self._advance(stream, index, modulations, temb)
        if "norm_out" in plain:
            normed = stream.take_normed(self._operations, modulations.out, model.norm_out.norm.eps)[:, rows:]
        else:
            normed = model.norm_out(stream.hidden[:, rows:].contiguous(), temb)
        normed = normed.contiguous()
        output: torch.Tensor = model.proj_out(normed if is_aligned(normed) else normed.clone())
        return output

    def _joined(self, context: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """Rows of text, then of the embedded picture: [B, T + N, D]."""
        model, (batch, rows, width) = self._transformer, context.shape
        if "x_embedder" not in soundness.plain(model) or batch > 1:
            return torch.cat([context, model.x_embedder(latents)], dim=1)
        hidden = context.new_empty(batch, rows + latents.shape[1], width)
        hidden[:, :rows].copy_(context)
        place = hidden[:, rows:]
        if is_aligned(place):
            linear_into(model.x_embedder.weight, model.x_embedder.bias, latents, place)
        else:
            place.copy_(model.x_embedder(latents))
        return hidden

    def _advance(self, stream: Stream, index: int, modulations: Modulations, temb: torch.Tensor) -> None:
        """Run block ``index`` in the form that is in force: exact, or approximate behind a gate of its own."""
        hidden, form, eps = stream.hidden, self.forms.in_force(), self._entry_eps(index + 1)
        key = (index, signature(hidden), stream.text_rows, stream.cos.dtype, self._call.numerics)

        def exact() -> torch.Tensor:
            result: torch.Tensor = self._block_gate.run(
                key, lambda: self.forms.exact.run(stream, index, modulations, eps), eager, writes=(hidden,)
            )
            return result

        def eager() -> torch.Tensor:
            stream.hidden, stream.normed = hidden, None
            return self._eager_block(stream, index, temb)

        if form.gate is None:
            stream.hidden = exact()
        else:
            stream.hidden = self._approximated(form, (form.name, key), stream, exact, index, modulations)

    def _approximated(
        self,
        form: Form,
        key: Hashable,
        stream: Stream,
        exact: Callable[[], torch.Tensor],
        index: int,
        modulations: Modulations,
    ) -> torch.Tensor:
        """Block ``index`` in an approximate form; at first sight, and where it is rejected, ``exact``."""
        hidden, eps = stream.hidden, self._entry_eps(index + 1)

        def approximate() -> torch.Tensor:
            return form.run(stream, index, modulations, eps)

        def anew() -> torch.Tensor:
            stream.hidden, stream.normed = hidden, None
            result = exact()
            stream.normed = None  # of the exact block; what is returned may be the approximate one's
            return result

        assert form.gate is not None
        return run_approximate(form.gate, self._block_gate, key, approximate, anew, (hidden,))

    def _eager_block(self, stream: Stream, index: int, temb: torch.Tensor) -> torch.Tensor:
        """diffusers' own block on the stream's two halves, joined again: [B, S, D]."""
        rows = stream.text_rows
        module = self._block(index)
        text, image = module(
            hidden_states=stream.hidden[:, rows:].contiguous(),
            encoder_hidden_states=stream.hidden[:, :rows].contiguous(),
            temb=temb,
            image_rotary_emb=(stream.cos, stream.sin),
        )
        return torch.cat([text, image], dim=1)

    def _block(self, index: int) -> Any:
        joint, single = self._transformer.transformer_blocks, self._transformer.single_transformer_blocks
        return joint[index] if index < len(joint) else single[index - len(joint)]

    def _entry_eps(self, index: int) -> float:
        if index >= self._number_of_blocks:
            norm = self._transformer.norm_out.norm
        elif index < len(self._transformer.transformer_blocks):
            norm = self._block(index).norm1.norm
        else:
            norm = self._block(index).norm.norm
        eps: float = norm.eps
        return eps

    def _modulation(self, temb: torch.Tensor) -> torch.Tensor:
        """The table of this step: held from the other branch where it was given the same temb."""
        gate, table = self._modulation_gate, self._table
        if gate is None:
            return table.reference(temb)
        key = ("table", signature(temb), self._call.numerics)
        sources = (temb, *table.weights())
        if are_countable(sources):
            entry = self._held.find(key, sources)
            if entry is not None:
                return gate.run(key, lambda: entry.result, lambda: table.reference(temb))
        result: torch.Tensor = gate.run(key, lambda: table.fused(temb), lambda: table.reference(temb))
        if are_countable((*sources, result)):
            self._held.hold(key, sources, result)
        return result

    def _reject_reason(self, arguments: CallArguments) -> str | None:
        """Why this call must be eager as a whole, or None."""
        latents = arguments.hidden_states
        if torch.is_grad_enabled():
            return "gradients are recorded; call the pipeline under torch.no_grad()"
        if torch.is_autocast_enabled(latents.device.type):
            return "autocast is on"
        weight = self._transformer.x_embedder.weight
        if latents.dtype != weight.dtype or latents.device != weight.device:
            return f"latents are {latents.dtype} on {latents.device}, weights {weight.dtype} on {weight.device}"
        return _layout_reason(arguments)


def _layout_reason(arguments: CallArguments) -> str | None:
    """Inputs for which diffusers' own forward takes other library calls than for plain rows of one batch."""
    latents, context, timestep = arguments.hidden_states, arguments.encoder_hidden_states, arguments.timestep
    assert context is not None and timestep is not None
    for name, tensor in (("hidden_states", latents), ("encoder_hidden_states", context)):
        if tensor.ndim != 3:
            return f"{name} has {tensor.ndim} dimensions; the rewritten blocks take [batch, tokens, width]"
        if not tensor.is_contiguous():
            return f"{name} has strides {tensor.stride()}; the rewritten blocks take contiguous inputs"
    batches = latents.shape[0], context.shape[0], *timestep.shape
    if len(batches) != 3 or len(set(batches)) != 1:
        return (
            f"hidden_states is a batch of {latents.shape[0]}, encoder_hidden_states of {context.shape[0]}, timestep is "
            f"{list(timestep.shape)}; the rewritten blocks need one batch size"
        )
    return None
