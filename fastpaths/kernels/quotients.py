"""Correctly rounded fp32 quotients without a branch for each, so that a thread's divisions overlap.

``div.rn.f32`` becomes a reciprocal, three corrections and a check of the exponents whose failure calls a subroutine:
one basic block a quotient, so sixteen of them wait for each other. Here four quotients at a time take the same steps
(reciprocal, one Newton step, product, remainder, correction) and share one check; where it fails, all four are divided
by ``div.rn.f32`` itself.

The check: the product of dividend and reciprocal is between 2^-60 and 2^60, and the divisor 2^-41 or more (a row's
2^40 at most).
Then no step leaves the normal numbers and the remainder is exact, so the steps give what they give for the same
significands anywhere else, which is the correctly rounded quotient. Zeros, infinities and NaN fail it.

Only for compiled kernels: Triton's interpreter runs no inline assembly, and a thread must own a multiple of four.
"""

from __future__ import annotations

import triton
import triton.language as tl

AT_ONCE = 4
LEAST, MOST = "0f21800000", "0f5D800000"
"""2^-60 and 2^60."""
LEAST_DIVISOR, MOST_DIVISOR = "0f2B000000", "0f53800000"
"""2^-41 and 2^40, of :func:`reciprocal`."""


def _quotients(reciprocals: bool) -> str:
    """PTX for four quotients; operands are results, dividends, divisors and, unless made here, ``reciprocals``."""
    results, dividends, divisors, given = ([f"${AT_ONCE * n + i}" for i in range(AT_ONCE)] for n in range(4))
    lines = [".reg .pred unsafe;", ".reg .f32 size, rest, minus<4>, by<4>;"]
    for i, (q, x, d) in enumerate(zip(results, dividends, divisors, strict=True)):
        lines.append(f"neg.f32 minus{i}, {d};")
        if reciprocals:
            lines.append(f"mov.f32 by{i}, {given[i]};")
        else:
            lines += [f"rcp.approx.ftz.f32 by{i}, {d};", f"fma.rn.f32 rest, by{i}, minus{i}, 0f3F800000;"]
            lines.append(f"fma.rn.f32 by{i}, by{i}, rest, by{i};")
        lines += [f"mul.rn.f32 {q}, {x}, by{i};", f"abs.f32 size, {q};"]
        lines.append(f"setp.ltu.{'or.' if i else ''}f32 unsafe, size, {LEAST}{', unsafe' if i else ''};")
        lines.append(f"setp.gtu.or.f32 unsafe, size, {MOST}, unsafe;")
        lines += [f"fma.rn.f32 rest, {q}, minus{i}, {x};", f"fma.rn.f32 {q}, by{i}, rest, {q};"]
    slow = [f"div.rn.f32 {q}, {x}, {d};" for q, x, d in zip(results, dividends, divisors, strict=True)]
    return "\n".join(["{", *lines, "@!unsafe bra DONE;", *slow, "DONE:", "}"])


_BY_ROW = tl.constexpr(_quotients(True))
_EACH = tl.constexpr(_quotients(False))
_BY_ROW_REGISTERS = tl.constexpr(",".join(["=&f"] * AT_ONCE + ["f"] * 3 * AT_ONCE))
_EACH_REGISTERS = tl.constexpr(",".join(["=&f"] * AT_ONCE + ["f"] * 2 * AT_ONCE))
_RECIPROCAL = tl.constexpr(
    f"""{{
    .reg .pred unsafe;
    .reg .f32 minus, rest, by;
    neg.f32 minus, $1;
    rcp.approx.ftz.f32 by, $1;
    fma.rn.f32 rest, by, minus, 0f3F800000;
    fma.rn.f32 by, by, rest, by;
    setp.ltu.f32 unsafe, $1, {LEAST_DIVISOR};
    setp.gtu.or.f32 unsafe, $1, {MOST_DIVISOR}, unsafe;
    selp.f32 $0, 0f7FFFFFFF, by, unsafe;
    }}"""
)
_ROUNDED = tl.constexpr(
    """{
    .reg .b32 both;
    cvt.rn.bf16x2.f32 both, $3, $2;
    shl.b32 $0, both, 16;
    and.b32 $1, both, 0xffff0000;
    }"""
)


@triton.jit
def reciprocal(divisor):  # type: ignore[no-untyped-def]
    """[P] fp32 -> [P] fp32 for :func:`divided_by_row`; NaN where the steps are not safe, which its check then sees."""
    return tl.inline_asm_elementwise(_RECIPROCAL, "=&f,f", [divisor], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def divided_by_row(x, divisor, by):  # type: ignore[no-untyped-def]
    """[P, C] fp32 by [P, C] divisors whose :func:`reciprocal` is ``by`` [P, C] -> [P, C], correctly rounded."""
    return tl.inline_asm_elementwise(
        _BY_ROW, _BY_ROW_REGISTERS, [x, divisor, by], dtype=tl.float32, is_pure=True, pack=4
    )


@triton.jit
def divided(x, divisor):  # type: ignore[no-untyped-def]
    """[P, C] fp32 by divisors of 2^-41 or more -> [P, C], correctly rounded."""
    return tl.inline_asm_elementwise(_EACH, _EACH_REGISTERS, [x, divisor], dtype=tl.float32, is_pure=True, pack=4)


@triton.jit
def rounded_in_pairs(x):  # type: ignore[no-untyped-def]
    """R: fp32 -> fp32 with a bf16 value, to nearest even, two values an instruction."""
    return tl.inline_asm_elementwise(_ROUNDED, "=&r,=&r,f,f", [x], dtype=tl.float32, is_pure=True, pack=2)
