"""erf-GELU of one half of a projection times the other half, in one launch.

Formula: ``R(up * R(gelu(gate)))``, ``gelu(x) = (0.5 * x) * (1 + erf(x * sqrt(1/2)))`` in fp32; R is one rounding to
    bf16.
Shapes: gate and up [B, S, N] bf16 with a contiguous last dimension, rows of any stride (the halves of a packed [B, S,
    2 N] projection); the output is fresh, or a view of the same shape into another buffer.
Rounds: twice, after the GELU and after the product.
Replaces: ``up * torch.nn.functional.gelu(gate)`` of ERNIE-Image's feed-forward, diffusers 0.42.1: two kernels, five
    passes.
Exact: every bit, by construction. A bf16 value has 65,536 codes; torch's own GELU of each, taken once a device, is the
    table that the kernel reads. Computing it again is not exact: for ``|x| sqrt(1/2) > 1.0029`` CUDA 13's ``erff`` has
    other coefficients than the libdevice that Triton 3.6 carries, and 11 values round to another bf16.
Declines: other dtypes, a last dimension that is not contiguous, addresses that are no multiple of 16.
Bytes: both halves once in, the product once out: 6 B S N (321 MB at S 4352, N 12288: 76 us at 4.2 TB/s). The table is
    128 KiB, of which the values of one tensor touch a few KiB: they stay in the L1 cache.
Check first: if the trace shows ``GeluCUDAKernelImpl``, check that gate and up reach this site as they leave their
    projections, not through a cast or a dropout.
Source: diffusers transformer_ernie_image.py; aten/src/ATen/native/cuda/ActivationGeluKernel.cu.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import dimensions_reason, first_of, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.bfloat16 import widened
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, on_device_of

BLOCK = 2048
NUM_WARPS = 4
"""16 elements a thread, two 16-byte loads of each half on their way at once."""


def reference(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """diffusers' eager expression; a fresh tensor [B, S, N]."""
    return up * F.gelu(gate.contiguous())  # as a projection leaves it: a CPU takes strided rows another way


@functools.cache
def gelu_table(device: torch.device) -> torch.Tensor:
    """torch's GELU of every bf16 value, [65536] bf16 in the order of their codes; one for the process and device.

    Raises RuntimeError while a CUDA graph is captured, whose memory a later launch could not rely on.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("GEGLU's table cannot be made while a CUDA graph is captured; call the kernel once before")
    with torch.inference_mode(False), torch.no_grad():
        codes = torch.arange(65536, dtype=torch.int32, device=device).to(torch.int16).view(torch.bfloat16)
        table = F.gelu(codes)
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # whichever stream reads it first
    return table


@triton.jit
def _geglu_kernel(  # type: ignore[no-untyped-def]
    gate_ptr,
    up_ptr,
    table_ptr,
    out_ptr,
    gate_batch_stride,
    gate_row_stride,
    up_batch_stride,
    up_row_stride,
    out_batch_stride,
    out_row_stride,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    programs_per_row: tl.constexpr = (COLUMNS + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // programs_per_row).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    column = (tl.program_id(0) % programs_per_row) * BLOCK + tl.arange(0, BLOCK)
    inside = column < COLUMNS
    gate = tl.load(gate_ptr + batch * gate_batch_stride + row * gate_row_stride + column, mask=inside, other=0.0)
    up = tl.load(up_ptr + batch * up_batch_stride + row * up_row_stride + column, mask=inside, other=0.0)
    code = gate.to(tl.uint16, bitcast=True).to(tl.int32)
    activated = tl.load(table_ptr + code, mask=inside, other=0.0, eviction_policy="evict_last")
    product = (widened(up) * widened(activated)).to(tl.bfloat16)
    tl.store(out_ptr + batch * out_batch_stride + row * out_row_stride + column, product, mask=inside)


def reject_reason(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> str | None:
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    return (
        device_reason("gate", gate)
        or dimensions_reason("gate", gate, "B S N")
        or first_of(
            tensor_reason("gate", gate, gate.shape),
            tensor_reason("up", up, gate.shape, device=gate.device),
            output_reason("out", out, gate, gate.shape),
        )
    )


def fused(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``out`` may be either half."""
    batch, rows, columns = gate.shape
    out = gate.new_empty(gate.shape) if out is None else out
    with on_device_of(gate):
        _geglu_kernel[(rows * triton.cdiv(columns, BLOCK), batch)](
            gate,
            up,
            gelu_table(gate.device),
            out,
            *gate.stride()[:2],
            *up.stride()[:2],
            *out.stride()[:2],
            COLUMNS=columns,
            BLOCK=BLOCK,
            num_warps=NUM_WARPS,
            enable_fp_fusion=False,
        )
    return out


def traffic_bytes(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> int:
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 2 * gate.nbytes + up.nbytes


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: the feed-forward of ERNIE-Image (12288), and a width that no block divides."""
    signature = {"gate_ptr": "*bf16", "up_ptr": "*bf16", "table_ptr": "*bf16", "out_ptr": "*bf16"}
    signature |= {name: "i32" for name in _geglu_kernel.arg_names if name.endswith("_stride")}
    options = {"num_warps": NUM_WARPS, "enable_fp_fusion": False}
    return [
        CompileCase(_geglu_kernel, signature, {"COLUMNS": columns, "BLOCK": BLOCK}, options)
        for columns in (12288, 1000)
    ]


@torch.library.custom_op("fuseproof::geglu", mutates_args=(), schema="(Tensor gate, Tensor up) -> Tensor")
def operator(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The functional form, for ``torch.compile``: a fresh output. Raises ValueError with the reason to decline it."""
    if reason := reject_reason(gate, up):
        raise ValueError(reason)
    return fused(gate, up)


@operator.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return gate.new_empty(gate.shape)
