"""Seeded weights for tiny checkpoints: the same bytes on every run, whatever the layout around them.

Each tensor is drawn from its own ``numpy.random.RandomState`` (a generator that numpy has frozen), seeded by the
tensor's full name. Adding, removing or reordering modules therefore never reshuffles the tensors that stay.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

BIAS_SPREAD = 0.1
NORM_WEIGHT_SPREAD = 0.1
VARIANCE_SPREAD = 0.5

NORM_GAMMA = ".gamma"
"""The end of the name of a normalisation weight that has more than one dimension, to be broadcast."""

Gain = Callable[[str], float]
"""Maps a parameter's name inside its component to the factor on its plain spread."""


def fill_model(model: torch.nn.Module, component: str, gain: Gain) -> None:
    """Overwrite every parameter of ``model`` (float32) in place.

    Linear and convolution weights are N(0, 1/fan_in), embeddings N(0, 1), biases N(0, 0.1²), normalisation weights
    1 + N(0, 0.1²): nothing is exactly zero or one, so that no kernel gets away with skipping it. 3x3 convolutions, and
    those over frames too, are a random mix of channels times a binomial window, which makes a decoder smooth instead of
    a source of noise.
    ``component`` is the component's folder name, part of every tensor's seed.
    """
    embeddings = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = _plain_values(f"{component}/{name}", tuple(parameter.shape), is_embedding=name in embeddings)
            parameter.copy_(torch.from_numpy((values * gain(name)).astype(np.float32)))


def fill_batch_norms(model: torch.nn.Module, component: str) -> None:
    """Overwrite the running statistics of every batch norm of ``model`` in place: means N(0, 0.1²), variances above 1.

    Buffers are no parameters, so :func:`fill_model` leaves them at 0 and 1, where a forgotten one would not show.
    """
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.BatchNorm2d):
            continue
        for buffer_name in ("running_mean", "running_var"):
            buffer = getattr(module, buffer_name)
            full_name = f"{component}/{name}.{buffer_name}"
            values = np.random.RandomState(tensor_seed(full_name)).standard_normal(tuple(buffer.shape))
            is_mean = buffer_name == "running_mean"
            values = BIAS_SPREAD * values if is_mean else 1.0 + VARIANCE_SPREAD * np.abs(values)
            buffer.copy_(torch.from_numpy(values.astype(np.float32)))


@torch.no_grad()
def add_transposed(projection: torch.Tensor, embedding: torch.Tensor, gain: float) -> None:
    """Add ``embedding`` [hidden, channels], transposed and ``gain`` times over, to ``projection`` [channels, hidden].

    embeddingᵀ embedding is about hidden / channels of the identity, so the product of both maps has ``gain`` of it.
    """
    hidden_size, channels = embedding.shape
    projection.add_(embedding.T * (gain * channels / hidden_size))


def tensor_seed(full_name: str) -> int:
    """The 32-bit seed of one tensor, from the SHA-256 of its name."""
    return int.from_bytes(hashlib.sha256(full_name.encode()).digest()[:4], "little")


def _plain_values(full_name: str, shape: tuple[int, ...], *, is_embedding: bool) -> Any:
    random = np.random.RandomState(tensor_seed(full_name))
    if len(shape) == 4 and shape[2:] == (3, 3):
        mix = random.standard_normal((*shape[:2], 1, 1)) / np.sqrt(shape[1])
        return mix * _binomial_window()
    if len(shape) == 5 and shape[3:] == (3, 3):
        mix = random.standard_normal((*shape[:2], 1, 1, 1)) / np.sqrt(shape[1])
        return mix * _frame_window(shape[2])[:, None, None] * _binomial_window()
    if full_name.endswith(NORM_GAMMA):
        return 1.0 + NORM_WEIGHT_SPREAD * random.standard_normal(shape)
    values = random.standard_normal(shape)
    if is_embedding:
        return values
    if len(shape) >= 2:
        return values / np.sqrt(np.prod(shape[1:]))
    if full_name.endswith("bias"):
        return BIAS_SPREAD * values
    return 1.0 + NORM_WEIGHT_SPREAD * values


def _binomial_window() -> Any:
    """The [3, 3] window (1 2 1)ᵀ(1 2 1), scaled to unit norm so that it keeps the spread of its input's mix."""
    line = np.array([1.0, 2.0, 1.0])
    window = np.outer(line, line)
    return window / np.linalg.norm(window)


def _frame_window(frames: int) -> Any:
    """Rising weights over ``frames`` taps, of which a causal convolution's last is the frame itself, of unit norm."""
    rising = np.arange(1.0, frames + 1.0)
    return rising / np.linalg.norm(rising)
