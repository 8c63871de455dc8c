"""Computing once what a request does not change: the projected prompt, the rotary tables and the attention mask.

Site: text_projection, rotary_angles
Formula: each evaluated in eager on every forward, or in every layer of it, here once a request:
    - ``text_projection``: ``text_proj(text_bth)``;
    - ``rotary_angles``: ``pos_embed`` of all positions, its cos and sin in the model's dtype, and the mask of
      ``text_lens``.
Shapes: [B, T, 3072] -> [B, T, D]; text_lens [B] -> angles [B, S, 1, head_dim] fp32, cos and sin [B, S, head_dim] in the
    model's dtype, mask [B, 1, 1, S] bool. Any device.
Rounds: not at all; there is no kernel.
Replaces: in ``ErnieImageTransformer2DModel.forward``, diffusers 0.42.1,
    - ``text_projection``: the projection of the prompt (``text_proj``), anew in every forward;
    - ``rotary_angles``: position ids, angles (``pos_embed``) and mask, anew in every forward, and cos and sin of the
      angles, rounded to the model's dtype, anew in every layer.
Exact: a held result *is* an earlier eager result of the same objects: the very ``text_bth`` and ``text_lens`` that the
    transformer was called with, unchanged since, and a picture of the same height and width.
Declines: tensors made under ``inference_mode``, whose writes nobody counts, and hooks on ``text_proj`` or
    ``pos_embed``.
Bytes: none moved; saved in every layer, two tables of S x 128 in fp32.
Check first: if ``pos_embed`` appears in every forward, check that the loop hands over the same ``text_lens`` each time.
Source: diffusers transformer_ernie_image.py, 0.42.1.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import torch

from fuseproof.fastpaths.gates import Gate
from fuseproof.fastpaths.hoisting import HeldResults
from fuseproof.fastpaths.operations import signature
from fuseproof.fastpaths.sites.held_values import held_value


class Positions(NamedTuple):
    """What depends on where rows are, and on how long each prompt is; shapes as above."""

    angles: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor


class RequestTensors:
    """Holds them for the requests of one mounted transformer."""

    def __init__(self, transformer: Any, gates: Mapping[str, Gate], held: HeldResults) -> None:
        self._transformer = transformer
        self._gates = gates
        self._held = held

    def context(self, text_bth: torch.Tensor, numerics: Hashable) -> torch.Tensor:
        """The projected prompt [B, T, D]."""
        module = self._transformer.text_proj
        if module is None:
            return text_bth

        def eager() -> torch.Tensor:
            result: torch.Tensor = module(text_bth)
            return result

        gate = self._gates.get("text_projection")
        if gate is None:
            return eager()
        key = ("text_projection", signature(text_bth), numerics)
        projected: torch.Tensor = held_value(gate, self._held, key, (text_bth, *module.parameters()), eager)
        return projected

    def positions(
        self, text_lens: torch.Tensor, text_rows: int, size: tuple[int, int], dtype: torch.dtype, numerics: Hashable
    ) -> Positions:
        """Of a picture of ``size`` (rows, columns of patches) before ``text_rows`` rows of text."""

        def eager() -> tuple[torch.Tensor, ...]:
            angles = self._angles(_position_ids(text_lens, text_rows, size))
            cos, sin = (table(angles).to(dtype).squeeze(2) for table in (torch.cos, torch.sin))
            return angles, cos, sin, _mask(text_lens, text_rows, size)

        gate = self._gates.get("rotary_angles")
        if gate is None:
            return Positions(*eager())
        key = ("rotary_angles", signature(text_lens), text_rows, size, dtype, numerics)
        return Positions(*held_value(gate, self._held, key, (text_lens,), eager))

    def _angles(self, ids: torch.Tensor) -> torch.Tensor:
        """[B, S, 1, head_dim] fp32 of [B, S, 3]."""
        if ids.is_meta:  # where calls are only noted: diffusers' rotary embedding knows no such device
            return ids.new_empty(*ids.shape[:2], 1, self._transformer.head_dim)
        angles: torch.Tensor = self._transformer.pos_embed(ids)
        return angles

    def is_mask_full(self, text_lens: torch.Tensor, text_rows: int) -> bool:
        """Whether every prompt fills its rows. Waits for the device the first time it is asked of a ``text_lens``."""
        key = ("is_mask_full", signature(text_lens), text_rows)
        entry = self._held.find(key, (text_lens,)) if not text_lens.is_inference() else None
        if entry is not None:
            return bool(entry.result)
        full = (text_lens == text_rows).all().cpu()
        self._held.hold(key, (text_lens,), full)
        return bool(full)


def _position_ids(text_lens: torch.Tensor, text_rows: int, size: tuple[int, int]) -> torch.Tensor:
    """[B, S, 3] fp32: a picture's rows hold the prompt's length, their row and column; text rows count up."""
    batch, (height, width), device = text_lens.shape[0], size, text_lens.device
    ids = torch.zeros(batch, height * width + text_rows, 3, dtype=torch.float32, device=device)
    image, text = ids[:, : height * width], ids[:, height * width :]
    image[..., 0] = text_lens.float().view(batch, 1)
    rows, columns = (torch.arange(length, device=device, dtype=torch.float32) for length in size)
    image[..., 1] = rows.view(height, 1).expand(height, width).reshape(-1)
    image[..., 2] = columns.expand(height, width).reshape(-1)
    text[..., 0] = torch.arange(text_rows, device=device, dtype=torch.float32)
    return ids


def _mask(text_lens: torch.Tensor, text_rows: int, size: tuple[int, int]) -> torch.Tensor:
    """[B, 1, 1, S]: true for every picture's row, and for the rows of text that a prompt fills."""
    batch, device = text_lens.shape[0], text_lens.device
    valid = torch.arange(text_rows, device=device).view(1, text_rows) < text_lens.view(batch, 1)
    image = torch.ones(batch, size[0] * size[1], dtype=torch.bool, device=device)
    return torch.cat([image, valid], dim=1)[:, None, None, :]
