"""Seeded random weights, drawn where the model will run and in the dtype it will run in.

Spreads are those of the tiny checkpoints (:mod:`fuseproof.pipelines.tiny.weights`): linear and convolution weights
N(0, 1/fan_in), embeddings N(0, 1), biases N(0, 0.1²), normalisation weights 1 + N(0, 0.1²), 3x3 convolutions a random
mix of channels times a binomial window. None of them depends on the width of a layer, so what a narrow model does, the
full one does too. Every tensor is drawn by its own seed, from its name, in place: no copy of the model exists
elsewhere, and the order of the modules does not matter.

The values are the device's own: a CPU and a GPU draw different numbers from one seed, as two kinds of GPU may.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from fuseproof.errors import FuseproofError
from fuseproof.pipelines.dummy_geometry import RECIPE
from fuseproof.pipelines.tiny.weights import (
    BIAS_SPREAD,
    NORM_GAMMA,
    NORM_WEIGHT_SPREAD,
    VARIANCE_SPREAD,
    Gain,
    tensor_seed,
)

BINOMIAL = (1.0, 2.0, 1.0)


def materialise(
    model: torch.nn.Module, component: str, *, dtype: torch.dtype, device: torch.device, seed: int, gain: Gain
) -> None:
    """Give ``model``, built on the meta device, its memory on ``device`` and its values, in place.

    Parameters become ``dtype``, and so do batch-norm statistics, which are drawn too. Other buffers are computed, and
    keep the dtype that the library gives them (fp32 rotary frequencies in a bf16 model), as after
    ``from_pretrained(dtype=...)``.
    """
    cast(model, dtype)
    model.to_empty(device=device)
    prefix = f"dummy-{RECIPE}/{seed}/{component}"
    _compute_buffers(model, device)
    _draw_batch_norms(model, prefix, device)
    _draw_parameters(model, prefix, device, gain)


def cast(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Make ``model`` ``dtype`` in place, but for the modules that a diffusers class names (``_keep_in_fp32_modules``).

    They stay in fp32, as after ``from_pretrained(dtype=...)``.
    """
    # diffusers' own `to` warns of these modules, and then names none.
    torch.nn.Module.to(model, dtype=dtype)
    kept = frozenset(getattr(model, "_keep_in_fp32_modules", None) or ()) if is_of_diffusers(model) else frozenset()
    for name, parameter in model.named_parameters():
        if not kept.isdisjoint(name.split(".")):
            parameter.data = parameter.data.float()


def is_of_diffusers(model: torch.nn.Module) -> bool:
    """Whether loading follows diffusers' rule; transformers keeps its own modules in fp32 for float16 alone."""
    return any(kind.__module__.startswith("diffusers.") for kind in type(model).__mro__)


def _compute_buffers(model: torch.nn.Module, device: torch.device) -> None:
    """Build each module that owns buffers once more, for real, from its config, and take over its buffers."""
    for name, module in model.named_modules():
        if not module._buffers or isinstance(module, torch.nn.BatchNorm2d):
            continue
        for buffer_name, buffer in _rebuilt(name, module).named_buffers():
            setattr(module, buffer_name, buffer.to(device))


def _rebuilt(name: str, module: torch.nn.Module) -> torch.nn.Module:
    """The parameterless ``module`` once more, for real."""
    rebuild: Callable[..., torch.nn.Module] = type(module)
    if rebuild.__name__ == "WanRotaryPosEmbed":
        return rebuild(module.attention_head_dim, module.patch_size, module.max_seq_len)
    config = getattr(module, "config", None)
    if config is None or next(module.parameters(), None) is not None:
        raise FuseproofError(f"{name} has buffers {', '.join(module._buffers)}, and no recipe to compute them.")
    return rebuild(config)


@torch.no_grad()
def _draw_batch_norms(model: torch.nn.Module, prefix: str, device: torch.device) -> None:
    """Running means N(0, 0.1²) and variances above 1, in the model's dtype, as a checkpoint's are loaded."""
    generator = torch.Generator(device)
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.BatchNorm2d):
            continue
        mean, variance, counted = module.running_mean, module.running_var, module.num_batches_tracked
        assert mean is not None and variance is not None and counted is not None, "the batch norm keeps no statistics"
        mean.normal_(0.0, BIAS_SPREAD, generator=generator.manual_seed(tensor_seed(f"{prefix}/{name}.running_mean")))
        generator.manual_seed(tensor_seed(f"{prefix}/{name}.running_var"))
        variance.normal_(0.0, VARIANCE_SPREAD, generator=generator).abs_().add_(1.0)
        counted.zero_()


@torch.no_grad()
def _draw_parameters(model: torch.nn.Module, prefix: str, device: torch.device, gain: Gain) -> None:
    embeddings = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, torch.nn.Embedding)}
    generator = torch.Generator(device)
    for name, parameter in model.named_parameters():
        generator.manual_seed(tensor_seed(f"{prefix}/{name}"))
        _draw(parameter, name, gain(name), generator, is_embedding=name in embeddings)


def _draw(parameter: torch.Tensor, name: str, gain: float, generator: torch.Generator, *, is_embedding: bool) -> None:
    shape = parameter.shape
    if parameter.ndim == 4 and shape[2:] == (3, 3):
        mix = parameter.new_empty((*shape[:2], 1, 1)).normal_(0.0, gain / shape[1] ** 0.5, generator=generator)
        parameter.copy_(mix * _binomial_window(parameter))
    elif parameter.ndim == 5 and shape[3:] == (3, 3):
        mix = parameter.new_empty((*shape[:2], 1, 1, 1)).normal_(0.0, gain / shape[1] ** 0.5, generator=generator)
        parameter.copy_(mix * _frame_window(parameter) * _binomial_window(parameter))
    elif name.endswith(NORM_GAMMA):
        parameter.normal_(gain, gain * NORM_WEIGHT_SPREAD, generator=generator)
    elif is_embedding:
        parameter.normal_(0.0, gain, generator=generator)
    elif parameter.ndim >= 2:
        parameter.normal_(0.0, gain / shape[1:].numel() ** 0.5, generator=generator)
    elif name.endswith("bias"):
        parameter.normal_(0.0, gain * BIAS_SPREAD, generator=generator)
    else:
        parameter.normal_(gain, gain * NORM_WEIGHT_SPREAD, generator=generator)


def _binomial_window(like: torch.Tensor) -> torch.Tensor:
    """The [3, 3] window (1 2 1)ᵀ(1 2 1) of unit norm, which keeps the spread of the mix it is multiplied with."""
    line = torch.tensor(BINOMIAL, dtype=like.dtype, device=like.device)
    window = torch.outer(line, line)
    return window / window.norm()


def _frame_window(like: torch.Tensor) -> torch.Tensor:
    """[taps, 1, 1] rising weights of unit norm over the frames of a causal convolution's kernel ``like``."""
    rising = torch.arange(1, like.shape[2] + 1, dtype=like.dtype, device=like.device)
    return (rising / rising.norm())[:, None, None]
