"""A gate's key in words that say what each number is: ``block 3, hidden 1x768x256 float32, text rows 512``.

Keys are plain tuples, compared and never read by the gates. What their places mean is known of an operation (they are
its parameters) and, here, of the sites that rewrite blocks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fuseproof.pipelines.divergence.nested_tensors import parameter_names

SHOWN = 6
BLOCK_KEYS = {
    "packed_blocks": ("block", "hidden", "text rows", "rotary table"),
    "stream_blocks": ("block", "hidden", "mask", "rotary table"),
    "video_blocks": ("block", "hidden", "keys and values", "modulation", "row of each token"),
}
"""By site, what the places of one block's key are. That of the whole model begins with a tensor, not with a number."""
FIRST_OF_BLOCKS = ("block",)
"""Of other sites of blocks: what begins with a number begins with the block's."""
NUMERICS = "Numerics"
"""The process's own settings, in every key of a rewrite: left out, as in the gates' own words."""


def key_words(site: str, key: Any, form: Callable[..., Any] | None = None, *, of_blocks: bool = False) -> str:
    """``key`` of ``site``; ``form`` is the operation's function, where the key holds an operation's arguments."""
    parts = list(key) if isinstance(key, tuple) and not _is_of_tensor(key) else [key]
    names: Sequence[str] = ()
    if form is not None:
        names = ("", *parameter_names(form, len(parts) - 1))
    elif parts and isinstance(parts[0], int) and (of_blocks or site in BLOCK_KEYS):
        names = BLOCK_KEYS.get(site, FIRST_OF_BLOCKS)
    texts = [
        " ".join(filter(None, (names[place] if place < len(names) else "", text)))
        for place, part in enumerate(parts)
        for text in _texts(part)
    ]
    more = f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return _plain(", ".join(texts[:SHOWN])) + more


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, torch.Size) or not isinstance(part, tuple):
        yield "x".join(map(str, part)) if isinstance(part, torch.Size) else str(part).removeprefix("torch.")
    elif _is_of_tensor(part):
        dtypes = [str(value).removeprefix("torch.") for value in part if isinstance(value, torch.dtype)]
        yield " ".join(["x".join(map(str, part[0])) or "scalar", *dtypes])
    elif type(part).__name__ != NUMERICS:
        for inner in part:
            yield from _texts(inner)


def _is_of_tensor(part: Any) -> bool:
    """Shape, strides, dtype, ... of one tensor."""
    return isinstance(part, tuple) and len(part) > 0 and isinstance(part[0], torch.Size)


def _plain(text: str) -> str:
    try:
        return str(importlib.import_module("fuseproof.fastpaths.wording").plain_text(text))
    except (ImportError, AttributeError):
        return text[:300]
