"""Which convolutions may go through channels-last memory: of few channels, cuDNN sums in another order there.

Seen on an H200 (torch 2.11), bf16: 3 x 3 convolutions of 8 -> 8, 8 -> 16, 16 -> 16 and 8 -> 3 channels differ in up to
0.015 % of the values, as one of 3 -> 128 does; those of the released geometry, 16 -> 512, 128 -> 128, 128 -> 3 and
512 -> 32 among them, agree in every bit. A gate would find that out too, but a known case is no surprise.
"""

from __future__ import annotations

from typing import Any

CHANNELS_OF_A_VECTOR = 8
WIDE_ENOUGH = 64


def narrow_reason(*convolutions: Any) -> str | None:
    """The first of ``convolutions`` that may have other bits channels-last, and what it needs; None if none may."""
    for convolution in convolutions:
        inputs, outputs = convolution.in_channels, convolution.out_channels
        if inputs < CHANNELS_OF_A_VECTOR:
            return (
                f"a first convolution of {inputs} channels has other bits channels-last; "
                f"it needs {CHANNELS_OF_A_VECTOR} or more"
            )
        if max(inputs, outputs) < WIDE_ENOUGH:
            return (
                f"a convolution of {inputs} to {outputs} channels may have other bits channels-last; "
                f"it needs {WIDE_ENOUGH} or more on one side"
            )
    return None
