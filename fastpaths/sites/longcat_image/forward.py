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
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.replacements import Forward
from fuseproof.fastpaths.sites.longcat_image import steps_ahead
from fuseproof.fastpaths.sites.longcat_image.blocks import Operations, Stream
from fuseproof.fastpaths.sites.longcat_image.forms import Form, Forms
from fuseproof.fastpaths.sites.longcat_image.hoists import CurrentCall
from fuseproof.fastpaths.sites.longcat_image.modulation import Modulations, ModulationTable
from fuseproof.fastpaths.sites.longcat_image.packing import linear_into
from fuseproof.fastpaths.sites.longcat_image.soundness import Soundness


class RewrittenForward:
    """Stands in for ``LongCatImageTransformer2DModel.forward``."""

    def __init__(
        self,
        transformer: Any,
        operations: Operations,
        gates: Mapping[str, Gate],
        call: CurrentCall,
        held: HeldResults,
        eager: Forward,
    ) -> None:
        self.core: Callable[..., torch.Tensor] = self.run_core
        self._transformer = transformer
        self._operations = operations
        self._block_gate = gates["packed_blocks"]
        self._modulation_gate = gates.get("modulation")
        self._held = held
        self._eager = eager
        self._call = call
        self._table = ModulationTable(transformer)
        self._number_of_blocks = len(transformer.transformer_blocks) + len(transformer.single_transformer_blocks)
        self.forms = Forms(transformer, operations)
        self.soundness = Soundness(transformer)
        time_gate = gates.get("timestep_embedding")
        self.ahead: steps_ahead.StepsAhead | None = None
        if time_gate is not None and self._modulation_gate is not None and steps_ahead.pays(transformer):
            self.ahead = steps_ahead.StepsAhead(transformer, self._table, time_gate, self._modulation_gate)

    def __call__(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        img_ids: torch.Tensor,
        txt_ids: torch.Tensor,
        guidance: torch.Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        def eager() -> Any:
            return self._eager(
                hidden_states, encoder_hidden_states, timestep, img_ids, txt_ids, guidance, return_dict=return_dict
            )

        if torch.compiler.is_compiling():
            return eager()
        with self._call.of(txt_ids, img_ids, timestep, hidden_states.device):
            reason = self._reject_reason(hidden_states)
            if reason is not None:
                return self._block_gate.decline(reason, eager)
            self.forms.in_force().linears.refresh()
            inputs = self.prepare(hidden_states, encoder_hidden_states, timestep, img_ids, txt_ids)
            output = self.core(*inputs)
        return Transformer2DModelOutput(sample=output) if return_dict else (output,)

    def graph_state(self) -> Hashable:
        """What a captured graph of ``core`` has baked in besides its inputs."""
        return self.soundness.addresses(), self.forms.state()

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
        model, modulations = self._transformer, self._table.cut(table)
        batch, rows, width = context.shape
        hidden = context.new_empty(batch, rows + latents.shape[1], width)
        hidden[:, :rows].copy_(context)
        linear_into(model.x_embedder.weight, model.x_embedder.bias, latents, hidden[:, rows:])
        stream = Stream(hidden, rows, cos, sin)
        for index in range(self._number_of_blocks):
            self._advance(stream, index, modulations, temb)
        normed = stream.take_normed(self._operations, modulations.out, model.norm_out.norm.eps)
        output = latents.new_empty(batch, latents.shape[1], model.proj_out.out_features)
        linear_into(model.proj_out.weight, model.proj_out.bias, normed[:, rows:], output)
        return output

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
            self._block_gate.calls_fused += 1  # it is the rewritten block that runs, and a verified one where it can be
            return form.run(stream, index, modulations, eps)

        def anew() -> torch.Tensor:
            stream.hidden, stream.normed = hidden, None
            result = exact()
            stream.normed = None  # of the exact block; what is returned may be the approximate one's
            return result

        assert form.gate is not None
        result: torch.Tensor = form.gate.run(key, approximate, anew, writes=(hidden,))
        return result

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

    def _reject_reason(self, hidden_states: torch.Tensor) -> str | None:
        """Why this call must be eager as a whole, or None."""
        if torch.is_grad_enabled():
            return "gradients are recorded; call the pipeline under torch.no_grad()"
        if torch.is_autocast_enabled(hidden_states.device.type):
            return "autocast is on"
        weight = self._transformer.x_embedder.weight
        if hidden_states.dtype != weight.dtype or hidden_states.device != weight.device:
            return (
                f"latents are {hidden_states.dtype} on {hidden_states.device}, "
                f"weights {weight.dtype} on {weight.device}"
            )
        return self.soundness.change()
