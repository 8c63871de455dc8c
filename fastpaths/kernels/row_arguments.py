"""What the kernels that own whole rows of [B, S, D] ask of their arguments, and how they are compiled ahead of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuseproof.fastpaths.kernels.arguments import dimensions_reason, tensor_reason
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason
from fuseproof.fastpaths.kernels.welford import LARGEST_WIDTH, SMALLEST_EPS

LARGEST_BATCH = 65_535
"""A sample is the second grid dimension of a launch."""


def rows_reason(name: str, rows: torch.Tensor) -> str | None:
    """Why ``rows`` [B, S, D], which sets device and shape of a launch, does not fit; or None."""
    if reason := device_reason(name, rows) or dimensions_reason(name, rows, "B S D"):
        return reason
    batch, _, width = rows.shape
    if width % 4 or width > LARGEST_WIDTH:
        return f"{name} is {width} wide; the kernel needs a multiple of 4 up to {LARGEST_WIDTH}"
    if batch > LARGEST_BATCH:
        return f"{name} holds {batch} samples; the kernel needs at most {LARGEST_BATCH}"
    return tensor_reason(name, rows, rows.shape)


def eps_reason(eps: float) -> str | None:
    """Why ``eps`` does not fit, NaN included; or None."""
    return None if eps >= SMALLEST_EPS else f"eps is {eps}; the kernel needs at least {SMALLEST_EPS}"


def vectors_reason(rows: torch.Tensor, text_rows: int, **vectors: torch.Tensor | None) -> str | None:
    """Why the modulation vectors [B, D] for ``rows`` do not fit; or None.

    Those called ``text_*`` must be there where any row takes them. Unlike rows they may start at any address, as a
    ``chunk`` of a modulation does.
    """
    if text_rows < 0:
        return f"text_rows is {text_rows}; the kernel needs 0 or more"
    shape = (rows.shape[0], rows.shape[2])
    for name, vector in vectors.items():
        if vector is None:
            if text_rows:
                return f"text_rows is {text_rows} without {name}; the kernel needs it"
            continue
        reason = tensor_reason(name, vector, shape, device=rows.device, alignment=vector.element_size())
        if reason is not None:
            return reason
    return None


def sharing_reason(out: torch.Tensor | None, modulated: torch.Tensor | None) -> str | None:
    """Why the two outputs of one launch do not fit together; or None."""
    if out is None or modulated is None or out.data_ptr() != modulated.data_ptr():
        return None
    return "out and modulated start at the same address; the kernel needs memory of its own for each"


def vector_sets(rows: int, text_rows: int) -> int:
    """How many sets of modulation vectors a launch over ``rows`` rows reads: text's, image's, or both."""
    return (text_rows > 0) + (text_rows < rows)


def row_compile_case(kernel: Any, constexprs: Mapping[str, Any], num_warps: int) -> CompileCase:
    """A case of a kernel whose pointers are all bf16, with strides, ``eps`` and ``text_rows`` beside them."""
    types = {"eps": "fp32", "text_rows": "i32"}
    names = [name for name in kernel.arg_names if name not in constexprs]
    signature = {name: "*bf16" if name.endswith("_ptr") else types.get(name, "i32") for name in names}
    return CompileCase(kernel, signature, constexprs, {"num_warps": num_warps, "enable_fp_fusion": False})
