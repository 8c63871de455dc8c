"""Makes one attention head of the drawing model look at the given picture's token of the same place.

An edit copies what must stay, so a noisy token has to find the token of its own place in the given picture. Queries and
keys are normalised to an RMS of 1 before ``norm_q`` and ``norm_k`` scale them, and only the highest rotary frequencies
tell neighbours apart: a head with nothing else in mind, and norms of 1, gives the right one of 256 tokens at most 36 %
of its attention, and 88 % where both norms are :data:`SHARPNESS` in the channels that it uses. Training finds such a
head slowly (11 % after 420 s on an H200). So the edit stage begins with one: queries and keys that are constant, whose
rotary phases agree at the same row, the same column and the next modality. Everything is trained on from there, and
makes the head blunter again (16 to 25 % after 770 s); how much of the better edits comes from it is not told apart.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

SHARPNESS = 1.5
MODALITY_SHARE = 0.15


class Pair(NamedTuple):
    """A rotary pair of channels, ``first`` and ``first + 1``: its part of the squared norm of queries and keys, and by
    how much the key's phase leads the query's.
    """

    first: int
    share: float
    phase: float


def copying_pairs(axes: tuple[int, int, int]) -> list[Pair]:
    """One pair for the modality, two for rows and two for columns, of the channels ``axes`` of each in a head."""
    modality, rows, _columns = axes
    # cos(d + phase) falls most from d = 1, the given picture, to d = 0, the noisy one.
    pairs = [Pair(0, MODALITY_SHARE, -(math.pi + 1) / 2)]
    share = (1 - MODALITY_SHARE) / 4
    for begin in (modality, modality + rows):
        pairs += [Pair(begin, share, 0.0), Pair(begin + 2, share, 0.0)]
    return pairs


@torch.no_grad()
def begin_copying(transformer: Any, block: int = 0, head: int = 0) -> None:
    """Turn ``head`` of the joint block ``block`` into a copying one, in place; its other heads keep what they do.

    ``transformer`` is a ``LongCatImageTransformer2DModel``.
    """
    attention = transformer.transformer_blocks[block].attn
    width = attention.head_dim
    pairs = copying_pairs(tuple(transformer.config.axes_dims_rope))
    used = torch.tensor([channel for pair in pairs for channel in (pair.first, pair.first + 1)])
    query, key = torch.zeros(width), torch.zeros(width)
    for first, share, phase in pairs:
        amplitude = math.sqrt(width * share)
        query[first] = amplitude
        key[first], key[first + 1] = amplitude * math.cos(phase), amplitude * math.sin(phase)
    own = slice(head * width, (head + 1) * width)
    for linear, norm, values in ((attention.to_q, attention.norm_q, query), (attention.to_k, attention.norm_k, key)):
        scale = SHARPNESS / norm.weight[used]
        weight, bias = linear.weight.view(attention.heads, width, -1), linear.bias.view(attention.heads, width)
        weight[:, used] /= scale[:, None]
        bias[:, used] /= scale
        norm.weight[used] = SHARPNESS
        linear.weight[own] = 0
        linear.bias[own] = values.to(linear.bias)
