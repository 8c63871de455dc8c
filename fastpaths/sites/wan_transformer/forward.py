"""The transformer's forward, rewritten: what stays the same is held, the blocks run fused, each behind its gate.

A call is split in two. ``prepare`` computes what depends on text, size and step only. ``core`` is the rest, from
latents to velocity; it is what a CUDA graph captures, so nothing held is baked into one. Neither waits for the device
where the loop announced its timesteps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from torch import nn

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.module_state import Guard
from fuseproof.fastpaths.numerics import numerics_of
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.replacements import Forward
from fuseproof.fastpaths.sites.attention import attend
from fuseproof.fastpaths.sites.wan_transformer import soundness
from fuseproof.fastpaths.sites.wan_transformer.block_stack import BlockStack
from fuseproof.fastpaths.sites.wan_transformer.blocks import Block, Operations, Step, Stream
from fuseproof.fastpaths.sites.wan_transformer.held_tensors import HeldTensors
from fuseproof.fastpaths.sites.wan_transformer.timestep_rows import TimestepRows
from fuseproof.fastpaths.sites.whole_forward import run_whole

BLOCKS = "video_blocks"


@dataclass(frozen=True)
class CallArguments:
    """The parameters of ``WanTransformer3DModel.forward``; a TypeError where a call has others."""

    hidden_states: torch.Tensor
    timestep: torch.Tensor
    encoder_hidden_states: torch.Tensor
    encoder_hidden_states_image: torch.Tensor | None = None
    return_dict: bool = True
    attention_kwargs: dict[str, Any] | None = None

    def reject_reason(self) -> str | None:
        """Why nothing can be decided about these, or why they are none that the rewritten blocks take; or None."""
        if self.encoder_hidden_states_image is not None:
            return "encoder_hidden_states_image is given; the rewritten blocks attend to text alone"
        if self.attention_kwargs:
            return f"attention_kwargs has {', '.join(self.attention_kwargs)}; the rewritten blocks take none"
        for name, dimensions in (("hidden_states", (5,)), ("timestep", (1, 2)), ("encoder_hidden_states", (3,))):
            value = getattr(self, name)
            if type(value) not in (torch.Tensor, nn.Parameter):
                return f"{name} is a {type(value).__name__}; the sites take plain tensors"
            if value.is_meta:
                return f"{name} is on the meta device"
            if value.ndim not in dimensions:
                needed = " or ".join(map(str, dimensions))
                return f"{name} has {value.ndim} dimensions; the rewritten blocks take {needed}"
            if value.device != self.hidden_states.device:
                return f"{name} is on {value.device}, hidden_states on {self.hidden_states.device}"
        batches = {len(self.hidden_states), len(self.timestep), len(self.encoder_hidden_states)}
        if len(batches) != 1:
            return f"batch sizes are {', '.join(map(str, sorted(batches)))}; the rewritten blocks need one"
        return "encoder_hidden_states is empty" if self.encoder_hidden_states.numel() == 0 else None


class RewrittenForward:
    """Stands in for ``WanTransformer3DModel.forward``."""

    def __init__(
        self, transformer: Any, operations: Operations, gates: Mapping[str, Gate], guard: Guard, eager: Forward
    ) -> None:
        self.core: Callable[..., torch.Tensor] = self.run_core
        self._transformer = transformer
        self._gates = gates
        self._guard = guard
        self._eager = eager
        self.held = HeldTensors(transformer, gates)
        self.rows = TimestepRows(transformer, gates.get("timestep_rows"))
        self.blocks = BlockStack(transformer, operations, gates.get("packed_qkv"))

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
            return self._gates[BLOCKS].decline(reason, eager)
        tensors = arguments.hidden_states, arguments.timestep, arguments.encoder_hidden_states
        rows = self.rows.number(arguments.timestep)
        key = (*map(signature, tensors), rows, numerics_of(arguments.hidden_states.device))
        output = run_whole(BLOCKS, self._gates, key, lambda: self.core(*self.prepare(*tensors)), lambda: eager()[0])
        return Transformer2DModelOutput(sample=output) if arguments.return_dict else (output,)

    def graph_state(self) -> Hashable:
        """What a captured graph of ``core`` has baked in besides its inputs."""
        return self._guard.addresses(), soundness.plain(self._transformer)

    def prepare(
        self, hidden_states: torch.Tensor, timestep: torch.Tensor, encoder_hidden_states: torch.Tensor
    ) -> tuple[Any, ...]:
        """What :meth:`run_core` takes, in order."""
        numerics = numerics_of(hidden_states.device)
        text = self.held.text(encoder_hidden_states, numerics)
        grid = self.held.grid(hidden_states, numerics)
        return hidden_states, *text, *grid, *self.rows.of(timestep, encoder_hidden_states.dtype, numerics)

    def run_core(
        self,
        latents: torch.Tensor,
        context: torch.Tensor,
        keys_values: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        temb: torch.Tensor,
        projection: torch.Tensor,
        row_of_token: torch.Tensor | None,
    ) -> torch.Tensor:
        """Velocity [B, channels, T, H, W] from latents like it, the text of the request (``context`` [B, T, D] for
        blocks that run eager, ``keys_values`` [blocks, 2, B, T, D]), its grid, and the step's rows.
        """
        hidden = self._transformer.patch_embedding(latents).flatten(2).transpose(1, 2).contiguous()
        step = Step(temb, projection, row_of_token, cosine, sine, numerics_of(latents.device))
        stream = Stream(hidden)
        for index in range(len(self.blocks)):
            self._advance(stream, step, index, context, keys_values[index])
        projected = self._transformer.proj_out(self.blocks.normed_out(stream, step, self._modulated_out))
        return self._unpatched(projected, latents)

    def _advance(
        self, stream: Stream, step: Step, index: int, context: torch.Tensor, keys_values: torch.Tensor
    ) -> None:
        """Run block ``index`` behind its gate."""
        hidden, block = stream.hidden, self.blocks[index]
        key = (index, *map(signature, (hidden, keys_values, step.projection, step.row_of_token)), step.numerics)

        def fused() -> torch.Tensor:
            following = self.blocks.following(index, step)
            return block.run(stream, step, _self_attention(block), _cross_attention(block, keys_values), following)

        def eager() -> torch.Tensor:
            stream.normed = None
            result: torch.Tensor = block.block(
                hidden, context, _of_each_token(step.projection, step.row_of_token), (step.cosine, step.sine)
            )
            return result

        stream.hidden = self._gates[BLOCKS].run(key, fused, eager)

    def _modulated_out(self, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        """The output's norm as diffusers modulates it."""
        model = self._transformer
        temb = step.temb if step.row_of_token is None else step.temb.index_select(1, step.row_of_token)
        shift, scale = (model.scale_shift_table.unsqueeze(0) + temb.unsqueeze(2)).unbind(2)
        modulated: torch.Tensor = (model.norm_out(hidden.float()) * (1 + scale) + shift).type_as(hidden)
        return modulated

    def _unpatched(self, patches: torch.Tensor, latents: torch.Tensor) -> torch.Tensor:
        """[B, S, p p p C] -> [B, C, T, H, W], in diffusers' own steps."""
        sizes = self._transformer.config.patch_size
        grid = (side // patch for side, patch in zip(latents.shape[2:], sizes, strict=True))
        apart = patches.reshape(len(patches), *grid, *sizes, -1).permute(0, 7, 1, 4, 2, 5, 3, 6)
        return apart.flatten(6, 7).flatten(4, 5).flatten(2, 3)

    def _reject_reason(self, arguments: CallArguments) -> str | None:
        """Why this call must be eager as a whole, or None."""
        latents, model = arguments.hidden_states, self._transformer
        if torch.is_grad_enabled():
            return "gradients are recorded; call the pipeline under torch.no_grad()"
        if torch.is_autocast_enabled(latents.device.type):
            return "autocast is on"
        sides, patches = tuple(latents.shape[2:]), tuple(model.config.patch_size)
        if any(side % patch or not side for side, patch in zip(sides, patches, strict=True)):
            return f"latents are {_times(sides)}, which patches of {_times(patches)} do not divide"
        tokens = latents[0, 0].numel() // (patches[0] * patches[1] * patches[2])
        if arguments.timestep.ndim == 2 and arguments.timestep.shape[1] != tokens:
            return f"timestep tells {arguments.timestep.shape[1]} tokens their step, and there are {tokens}"
        weight = model.proj_out.weight
        for name in ("hidden_states", "encoder_hidden_states"):
            value = getattr(arguments, name)
            if value.dtype != weight.dtype or value.device != weight.device:
                return f"{name} is {value.dtype} on {value.device}, weights {weight.dtype} on {weight.device}"
        return None


def _self_attention(block: Block) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """All tokens to all tokens, as the block's processor asks for it."""
    attention = block.block.attn1
    return lambda query, key, value: attend(attention, query, key, value).unflatten(2, (attention.heads, -1))


def _cross_attention(block: Block, keys_values: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """All tokens to the text's keys and values [2, B, T, D]."""
    attention = block.block.attn2
    key, value = keys_values.unflatten(-1, (attention.heads, -1))
    return lambda query: attend(attention, query, key, value).unflatten(2, (attention.heads, -1))


def _of_each_token(projection: torch.Tensor, row_of_token: torch.Tensor | None) -> torch.Tensor:
    """What diffusers hands to a block: [B, 6, D] of a sample, or [B, S, 6, D]."""
    return projection[:, 0] if row_of_token is None else projection.index_select(1, row_of_token)


def _times(sides: tuple[int, ...]) -> str:
    return " x ".join(map(str, sides))
