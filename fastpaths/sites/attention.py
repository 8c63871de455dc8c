"""The attention of rewritten blocks: the model's own call, backend and all."""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn


def attend(
    attention: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """[B, S, H, head_dim] three times -> [B, S, D], as ``attention``'s processor asks for it."""
    attended: torch.Tensor = dispatch_attention_fn(
        query,
        key,
        value,
        attn_mask=mask,
        backend=attention.processor._attention_backend,
        parallel_config=attention.processor._parallel_config,
    )
    return attended.flatten(2, 3).to(query.dtype)
