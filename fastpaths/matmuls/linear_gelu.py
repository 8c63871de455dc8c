"""A linear and its tanh-GELU in one matrix product: the activation is taken on the accumulator, before it is rounded.

Formula: ``out = R(gelu_tanh(x @ weight.T + bias))``, all fp32 up to R, one rounding to the model's dtype. Eager rounds
    twice: ``R(gelu_tanh(R(x @ weight.T + bias)))``.
Shapes: x [M, K], rows of any stride; weight [N, K], bias [N]; out [M, N] contiguous; bf16.
Rounds: once, at the end.
Replaces: ``linear`` (addmm) and ``gelu(approximate="tanh")``: diffusers' ``GELU``, and ``proj_mlp`` with ``act_mlp``.
Close: the same mathematics, one rounding less: a site of quality ``extra-high``. At most half a bf16 step before the
    GELU.
Declines: devices other than CUDA (there ``_addmm_activation`` takes the erf GELU, another function), dtypes other than
    bf16, K or N of 1: aten then leaves cuBLASLt and takes a GELU pass of its own.
Bytes: those of the product. What is saved is the GELU's own pass, 4 M N (226 MB at M 4608, N 12288: 54 us at 4.2
    TB/s).
Check first: if the trace still shows ``GeluCUDAKernelImpl``, check ``DISABLE_ADDMM_CUDA_LT``, the preferred BLAS
    backend, and that out is contiguous.
Source: aten/src/ATen/native/cuda/Blas.cpp (``addmm_activation_out_cuda``: epilogue GELU_BIAS, its fallback
    ``gelu(..., "tanh")``).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """diffusers' eager expression, [M, N]."""
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def reject_reason(weight: torch.Tensor) -> str | None:
    """Why a product with this weight [N, K] cannot have the epilogue: what was seen and what is needed; or None."""
    if weight.device.type != "cuda":
        return f"weights are on {weight.device}; the tanh-GELU epilogue needs a CUDA device"
    if weight.dtype != torch.bfloat16:
        return f"weights are {str(weight.dtype).removeprefix('torch.')}; the GELU epilogue is used for bfloat16"
    if min(weight.shape) < 2:
        return f"a weight has shape {list(weight.shape)}; the epilogue needs at least 2 rows and 2 columns"
    return None


def fused(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The product with its epilogue, into ``out`` [M, N], contiguous."""
    if out is None:
        out = x.new_empty(x.shape[0], weight.shape[0])
    torch._addmm_activation(bias, x, weight.t(), use_gelu=True, out=out)
    return out


def traffic_bytes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, out: torch.Tensor | None = None) -> int:
    """The fewest bytes that the product moves: everything once."""
    return x.numel() * 2 + weight.nbytes + bias.nbytes + 2 * x.shape[0] * weight.shape[0]
