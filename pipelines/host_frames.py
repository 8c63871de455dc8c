"""A clip's frames on their way to host memory: one copy a chunk, of what is laid out and converted on the device.

diffusers' ``postprocess_video(output_type="np")`` copies frames in the VAE's dtype and layout and converts them on the
host; stacked and joined, a clip of 1152x768 and 61 frames is written there four times over. The values are the same:
widening bf16 to fp32 changes none.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fuseproof.pipelines.decoded_shape import refuse_unequal_shapes


class HostFrames:
    """Room for a clip of ``frames`` x ``height`` x ``width`` in host memory, page-locked for a CUDA ``device``."""

    def __init__(self, frames: int, height: int, width: int, device: torch.device) -> None:
        is_locked = device.type == "cuda"
        self._clip = torch.empty((frames, height, width, 3), dtype=torch.float32, pin_memory=is_locked)
        self._arrived = 0

    def add(self, frames: torch.Tensor) -> int:
        """Append ``frames`` [T, 3, H, W] in 0..1, wait until they are there, and say how many they are.

        A FuseproofError for frames of another size, and for more of them than there is room for.
        """
        rows = frames.permute(0, 2, 3, 1)
        room = min(len(rows), len(self._clip) - self._arrived)
        refuse_unequal_shapes(rows.shape, (room, *self._clip.shape[1:]))
        rows = rows.to(torch.float32).contiguous()
        self._clip[self._arrived : self._arrived + len(rows)].copy_(rows)
        self._arrived += len(rows)
        return len(rows)

    def clip(self) -> npt.NDArray[np.float32]:
        """All frames [T, H, W, 3], without a copy; a FuseproofError where some have not come."""
        refuse_unequal_shapes((self._arrived, *self._clip.shape[1:]), tuple(self._clip.shape))
        whole: npt.NDArray[np.float32] = self._clip.numpy()
        return whole
