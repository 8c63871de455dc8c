"""What every pipeline hands back, native or diffusers' own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Decoded:
    """``image`` [H, W, 3], of a clip [T, H, W, 3], fp32 in 0..1, and ``latents`` as denoised: [1, tokens, 64] packed,
    [1, 128, H/16, W/16], or [1, C, T, H, W] as the last step left them.

    ``rewritten_prompt`` is what a language model made of the prompt; None where none was asked. ``remarks`` are what a
    reader should be told of how it came about.
    """

    image: np.ndarray[Any, np.dtype[np.float32]]
    latents: torch.Tensor
    rewritten_prompt: str | None
    remarks: tuple[str, ...] = ()
