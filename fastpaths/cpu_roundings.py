"""Where a CPU computes a kernel's reference in other bits than a card does, so that the interpreter cannot decide.

Triton's interpreter runs the kernel as written, for a card; the reference beside it is torch's own, on a CPU. Some
references have the same bits there, and any difference is a fault. Others differ in few values for a known cause.
"""

from __future__ import annotations

import re

LARGEST_PERCENT = 1.0
"""Of the values may differ for a cause of the CPU's; more is a fault of the kernel. How far they differ is not judged:
beside a result of 0, the last place of another tanh is thousands of ulp."""
SUMS = "a CPU adds up a row in another order than the card, whose order this kernel follows"
TANH = "a CPU's tanh differs from the card's in its last places, which shows most where the result is near 0"
ERF = "a CPU takes another erf for the last few values of a tensor than for the rest, and this kernel one for all"
EXP = "a CPU adds up a group in another order, and takes another exp, than the card whose results this kernel follows"
DIVISION = "a CPU divides where a card multiplies by the reciprocal, as this kernel does"
CAUSE_OF_KERNEL = {
    "layernorm_modulate": SUMS,
    "gated_residual_layernorm_modulate": SUMS,
    "qk_norm_rope": SUMS,
    "qk_norm_rotate_half": SUMS,
    "rmsnorm_modulate": SUMS,
    "gated_residual_rmsnorm_modulate": SUMS,
    "guidance_step": SUMS,
    "table_layernorm_modulate": SUMS,
    "table_gated_residual_layernorm": SUMS,
    "residual_table_layernorm_modulate": SUMS,
    "table_gated_residual_table_layernorm_modulate": SUMS,
    "across_heads_norm": SUMS,
    "across_heads_norm_rope": SUMS,
    "gelu_tanh": TANH,
    "geglu": ERF,
    "attention_mlp_gelu": TANH,
    "row_quantize": TANH,
    "group_norm_silu": EXP,
    "conv_bias_residual": DIVISION,
    "wan_norm_silu": EXP,
    "causal_conv_input": EXP,
}
"""Kernels without an entry have the card's bits on a CPU too."""


def cpu_cause(kernel: str, rejection: str) -> str | None:
    """Why a CPU alone may explain a gate's ``rejection`` of ``kernel``; None where the kernel is at fault."""
    cause = CAUSE_OF_KERNEL.get(kernel)
    share = re.search(r"([0-9.]+)% of the values differ", rejection)
    if cause is None or share is None or float(share[1]) > LARGEST_PERCENT:
        return None
    return f"{cause}; only a card can decide ({rejection}; more than {LARGEST_PERCENT:g}% would be a fault)"
