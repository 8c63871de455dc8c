"""The object that holds LongLive 2's components, by the class name that its checkpoints are published with.

diffusers 0.42.1 has no such pipeline. This one is ``WanPipeline`` in what it prepares (prompts, frames, sizes) and has
no call of its own: :mod:`fuseproof.pipelines.longlive2` runs it, and :mod:`fuseproof.pipelines.reference_longlive2` is
what that is compared with.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

import torch
from diffusers import WanPipeline

from fuseproof.pipelines.longlive2_caches import LongLive2Caches

SIZES_KEPT = 2


class LongLive2Pipeline(WanPipeline):
    """``tokenizer``, ``text_encoder``, ``transformer``, ``vae`` and ``scheduler`` of a LongLive 2 checkpoint."""

    def caches_for(self, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> LongLive2Caches:
        """What the transformer remembers of a clip of latents ``shape`` [B, C, F, h, w].

        Kept for later requests of the same size: a captured graph holds its addresses. Of sizes the last
        :data:`SIZES_KEPT` are, so that one more may be warmed besides a request's own. Each thread has its own: two
        clips at once must not remember each other.
        """
        kept: dict[Hashable, LongLive2Caches] = self.__dict__.setdefault("kept_caches", {})
        key = (threading.get_ident(), tuple(shape), dtype, device)
        caches = kept.pop(key, None)
        if caches is None:
            while len(kept) >= SIZES_KEPT:
                kept.pop(next(iter(kept)), None)  # freed before the next ones are made
            batch, _, frames, height, width = shape
            caches = self.transformer.new_caches(batch, height, width, device, dtype, frames)
        kept[key] = caches
        return caches

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused with a TypeError: ``WanPipeline``'s loop is another model's."""
        raise TypeError("LongLive2Pipeline has no call; fuseproof.pipelines.longlive2.generate runs it")
