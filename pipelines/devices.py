"""Choosing the device, the dtype and the attention backend, each refused with the names that are allowed."""

from __future__ import annotations

import re
from typing import Any

import torch
from diffusers.models.attention_dispatch import AttentionBackendName

from fuseproof.errors import FuseproofError, UsageError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
DTYPE_ALIASES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# sglang's names for what diffusers calls otherwise.
ATTENTION_ALIASES = {"torch_sdpa": "native", "sdpa": "native", "fa": "flash", "fa3": "_flash_3", "sage_attn": "sage"}


def choose_device(name: str | None) -> torch.device:
    """``None`` or ``auto``: the first CUDA device if there is one, else the CPU."""
    if name in (None, "auto"):
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    if name == "cpu":
        return torch.device("cpu")
    cuda = re.fullmatch("cuda(?::([0-9]{1,9}))?", str(name))  # torch.device itself wraps an index around at 256
    if cuda is None:
        raise UsageError(f"--device {name!r} is not a device; use auto, cpu, cuda or cuda:N.")
    return _cuda_device(int(cuda[1] or 0))


def choose_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """``None`` or ``auto``: fp32 on a CPU, where bf16 is slower, and bf16 on CUDA."""
    if name in (None, "auto"):
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = DTYPES.get(DTYPE_ALIASES.get(str(name), str(name)))
    if dtype is None:
        raise UsageError(f"--dtype {name!r} is not one of auto, {', '.join(DTYPES)}.")
    return dtype


def set_attention_backend(transformer: Any, name: str | None) -> None:
    """Select diffusers' attention backend by its own or sglang's name; None leaves the default."""
    if name is None:
        return
    backend = ATTENTION_ALIASES.get(name, name)
    known = sorted(member.value for member in AttentionBackendName)
    if backend not in known:
        raise UsageError(f"--attention-backend {name!r} is unknown; use one of {', '.join(known)}.")
    try:
        transformer.set_attention_backend(backend)
    except (RuntimeError, ImportError, ValueError) as error:
        raise FuseproofError(
            f"attention backend {name!r} cannot run here: {error}", next_step="Use --attention-backend native."
        ) from error


def _cuda_device(index: int) -> torch.device:
    if not torch.cuda.is_available():
        raise FuseproofError(
            f"--device cuda:{index} was asked for, and torch {torch.__version__} sees no CUDA device.",
            next_step="Use --device cpu, or see `fuseproof doctor`.",
        )
    count = torch.cuda.device_count()
    if index >= count:
        raise UsageError(
            f"--device cuda:{index} does not exist; this machine has {count} device(s), cuda:0 to cuda:{count - 1}.",
            next_step="Use --device auto, which takes the first.",
        )
    return torch.device("cuda", index)
