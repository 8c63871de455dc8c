"""A kernel that no compiler takes: what the ahead-of-time test must notice."""

from __future__ import annotations

import triton
import triton.language as tl

from fuseproof.fastpaths.kernels.launching import CompileCase


@triton.jit
def _broken_kernel(x_ptr, BLOCK: tl.constexpr):  # noqa: N803
    tl.store(x_ptr + tl.arange(0, BLOCK), nowhere_defined)  # noqa: F821


def compile_cases() -> list[CompileCase]:
    return [CompileCase(_broken_kernel, {"x_ptr": "*bf16"}, {"BLOCK": 16}, {}, lowest_capability=90)]
