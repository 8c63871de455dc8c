"""Computing once what a request does not change: the text's keys and values in every block, and the rotary tables.

Site: text_keys_values, rotary_grid
Formula: each evaluated in eager on every forward, here once a request:
    - ``text_keys_values``: ``text_embedder(text)``, and ``norm_k(to_k(...))`` and ``to_v(...)`` of every block's
      cross-attention;
    - ``rotary_grid``: ``rope(hidden_states)``, which depends on the size of the clip alone.
Shapes: text [B, T, text channels] -> context [B, T, D] and keys and values [blocks, 2, B, T, D]; a grid of S tokens ->
    cosine and sine [1, S, 1, head_dim] fp32. Any device.
Rounds: not at all; there is no kernel.
Replaces: in ``WanTransformer3DModel.forward``, diffusers 0.42.1,
    - ``text_keys_values``: the text MLP, and two products and one norm over the text in every block, anew in every
      forward;
    - ``rotary_grid``: two tables put together from six, anew in every forward.
Exact: a held result *is* an earlier eager result of the same objects: the very ``encoder_hidden_states`` that the
    transformer was called with, unchanged since, under the same weights, and a clip of as many frames, rows and
    columns.
Declines: tensors made under ``inference_mode``, whose writes nobody counts, and hooks on ``text_embedder`` or ``rope``.
Bytes: held for a text of 512 tokens, 4 x blocks x 512 x D (189 MB at 30 blocks, D 3072); saved in every forward, as
    many written and 4 x blocks x D x D of weights read.
Check first: if products over 512 rows appear in every forward, check that the loop hands over the same
    ``encoder_hidden_states`` each time.
Source: diffusers transformer_wan.py, 0.42.1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.hoisting import HeldResults
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.sites.held_values import held_value


class Text(NamedTuple):
    """``context`` [B, T, D], the embedded prompt, and what all blocks make of it, [blocks, 2, B, T, D]."""

    context: torch.Tensor
    keys_values: torch.Tensor


class Grid(NamedTuple):
    """``cosine`` and ``sine`` [1, S, 1, head_dim] fp32, of a clip's tokens."""

    cosine: torch.Tensor
    sine: torch.Tensor


class HeldTensors:
    """Holds them for the requests of one mounted transformer."""

    def __init__(self, transformer: Any, gates: Mapping[str, Gate]) -> None:
        self._transformer = transformer
        self._gates = gates
        self._text_weights = tuple(_text_weights(transformer))  # the guard knows them: none is ever another object
        self._texts, self._grids = HeldResults(), HeldResults()

    def clear(self) -> None:
        """Drop all that this thread holds."""
        self._texts.clear()
        self._grids.clear()

    def text(self, text: torch.Tensor, numerics: Hashable) -> Text:
        """Of a prompt [B, T, text channels]."""

        def eager() -> tuple[torch.Tensor, ...]:
            return self._text(text)

        gate = self._gates.get("text_keys_values")
        if gate is None:
            return Text(*eager())
        key = ("text_keys_values", signature(text), numerics)
        return Text(*held_value(gate, self._texts, key, (text, *self._text_weights), eager))

    def grid(self, latents: torch.Tensor, numerics: Hashable) -> Grid:
        """Of latents [B, C, T, H, W]: their values do not matter."""
        rope = self._transformer.rope

        def eager() -> tuple[torch.Tensor, ...]:
            tables: tuple[torch.Tensor, ...] = rope(latents)
            return tables

        gate = self._gates.get("rotary_grid")
        if gate is None:
            return Grid(*eager())
        key = ("rotary_grid", tuple(latents.shape[2:]), latents.device, numerics)
        return Grid(*held_value(gate, self._grids, key, (rope.freqs_cos, rope.freqs_sin), eager))

    def _text(self, text: torch.Tensor) -> tuple[torch.Tensor, ...]:
        model = self._transformer
        context = model.condition_embedder.text_embedder(text)
        keys_values = context.new_empty((len(model.blocks), 2, *context.shape))
        for block, (keys, values) in zip(model.blocks, keys_values, strict=True):
            keys.copy_(block.attn2.norm_k(block.attn2.to_k(context)))
            values.copy_(block.attn2.to_v(context))
        return context, keys_values


def _text_weights(transformer: Any) -> Iterator[torch.Tensor]:
    """Of everything that a text goes through before the first block."""
    yield from transformer.condition_embedder.text_embedder.parameters()
    for block in transformer.blocks:
        for module in (block.attn2.to_k, block.attn2.norm_k, block.attn2.to_v):
            yield from module.parameters()
