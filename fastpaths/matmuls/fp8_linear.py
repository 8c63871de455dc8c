"""A linear as one FP8 matrix product: e4m3 rows with a scale each on both sides, accumulated in fp32.

Formula: ``out = R((values @ weight.T) * scale * weight_scale + bias)``, R one rounding to bf16. ``values`` and
    ``scale`` are the rows of x as ``row_quantize`` leaves them, ``weight`` and ``weight_scale`` those of the weight.
Shapes: values [M, K] and weight [N, K] e4m3, contiguous; scale [M, 1] and weight_scale [1, N] fp32, contiguous; bias
    [N] bf16, or None; out [M, N] bf16, contiguous. K and N are multiples of 16.
Rounds: x and the weight to e4m3 (an error of at most 1/16 of a value), the sum once to bf16. Fast accumulation: partial
    sums are kept by the tensor cores in fewer bits than fp32, as is usual for inference.
Replaces: ``linear`` (addmm with bias) of bf16 operands.
Close: lower precision, a site of quality ``high``. Random operands: a relative error of 3.7 % of the product.
Declines: devices below sm_89 and other than CUDA, weights other than bf16, K or N that 16 does not divide.
Bytes: ``M K + N K + 2 M N`` and the scales. At M 4608 the product is bound by arithmetic: FP8 tensor cores do twice the
    bf16 rate (H200: 1979 against 989 TFLOP/s on paper; 718 were measured for a bf16 linear).
Check first: if the trace shows bf16 matmuls inside blocks, check that ``fp8_linear`` is ``approximate`` in the report.
Source: aten/src/ATen/native/cuda/ScaledBlas.cpp (``_scaled_mm``, row-wise: cuBLASLt from 12.9 on sm_90, else CUTLASS).
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from fuseproof.fastpaths.kernels import row_quantize

MULTIPLE = 16


class Rows(NamedTuple):
    """Quantised rows: ``values`` [M, K] e4m3 and ``scale`` [M, 1] fp32."""

    values: torch.Tensor
    scale: torch.Tensor


def reference(
    values: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """The same product of the same quantised operands in fp32, rounded once: [M, N] bf16."""
    product = values.float() @ weight.float().t()
    scaled = product * scale * weight_scale
    return (scaled if bias is None else scaled + bias.float()).to(torch.bfloat16)


def reject_reason(weight: torch.Tensor) -> str | None:
    """Why this weight [N, K] cannot be used in FP8, naming what was seen and what is needed; or None."""
    if weight.device.type != "cuda":
        return f"weights are on {weight.device}; FP8 matmuls need a CUDA device, sm_89 or newer"
    if weight.dtype != torch.bfloat16:
        return f"weights are {str(weight.dtype).removeprefix('torch.')}; FP8 matmuls replace bfloat16 ones"
    reason = row_quantize.capability_reason(weight.device)
    if reason is not None:
        return reason
    if any(side % MULTIPLE for side in weight.shape):
        return f"a weight has shape {list(weight.shape)}; FP8 matmuls need multiples of {MULTIPLE}"
    if weight.shape[1] > row_quantize.WIDEST_PART:
        return f"a weight has shape {list(weight.shape)}; rows are quantised up to {row_quantize.WIDEST_PART} columns"
    return None


def quantized_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [N, K] as values [N, K] e4m3 and scale [1, N], one scale an output."""
    values, scale = row_quantize.fused(weight.detach().unsqueeze(0))
    return values[0], scale[0].view(1, -1)


def fused(
    values: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """The scaled product, into ``out`` [M, N] where one is given."""
    if out is None:
        out = torch.empty(values.shape[0], weight.shape[0], dtype=torch.bfloat16, device=values.device)
    torch._scaled_mm(
        values, weight.t(), scale, weight_scale, bias=bias, out_dtype=torch.bfloat16, use_fast_accum=True, out=out
    )
    return out


def traffic_bytes(
    values: torch.Tensor,
    scale: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
) -> int:
    """The fewest bytes that the product moves: everything once."""
    read = sum(tensor.nbytes for tensor in (values, scale, weight, weight_scale, bias) if tensor is not None)
    return read + 2 * values.shape[0] * weight.shape[0]
