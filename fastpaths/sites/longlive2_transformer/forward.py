"""One pass over a chunk, rewritten: Wan's fused blocks, with the chunk's keys and values laid into the model's caches.

A call is split as the model splits it: ``prepare_chunk`` is the model's own; ``core`` is the pass from latents to
velocity, and what a CUDA graph captures. It reads and writes the caches, whose memory does not move, and is told where
the chunk lies in them, so that a graph belongs to one place. Once the window is full, all chunks have the same one.

Site: chunk_blocks
Formula: the blocks' own; products keep the rows, their order and the layout that the model gives the library.
Shapes: hidden rows [B, S, D] of a chunk of S tokens, modulation one row a frame, or one for all that are told alike;
    bf16 or fp32, with tables and affine norms in fp32.
Rounds: where eager does; the stream is rounded to its dtype after every residual.
Replaces: the blocks and ``norm_out`` in ``LongLive2Transformer3DModel.forward_prepared`` of fuseproof.
Exact: every bit where each piece is; each block's gate compares it whole with the model's own block, with the keys and
    values that it leaves, and the whole pass is compared once for every place of a chunk.
Declines: adapters, quantised, hooked, offloaded or replaced modules (by name), fused projections, other attention
    processors, tables that are not fp32, autocast, gradients. Weights that have moved since mounting decline at the
    next call.
Bytes: the products' own, and those of the kernels between: about 70 B S D bytes a block.
Check first: if the trace shows ``vectorized_layer_norm_kernel`` in a block, read the site's reason in the report: one
    hooked or replaced module makes all blocks decline.
Source: fuseproof's pipelines/longlive2_model.py; diffusers transformer_wan.py, 0.42.1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch

from fuseproof.fastpaths.gates import Gate, GateMode
from fuseproof.fastpaths.module_state import Guard
from fuseproof.fastpaths.numerics import numerics_of
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.replacements import Forward
from fuseproof.fastpaths.sites.attention import attend
from fuseproof.fastpaths.sites.longlive2_transformer.told_alike import ToldAlike
from fuseproof.fastpaths.sites.wan_transformer import soundness
from fuseproof.fastpaths.sites.wan_transformer.block_stack import BlockStack
from fuseproof.fastpaths.sites.wan_transformer.blocks import Block, Operations, Step, Stream
from fuseproof.fastpaths.sites.whole_forward import run_whole

BLOCKS = "chunk_blocks"


class AtWork(threading.local):
    """The caches of the clip that a thread is making."""

    caches: Any = None


class RewrittenChunk:
    """Stands in for ``LongLive2Transformer3DModel.forward``."""

    def __init__(
        self, transformer: Any, operations: Operations, gates: Mapping[str, Gate], guard: Guard, eager: Forward
    ) -> None:
        self.core: Callable[..., torch.Tensor] = self.run_core
        self._transformer = transformer
        self._gates = gates
        self._guard = guard
        self._eager = eager
        self._at_work = AtWork()
        self.told_alike = ToldAlike(transformer, gates[BLOCKS])
        self._rows: tuple[Hashable, torch.Tensor] | None = None
        self.blocks = BlockStack(transformer, operations, gates.get("packed_chunk_qkv"))

    def __call__(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        caches: Any,
        start_frame: int,
        write: bool,
    ) -> torch.Tensor:
        def eager() -> torch.Tensor:
            velocity: torch.Tensor = self._eager(
                hidden_states=hidden_states,
                timestep=timestep,
                encoder_hidden_states=encoder_hidden_states,
                caches=caches,
                start_frame=start_frame,
                write=write,
            )
            return velocity

        if torch.compiler.is_compiling():
            return eager()
        reason = self._guard.reason() or self._reject_reason(hidden_states, timestep, encoder_hidden_states)
        if reason is not None:
            velocity: torch.Tensor = self._gates[BLOCKS].decline(reason, eager)
            return velocity
        model = self._transformer
        arguments = self.prepare(hidden_states, timestep, encoder_hidden_states, caches, start_frame)
        kinds = map(signature, (*arguments, encoder_hidden_states))
        key = (*kinds, numerics_of(hidden_states.device))
        velocity = run_whole(
            BLOCKS,
            self._gates,
            key,
            lambda: self.core(*arguments),
            lambda: model.forward_prepared(hidden_states, timestep, caches),
        )
        if write:
            caches.commit_chunk()
        return velocity

    def clear(self) -> None:
        """Let go of the caches of the request that ended; whoever made them keeps them."""
        self._at_work.caches = None

    def graph_state(self) -> Hashable:
        """What a captured graph of ``core`` has baked in besides its inputs: weights, and the caches' memory."""
        caches = self._at_work.caches
        lists = (caches.keys, caches.values, caches.text_keys, caches.text_values, [caches.cosine, caches.sine])
        memory = tuple(tensor.data_ptr() for tensors in lists for tensor in tensors)
        return self._guard.addresses(), soundness.plain(self._transformer), memory

    def prepare(
        self,
        hidden_states: torch.Tensor,
        timestep: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        caches: Any,
        start_frame: int,
    ) -> tuple[Any, ...]:
        """What :meth:`run_core` takes, in order; the model makes room for the chunk, and the text's keys and values."""
        self._at_work.caches = caches
        frames = hidden_states.shape[2]
        self._transformer.prepare_chunk(encoder_hidden_states, caches, start_frame, frames)
        place = caches.chunk_place
        rows, device = None, hidden_states.device
        if not self.told_alike.have_one_row(timestep, hidden_states.dtype, numerics_of(device)):
            rows = self._row_of_token(frames, caches.tokens_per_frame, device)
        return hidden_states, timestep, rows, place.start, place.stop

    def run_core(
        self, latents: torch.Tensor, timestep: torch.Tensor, row_of_token: torch.Tensor | None, start: int, stop: int
    ) -> torch.Tensor:
        """Velocity [B, C, F, h, w] from latents like it, ``timestep`` [B, F] and the row [S] that each token has of it,
        or None for row 0; the chunk's tokens are ``start`` to ``stop`` of the caches.
        """
        model, caches = self._transformer, self._at_work.caches
        hidden = model.patch_embedding(latents).flatten(2).transpose(1, 2).contiguous()
        temb, modulation = model.modulation_rows(timestep, hidden.dtype)
        tokens = stop - start
        tables = caches.cosine[:, :tokens], caches.sine[:, :tokens]
        told = slice(0, 1 if row_of_token is None else None)
        step = Step(temb[:, told], modulation[:, told], row_of_token, *tables, numerics_of(latents.device))
        stream = Stream(hidden)
        for index in range(len(self.blocks)):
            self._advance(stream, step, index, slice(start, stop), modulation)
        projected = model.proj_out(self.blocks.normed_out(stream, step, self._modulated_out))
        velocity: torch.Tensor = model._unpatchified(projected, len(latents), *latents.shape[2:])
        return velocity

    def _advance(self, stream: Stream, step: Step, index: int, place: slice, modulation: torch.Tensor) -> None:
        """Run block ``index`` behind its gate, which compares its rows, and the keys and values that it leaves.

        ``modulation`` [B, F, 6, D] is what the model's own block is told.
        """
        hidden, block, caches, gate = stream.hidden, self.blocks[index], self._at_work.caches, self._gates[BLOCKS]
        written = caches.keys[index][:, place], caches.values[index][:, place]
        tensors = hidden, step.projection, step.row_of_token, *written
        key = (index, *map(signature, tensors), place.start, place.stop, step.numerics)

        compares = not gate.is_decided(key) or gate.verifies_every_call or gate.mode is GateMode.OBSERVE

        def left_by(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return (rows, *(part.clone() for part in written)) if compares else (rows,)

        def fused() -> tuple[torch.Tensor, ...]:
            attention, text = _self_attention(block, caches, index, place), _cross_attention(block, caches, index)
            return left_by(
                block.run(stream, step, attention, text, self.blocks.following(index, step), keys=written[0])
            )

        def eager() -> tuple[torch.Tensor, ...]:
            stream.normed = None
            return left_by(self._transformer.forward_block(index, hidden, modulation, caches))

        stream.hidden, *left = gate.run(key, fused, eager, writes=written)
        for kept, part in zip(written, left, strict=False):  # the caches hold what the gate answers
            kept.copy_(part)

    def _modulated_out(self, hidden: torch.Tensor, step: Step) -> torch.Tensor:
        modulated: torch.Tensor = self._transformer.modulated_output(hidden, step.temb)
        return modulated

    def _row_of_token(self, frames: int, tokens_per_frame: int, device: torch.device) -> torch.Tensor:
        """[S] int32: the frame of each token; the same tensor for every chunk of a request."""
        key = (frames, tokens_per_frame, device)
        if self._rows is None or self._rows[0] != key:
            numbers = torch.arange(frames, dtype=torch.int32, device=device)
            self._rows = key, numbers.repeat_interleave(tokens_per_frame)
        return self._rows[1]

    def _reject_reason(self, latents: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor) -> str | None:
        """Why this call must be eager as a whole, or None."""
        model, weight = self._transformer, self._transformer.proj_out.weight
        if torch.is_grad_enabled():
            return "gradients are recorded; call the pipeline under torch.no_grad()"
        if torch.is_autocast_enabled(weight.device.type):
            return "autocast is on"
        for name, value, dimensions in (("hidden_states", latents, 5), ("timestep", timestep, 2), ("text", text, 3)):
            if type(value) is not torch.Tensor or value.ndim != dimensions:
                return f"{name} is no plain tensor of {dimensions} dimensions"
            if value.device != weight.device:
                return f"{name} is on {value.device}, weights on {weight.device}"
        if {latents.dtype, text.dtype} != {weight.dtype}:
            return f"hidden_states are {latents.dtype} and the text {text.dtype}, weights {weight.dtype}"
        if (latents.shape[0], latents.shape[2]) != tuple(timestep.shape) or len(text) != len(latents):
            return f"{tuple(timestep.shape)} timesteps for latents {tuple(latents.shape)} and {len(text)} texts"
        sides, patches = latents.shape[2:], model.config.patch_size
        if any(side % patch or not side for side, patch in zip(sides, patches, strict=True)):
            return f"latents are {tuple(sides)}, which patches of {tuple(patches)} do not divide"
        return None


def _self_attention(
    block: Block, caches: Any, index: int, place: slice
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """The chunk's tokens to all before them and themselves, whose values go to their place in the caches, where their
    keys lie.
    """
    attention, keys, values = block.block.attn1, caches.keys[index], caches.values[index]

    def attended(query: torch.Tensor, _key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        values[:, place] = value  # the keys are there already
        seen = keys[:, : place.stop], values[:, : place.stop]
        return attend(attention, query, *seen).unflatten(2, (attention.heads, -1))

    return attended


def _cross_attention(block: Block, caches: Any, index: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """All tokens to the text's keys and values."""
    attention, key, value = block.block.attn2, caches.text_keys[index], caches.text_values[index]
    return lambda query: attend(attention, query, key, value).unflatten(2, (attention.heads, -1))
