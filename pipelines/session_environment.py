"""What torch and the libraries say of themselves, for a perf dump's ``environment``."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

import torch

from fuseproof.fastpaths.numerics import float32_precision

SHIFT_KEYS = (
    "shift",
    "use_dynamic_shifting",
    "base_shift",
    "max_shift",
    "base_image_seq_len",
    "max_image_seq_len",
    "shift_terminal",
    "time_shift_type",
)
LIBRARIES = ("torch", "diffusers", "transformers", "numpy", "safetensors", "tokenizers")


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, device, threads and the switches that change numerics, JSON-ready."""
    on_cuda = device.type == "cuda"
    return {
        "versions": {name: importlib.metadata.version(name) for name in LIBRARIES},
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if on_cuda else "cpu",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_cuda else None,
        "torch_git": torch.version.git_version,
        "torch_threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "allow_tf32": {"matmul": torch.backends.cuda.matmul.allow_tf32, "cudnn": torch.backends.cudnn.allow_tf32},
        "numerics": numerics(device),
        "python_hash_seed": os.environ.get("PYTHONHASHSEED"),
    }


def numerics(device: torch.device) -> dict[str, Any]:
    """The switches that decide how products are rounded and which kernels may answer, JSON-ready."""
    is_autocast = torch.is_autocast_enabled(device.type)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    return {
        "autocast": str(torch.get_autocast_dtype(device.type)).removeprefix("torch.") if is_autocast else None,
        "float32_precision": float32_precision(),
        "bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn": [cudnn.enabled, cudnn.benchmark, cudnn.deterministic],
    }


def residency(pipe: Any) -> dict[str, Any]:
    """On which device each model of the pipeline lies, and by which hooks it is offloaded, JSON-ready.

    ``components`` is name → device (``"cpu, cuda:0"`` where it is spread); ``offload`` is ``"none"`` or name → hooks.
    """
    parts = getattr(pipe, "components", {})
    models = {name: part for name, part in sorted(parts.items()) if isinstance(part, torch.nn.Module)}
    hooks = {name: found for name, model in models.items() if (found := _offload_hooks(model))}
    return {"components": {name: _devices(model) for name, model in models.items()}, "offload": hooks or "none"}


def _devices(model: torch.nn.Module) -> str:
    """The devices of its weights and buffers, in order of their names."""
    return ", ".join(sorted({str(tensor.device) for tensor in (*model.parameters(), *model.buffers())}))


def _offload_hooks(model: torch.nn.Module) -> list[str]:
    """accelerate's hooks and diffusers' group offloading, which move weights while a request runs."""
    found = {type(hook).__name__ for part in model.modules() if (hook := getattr(part, "_hf_hook", None)) is not None}
    registries = (getattr(part, "_diffusers_hook", None) for part in model.modules())
    names = {name for registry in registries for name in getattr(registry, "hooks", {})}
    return sorted(found | {name for name in names if "offload" in name})


def scheduler_identity(scheduler: Any) -> dict[str, Any]:
    """Which scheduler makes the sigmas and how it shifts them, JSON-ready."""
    config = dict(getattr(scheduler, "config", {}))
    return {"class": type(scheduler).__name__, **{key: config[key] for key in SHIFT_KEYS if key in config}}
