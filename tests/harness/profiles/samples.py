"""Profiles made by hand: a transformer of repeated blocks, eager or with a fused norm, and a VAE."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

BLOCKS = 4
STEPS = 3
LOST_US = 5.0
REQUEST = {
    "model": "meituan-longcat/LongCat-Image",
    "family": "longcat-image",
    "backend": "native",
    "weights": "dummy",
    "width": 1024,
    "height": 1024,
    "frames": None,
    "steps": 50,
    "guidance": 4.5,
    "seed": 42,
    "quality": "lossless",
    "fastpaths": "off",
    "cuda_graph": False,
    "compile": False,
    "batch": 1,
    "flags": ["--fastpaths=off"],
    "dtype": "bfloat16",
}
STREAM = "1x4096x3072 bfloat16"


def row(module: str, operation: str, kernel_class: str, calls: int, device_us: float, **more: Any) -> dict[str, Any]:
    """One row; ``calls`` and ``device_us`` are those of one step."""
    return {
        "stage": "DenoisingStage",
        "module": module,
        "module_class": "LayerNorm" if "norm" in module else "Linear",
        "component": "transformer",
        "site": None,
        "site_state": None,
        "line": f"transformer_longcat_image.py:{100 + len(module)}",
        "operation": operation,
        "kernel": f"void {kernel_class}_kernel<bf16>",
        "class": kernel_class,
        "key": STREAM,
        "calls": calls * STEPS,
        "device_us": device_us * STEPS,
        "bytes": 2 * 4096 * 3072 * 2,
        "from_graph": False,
    } | more


def profile(*, is_fused: bool = False) -> dict[str, Any]:
    """``fuseproof.profile/1``: eager, or with the norms of all blocks fused with their modulation."""
    rows = [row("proj_out", "aten::linear", "gemm", 1, 200.0)]
    for block in range(BLOCKS):
        path = f"transformer_blocks.{block}"
        rows.append(row(f"{path}.attn.to_q", "aten::linear", "gemm", 1, 400.0))
        rows.append(row(f"{path}.attn", "aten::scaled_dot_product_attention", "attention", 1, 300.0))
        if is_fused:
            site = {"site": "norm_modulation", "site_state": "fused"}
            kernel = {"kernel": "_layernorm_modulate_kernel", "line": None}
            rows.append(row(f"{path}.norm1", "triton:layernorm_modulate", "norm", 1, 28.0, **site, **kernel))
        else:
            rows.append(row(f"{path}.norm1", "aten::native_layer_norm", "norm", 1, 30.0))
            rows += [row(f"{path}.norm1", "aten::mul", "elementwise", 2, 40.0, bytes=None)]
    rows.append(
        row("decoder.up_blocks.0.resnets.1.conv1", "aten::conv2d", "convolution", 0, 0.0)
        | {"stage": "DecodingStage", "component": "vae", "calls": 29, "device_us": 9000.0 - LOST_US}
    )
    lost = {"module_class": None, "component": "vae", "line": None, "kernel": "lost_kernel", "key": None, "bytes": None}
    rows.append(
        row("", "lost_kernel", "other", 0, 0.0, **lost) | {"stage": "DecodingStage", "calls": 1, "device_us": LOST_US}
    )
    stages = [stage(rows, "DenoisingStage", STEPS, 50), stage(rows, "DecodingStage", 1, 1)]
    step = {name: stages[0][name] / STEPS for name in ("wall_us", "device_us")}
    kernels = stages[0]["kernels"] // STEPS
    fused = 50 * BLOCKS if is_fused else 0
    site = {
        "site": "norm_modulation",
        "state": "fused" if is_fused else "off",
        "reason": None if is_fused else "not asked for",
        "calls_fused": fused,
        "calls_eager": 0,
        "keys": [{"key": f"{STREAM}, eps 1e-06", "calls": BLOCKS * STEPS, "layout": "contiguous"}] if is_fused else [],
        "first_sight_ms": 12.5 if is_fused else None,
        "jit_ms": 310.0 if is_fused else None,
        "device_us": 28.0 * BLOCKS * STEPS if is_fused else None,
        "bytes": 201326592 if is_fused else None,
    }
    return {
        "schema": "fuseproof.profile/1",
        "request": REQUEST | {"fastpaths": "auto" if is_fused else "off", "flags": ["--fastpaths=auto"] * is_fused},
        "environment": {"versions": {"torch": "2.11.0", "diffusers": "0.42.1"}},
        "device": {"kind": "cuda", "name": "NVIDIA H200", "copy_bandwidth_gb_s": 4000.0, "kernel_word": "kernel"},
        "timed": False,
        "note": "times under a profiler; never compare them with timed runs",
        "stages": stages,
        "steps": [
            {"stage": "DenoisingStage", "index": index, **step, "kernels": kernels, "graph_launches": 0}
            for index in range(1, STEPS + 1)
        ],
        "rows": rows,
        "sites": [site],
        "chains": [] if is_fused else [chain(40.0, 12.0), chain(160.0, 64.0, fast_path=None, fast_path_reason=None)],
        "attribution": attribution(rows),
        "trace": {"file": "trace.json.gz", "bytes": 1234567, "truncated": False},
        "warnings": ["the card was busy"],
    }


def attribution(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the rows amount to, of which one is joined to nothing."""
    device_us = math.fsum(one["device_us"] for one in rows)
    return {
        "device_us": device_us,
        "to_module": 1 - LOST_US / device_us,
        "to_site_or_module": 1 - LOST_US / device_us,
        "to_line": math.fsum(one["device_us"] for one in rows if one["line"] is not None) / device_us,
        "unattributed": [{"kernel": "lost_kernel", "device_us": LOST_US}],
    }


def stage(rows: list[dict[str, Any]], name: str, steps: int, of_request: int) -> dict[str, Any]:
    """A stage whose sums are those of its rows, with 100 us a step without device work."""
    own = [one for one in rows if one["stage"] == name]
    device_us = math.fsum(one["device_us"] for one in own)
    return {
        "name": name,
        "steps": steps,
        "steps_of_request": of_request,
        "wall_us": device_us + 100.0 * steps,
        "device_us": device_us,
        "kernels": sum(one["calls"] for one in own),
    }


def chain(device_us: float, saving_us: float, **more: Any) -> dict[str, Any]:
    """A chain of one norm's modulation."""
    return {
        "stage": "DenoisingStage",
        "module": "transformer_blocks.*.norm1",
        "operations": ["aten::mul", "aten::add"],
        "classes": ["elementwise", "elementwise"],
        "line": "transformer_longcat_image.py:123",
        "shape": STREAM,
        "calls_per_step": 4.0,
        "device_us_per_step": device_us,
        "bytes_per_step": 50331648,
        "fused_floor_us_per_step": device_us - saving_us,
        "saving_us_per_step": saving_us,
        "fast_path": "norm_modulation",
        "fast_path_reason": "--fastpaths=off",
    } | more


def changed(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy in which one field, ``rows.0.device_us``, is another; the value ``...`` takes it away."""
    made = copy.deepcopy(values)
    *parents, last = path.split(".")
    place: Any = made
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    key = int(last) if isinstance(place, list) else last
    if value is ...:
        del place[key]
    else:
        place[key] = value
    return made


def write(folder: Path, values: dict[str, Any], name: str = "profile.json") -> Path:
    """The values as a file, NaN and all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(values))
    return path
