"""bf16 to fp32 and back inside kernels, so that every fp32 operation between stays one.

LLVM recognises ``R(fp32(a) * fp32(b))`` and emits a bf16 multiplication for it on sm_90. That rounds once; torch's
kernels round twice, to fp32 and to bf16, which differs where the product is subnormal. Widening by integer operations
hides the conversion, costs the same one instruction a value, and is exact for every bit pattern.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def widened(raw):  # type: ignore[no-untyped-def]
    """bf16 -> fp32, exact."""
    return (raw.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def rounded(x):  # type: ignore[no-untyped-def]
    """R: fp32 -> fp32 with a bf16 value, to nearest even."""
    return widened(x.to(tl.bfloat16))
