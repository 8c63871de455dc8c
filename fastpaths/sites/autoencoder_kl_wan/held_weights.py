"""Convolution weights in channels-last memory, turned once a decode: cuDNN would turn them at every chunk."""

from __future__ import annotations

from typing import Any

import torch

from fuseproof.fastpaths.hoisting import HeldResults


class TurnedWeights:
    """The weights of convolutions as their channels-last form wants them, held until :meth:`clear`.

    A weight that was written, moved or replaced since is turned anew; one whose writes PyTorch does not count, as under
    ``inference_mode``, is turned at every call.
    """

    def __init__(self) -> None:
        self._held: dict[Any, HeldResults] = {}

    def of(self, convolution: Any, dtype: torch.dtype) -> torch.Tensor:
        """The weight of ``convolution`` in ``dtype``, as autocast would hand it over, with its channels last."""
        weight = convolution.weight
        held = self._held.get(convolution)
        if held is None:
            held = self._held[convolution] = HeldResults(1)
        entry = held.find(dtype, (weight,))
        if entry is not None:
            kept: torch.Tensor = entry.result
            return kept
        layout = torch.channels_last_3d if weight.ndim == 5 else torch.channels_last
        turned = weight.detach().to(dtype, memory_format=layout)
        if turned is not weight:
            held.hold(dtype, (weight,), turned)
        return turned

    def clear(self) -> None:
        """Drop all of them."""
        self._held.clear()

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))
