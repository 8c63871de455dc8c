"""Rows as FP8 with one scale each, ready for a row-wise scaled matmul; part of a row may be a GELU not yet taken.

Formula: a row is ``y = [x | gelu_tanh(mlp)]``, either part may be missing. ``largest = max(max|y|, 1e-12)``;
    ``values = E(y * (448 / largest))``, ``scale = largest * (1 / 448)``; E is one rounding to e4m3. ``values * scale``
    is y within 1/16 of the value, or within 1/458752 of the row's largest where that is more.
Shapes: x [B, S, A] and mlp [B, S, N], bf16 with a contiguous last dimension and rows of any stride; A + N is a multiple
    of 16 and neither part is wider than 16384. The results are fresh: values [B, S, A + N] e4m3, scale [B, S, 1] fp32.
Rounds: the GELU to bf16, as where it is a kernel of its own; ``448 / largest`` and the product in fp32; then E.
Replaces: nothing in diffusers; it is what an FP8 matmul costs beside the matmul. In plain torch: a cast, abs, amax, a
    division, a product and a cast, and before them the GELU and the ``cat`` of a single block.
Exact: of its reference, every bit, where all of a row is finite. Not of the row itself: a site of quality ``high``. A
    row with a NaN or an infinity gives products that are not finite.
Declines: other dtypes, a last dimension that is not contiguous, addresses that are no multiple of 16, widths as above,
    devices below sm_89, which have no e4m3.
Bytes: everything once in, half of it once out: 3 B S (A + N) + 4 B S (212 MB at S 4608, A 3072, N 12288: 51 us at
    4.2 TB/s, where GELU and ``cat`` alone move 283 MB).
Check first: if the trace shows a GELU kernel beside FP8 matmuls, check that the MLP columns are handed over as they
    leave the projection.
Source: aten/src/ATen/native/cuda/ScaledBlas.cpp (row-wise scales); the GELU is that of gelu_tanh.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.arguments import dimensions_reason, tensor_reason
from fuseproof.fastpaths.kernels.gelu_tanh import gelu, tanh_choice
from fuseproof.fastpaths.kernels.launching import CompileCase, device_reason, is_interpreted, on_device_of

VALUES_DTYPE = torch.float8_e4m3fn
LARGEST_VALUE = 448.0
SMALLEST_LARGEST = 1e-12
"""A row of zeros gets this scale, and stays zeros."""
WIDTH_MULTIPLE = 16
WIDEST_PART = 16384
LOWEST_CAPABILITY = (8, 9)


def reference(x: torch.Tensor | None, mlp: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The same values and scales in plain torch."""
    parts = [] if x is None else [x]
    parts += [] if mlp is None else [F.gelu(mlp, approximate="tanh")]
    row = torch.cat(parts, dim=-1).float()
    largest = row.abs().amax(dim=-1, keepdim=True).clamp(min=SMALLEST_LARGEST)
    inverse = torch.full_like(largest, LARGEST_VALUE) / largest
    return (row * inverse).to(VALUES_DTYPE), largest * (1.0 / LARGEST_VALUE)


@triton.jit
def _row_quantize_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    mlp_ptr,
    values_ptr,
    scale_ptr,
    x_batch_stride,
    x_row_stride,
    mlp_batch_stride,
    mlp_row_stride,
    PLAIN: tl.constexpr,
    ACTIVATED: tl.constexpr,
    PLAIN_BLOCK: tl.constexpr,
    ACTIVATED_BLOCK: tl.constexpr,
    TANH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    place = batch * tl.num_programs(0) + row
    values_ptr += place * (PLAIN + ACTIVATED)
    largest = 1e-12
    if PLAIN > 0:
        plain_column = tl.arange(0, PLAIN_BLOCK)
        plain_inside = plain_column < PLAIN
        x_ptr += batch * x_batch_stride + row * x_row_stride
        plain = tl.load(x_ptr + plain_column, mask=plain_inside, other=0.0).to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(plain), axis=0), largest)
    if ACTIVATED > 0:
        column = tl.arange(0, ACTIVATED_BLOCK)
        inside = column < ACTIVATED
        mlp_ptr += batch * mlp_batch_stride + row * mlp_row_stride
        raw = tl.load(mlp_ptr + column, mask=inside, other=0.0)
        activated = gelu(raw, TANH).to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(activated), axis=0), largest)
    inverse = tl.math.div_rn(448.0, largest)
    if PLAIN > 0:
        tl.store(values_ptr + plain_column, (plain * inverse).to(tl.float8e4nv), mask=plain_inside)
    if ACTIVATED > 0:
        tl.store(values_ptr + PLAIN + column, (activated * inverse).to(tl.float8e4nv), mask=inside)
    tl.store(scale_ptr + place, largest * (1.0 / 448.0))


def reject_reason(x: torch.Tensor | None, mlp: torch.Tensor | None = None) -> str | None:
    """Why these arguments cannot run fused, naming the argument, its value and what the kernel needs; or None."""
    parts = {name: part for name, part in (("x", x), ("mlp", mlp)) if part is not None}
    if not parts:
        return "x and mlp are both None; the kernel needs at least one"
    first = next(iter(parts.values()))
    for name, part in parts.items():
        reason = device_reason(name, part) or dimensions_reason(name, part, "B S N")
        reason = reason or tensor_reason(name, part, (*first.shape[:2], part.shape[2]), device=first.device)
        if reason is not None:
            return reason
        if part.shape[2] > WIDEST_PART:
            return f"{name} is {part.shape[2]} wide; the kernel holds at most {WIDEST_PART} columns of a part"
    width = sum(part.shape[2] for part in parts.values())
    if width % WIDTH_MULTIPLE:
        return f"rows are {width} wide; FP8 matmuls need a multiple of {WIDTH_MULTIPLE}"
    return capability_reason(first.device)


def capability_reason(device: torch.device) -> str | None:
    """Why this device has no e4m3 arithmetic, or None."""
    if device.type != "cuda":
        return None if is_interpreted() else f"the device is {device}; e4m3 needs CUDA sm_89 or newer"
    capability = torch.cuda.get_device_capability(device)
    if capability >= LOWEST_CAPABILITY:
        return None
    return f"the device is sm_{capability[0]}{capability[1]}; e4m3 needs sm_89 or newer"


def fused(x: torch.Tensor | None, mlp: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel on arguments that :func:`reject_reason` has passed: values [B, S, A + N], scale [B, S, 1]."""
    first = x if x is not None else mlp
    assert first is not None, "at least one part"
    batch, rows = first.shape[:2]
    plain, activated = (0 if part is None else part.shape[2] for part in (x, mlp))
    values = torch.empty(batch, rows, plain + activated, dtype=VALUES_DTYPE, device=first.device)
    scale = torch.empty(batch, rows, 1, dtype=torch.float32, device=first.device)
    with on_device_of(first):
        _row_quantize_kernel[(rows, batch)](
            first if x is None else x,
            first if mlp is None else mlp,
            values,
            scale,
            *(first if x is None else x).stride()[:2],
            *(first if mlp is None else mlp).stride()[:2],
            **_constexprs(plain, activated),
            TANH=tanh_choice(),
            num_warps=_num_warps(plain + activated),
            enable_fp_fusion=False,
        )
    return values, scale


def _constexprs(plain: int, activated: int) -> dict[str, int]:
    blocks = {"PLAIN_BLOCK": triton.next_power_of_2(plain), "ACTIVATED_BLOCK": triton.next_power_of_2(activated)}
    return {"PLAIN": plain, "ACTIVATED": activated, **{name: max(size, 1) for name, size in blocks.items()}}


def _num_warps(width: int) -> int:
    """A row stays in registers: 32 values a thread up to 4096 columns, 80 at 3072 + 12288."""
    return 4 if width <= 4096 else 8


def traffic_bytes(x: torch.Tensor | None, mlp: torch.Tensor | None = None) -> int:
    """The fewest bytes that a launch with these arguments moves: all once in, a byte a value and the scales out."""
    parts = [part for part in (x, mlp) if part is not None]
    rows = parts[0].shape[0] * parts[0].shape[1]
    return sum(part.nbytes + part.numel() for part in parts) + 4 * rows


def compile_cases() -> list[CompileCase]:
    """The variants that LongCat and FLUX launch: a plain row, an MLP's, both; and widths without a divisor."""
    signature = {"x_ptr": "*bf16", "mlp_ptr": "*bf16", "values_ptr": "*fp8e4nv", "scale_ptr": "*fp32"}
    signature |= {name: "i32" for name in _row_quantize_kernel.arg_names if name.endswith("_stride")}
    return [
        CompileCase(
            _row_quantize_kernel,
            signature,
            {**_constexprs(plain, activated), "TANH": "exp"},
            {"num_warps": _num_warps(plain + activated), "enable_fp_fusion": False},
            lowest_capability=10 * LOWEST_CAPABILITY[0] + LOWEST_CAPABILITY[1],
        )
        for plain, activated in ((3072, 0), (0, 12288), (3072, 12288), (208, 1008))
    ]


@torch.library.custom_op(
    "fuseproof::row_quantize", mutates_args=(), schema="(Tensor? x, Tensor? mlp) -> (Tensor, Tensor)"
)
def operator(x: torch.Tensor | None, mlp: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The functional form, for ``torch.compile``. Raises ValueError with the reason that declines it."""
    if reason := reject_reason(x, mlp):
        raise ValueError(reason)
    return fused(x, mlp)


@operator.register_fake
def _(x: torch.Tensor | None, mlp: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [part for part in (x, mlp) if part is not None]
    batch, rows = parts[0].shape[:2]
    width = sum(part.shape[2] for part in parts)
    values = parts[0].new_empty(batch, rows, width, dtype=VALUES_DTYPE)
    return values, parts[0].new_empty(batch, rows, 1, dtype=torch.float32)
