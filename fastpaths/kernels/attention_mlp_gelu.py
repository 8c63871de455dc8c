"""Attention output and tanh-GELU of the MLP side by side, in the buffer that ``proj_out`` reads.

Formula: ``out[..., :A] = attention``; ``out[..., A:] = R(gelu_tanh(mlp))``, R one rounding to bf16.
Shapes: attention [B, S, A], mlp [B, S, N], out [B, S, A + N], all bf16 with a contiguous last dimension and rows of any
    stride; mlp may be ``out[..., A:]`` itself, attention must lie outside ``out``.
Rounds: once, after the GELU; attention is copied.
Replaces: ``torch.cat([attention, act_mlp(mlp)], dim=2)`` of diffusers' single transformer blocks, 0.42.1: a GELU and a
    copy of both.
Exact: every bit; the GELU is that of ``gelu_tanh``, the rest is a copy.
Declines: other dtypes, a last dimension that is not contiguous, addresses that are no multiple of 16.
Bytes: everything once in, once out: 4 B S (A + N) (283 MB at S 4608, A 3072, N 12288: 67 us at 4.2 TB/s).
Check first: if the trace shows ``CatArrayBatchedCopy`` before ``proj_out``, check that the MLP half of the packed
    projection is handed over as a view of the output buffer.
Source: diffusers transformer_longcat_image.py, transformer_flux.py (single blocks); gelu_tanh.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import dimensions_reason, output_reason, tensor_reason
from fuseproof.fastpaths.kernels.gelu_tanh import Launch, gelu
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, is_interpreted, on_device_of

# As gelu_tanh: two 16-byte loads a thread; 3072 columns of attention leave half of one program in eight idle.
_LAUNCH = Launch()


def reference(attention: torch.Tensor, mlp: torch.Tensor) -> torch.Tensor:
    """diffusers' eager expression; a fresh tensor [B, S, A + N]."""
    return torch.cat([attention, F.gelu(mlp, approximate="tanh")], dim=2)


@triton.jit
def _attention_mlp_gelu_kernel(  # type: ignore[no-untyped-def]
    attention_ptr,
    mlp_ptr,
    out_ptr,
    attention_batch_stride,
    attention_row_stride,
    mlp_batch_stride,
    mlp_row_stride,
    out_batch_stride,
    out_row_stride,
    ATTENTION: tl.constexpr,
    MLP: tl.constexpr,
    BLOCK: tl.constexpr,
    TANH: tl.constexpr,
):
    attention_programs: tl.constexpr = (ATTENTION + BLOCK - 1) // BLOCK
    programs_per_row: tl.constexpr = attention_programs + (MLP + BLOCK - 1) // BLOCK
    row = (tl.program_id(0) // programs_per_row).to(tl.int64)
    part = tl.program_id(0) % programs_per_row
    batch = tl.program_id(1).to(tl.int64)
    out_ptr += batch * out_batch_stride + row * out_row_stride
    if part < attention_programs:
        column = part * BLOCK + tl.arange(0, BLOCK)
        inside = column < ATTENTION
        attention_ptr += batch * attention_batch_stride + row * attention_row_stride
        tl.store(out_ptr + column, tl.load(attention_ptr + column, mask=inside, other=0.0), mask=inside)
    else:
        column = (part - attention_programs) * BLOCK + tl.arange(0, BLOCK)
        inside = column < MLP
        mlp_ptr += batch * mlp_batch_stride + row * mlp_row_stride
        raw = tl.load(mlp_ptr + column, mask=inside, other=0.0)
        tl.store(out_ptr + ATTENTION + column, gelu(raw, TANH), mask=inside)


def reject_reason(attention: torch.Tensor, mlp: torch.Tensor, out: torch.Tensor) -> str | None:
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    reason = device_reason("attention", attention) or dimensions_reason("attention", attention, "B S A")
    if reason := reason or dimensions_reason("mlp", mlp, "B S N"):
        return reason
    batch, rows, width = attention.shape
    return (
        tensor_reason("attention", attention, attention.shape)
        or tensor_reason("mlp", mlp, (batch, rows, mlp.shape[2]), device=attention.device)
        or output_reason("out", out, attention, (batch, rows, width + mlp.shape[2]))
    )


def fused(attention: torch.Tensor, mlp: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Launch the kernel on arguments that :func:`reject_reason` has passed; ``mlp`` may be ``out[..., A:]``."""
    batch, rows, width = attention.shape
    programs_per_row = triton.cdiv(width, _LAUNCH.block) + triton.cdiv(mlp.shape[2], _LAUNCH.block)
    with on_device_of(attention):
        _attention_mlp_gelu_kernel[(rows * programs_per_row, batch)](
            attention,
            mlp,
            out,
            *attention.stride()[:2],
            *mlp.stride()[:2],
            *out.stride()[:2],
            ATTENTION=width,
            MLP=mlp.shape[2],
            BLOCK=_LAUNCH.block,
            TANH="float64" if is_interpreted() else _LAUNCH.tanh,
            num_warps=_LAUNCH.num_warps,
            enable_fp_fusion=False,
        )
    return out


def traffic_bytes(attention: torch.Tensor, mlp: torch.Tensor, out: torch.Tensor) -> int:
    """The fewest bytes that a launch with these arguments moves: everything once."""
    return 2 * (attention.nbytes + mlp.nbytes)


def compile_cases() -> list[CompileCase]:
    """The variants that models launch: LongCat's and FLUX's single blocks, and widths that no block divides."""
    signature = {"attention_ptr": "*bf16", "mlp_ptr": "*bf16", "out_ptr": "*bf16"}
    signature |= {name: "i32" for name in _attention_mlp_gelu_kernel.arg_names if name.endswith("_stride")}
    options = {"num_warps": _LAUNCH.num_warps, "enable_fp_fusion": False}
    return [
        CompileCase(
            _attention_mlp_gelu_kernel,
            signature,
            {"ATTENTION": width, "MLP": columns, "BLOCK": _LAUNCH.block, "TANH": tanh},
            options,
        )
        for width, columns, tanh in ((3072, 12288, "exp"), (3072, 12288, "libdevice"), (200, 1000, "exp"))
    ]


@torch.library.custom_op(
    "fuseproof::attention_mlp_gelu", mutates_args=(), schema="(Tensor attention, Tensor mlp) -> Tensor"
)
def operator(attention: torch.Tensor, mlp: torch.Tensor) -> torch.Tensor:
    """The functional form, for ``torch.compile``: a fresh output. Raises ValueError with the reason to decline it."""
    out = attention.new_empty(*attention.shape[:-1], attention.shape[-1] + mlp.shape[-1])
    if reason := reject_reason(attention, mlp, out):
        raise ValueError(reason)
    return fused(attention, mlp, out)


@operator.register_fake
def _(attention: torch.Tensor, mlp: torch.Tensor) -> torch.Tensor:
    return attention.new_empty(*attention.shape[:-1], attention.shape[-1] + mlp.shape[-1])
