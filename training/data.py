"""Training pictures on a device, and the order in which they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from training.rendering import render, scene_arrays
from training.scenes import Scene


@dataclass(frozen=True)
class Drawings:
    """Scenes as arrays on a device, ready to be rendered: backgrounds [N, 3], things [N, 3, fields]."""

    backgrounds: torch.Tensor
    things: torch.Tensor

    @classmethod
    def of(cls, scenes: Sequence[Scene], device: torch.device) -> Drawings:
        """The arrays of ``scenes`` on ``device``."""
        backgrounds, things = scene_arrays(scenes)
        return cls(backgrounds.to(device), things.to(device))

    def render(self, chosen: torch.Tensor, side: int) -> torch.Tensor:
        """The pictures with these numbers, [B, 3, side, side] in -1..1."""
        return render(self.backgrounds[chosen], self.things[chosen], side)

    def __len__(self) -> int:
        return len(self.backgrounds)


def sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """``tensor`` of the host on ``device``, without waiting for what the device has still to do."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def batches(count: int, size: int, seed: int, start_step: int, device: torch.device) -> Iterator[torch.Tensor]:
    """Numbers 0..count-1 in shuffled epochs, ``size`` at a time without end; step ``start_step`` comes first."""
    per_epoch = max(count // size, 1)
    step = start_step
    while True:
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed + step // per_epoch))
        order = order.to(device)
        for position in range(step % per_epoch, per_epoch):
            yield order[position * size : (position + 1) * size]
            step += 1


def step_generator(seed: int, step: int, device: torch.device) -> Any:
    """The source of all noise of one step: a resumed run draws what an unbroken one would."""
    return torch.Generator(device).manual_seed(seed * 1_000_003 + step)
