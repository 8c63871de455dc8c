"""Triton's CPU interpreter rounds fp32 to bf16 by truncation and mistreats subnormals; inside here it does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn}
_INTEGERS = {8: torch.int8, 16: torch.int16, 32: torch.int32}


@contextmanager
def exact_rounding() -> Iterator[None]:
    """Let torch convert between float types, to nearest even; other pairs of types stay triton's."""
    from triton.runtime import interpreter

    plain = interpreter._convert_float

    def convert(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source.name not in _FLOATS or target.name not in _FLOATS:
            return plain(values, source, target, rounding)
        bits = torch.from_numpy(np.ascontiguousarray(values).view(f"int{source.primitive_bitwidth}").copy())
        converted = bits.view(_FLOATS[source.name]).to(_FLOATS[target.name])
        width = target.primitive_bitwidth
        result = converted.view(_INTEGERS[width]).numpy()
        return result.view(f"uint{width}").reshape(values.shape)

    interpreter._convert_float = convert
    try:
        with np.errstate(all="ignore"):  # NaN and infinities are asked for, and numpy remarks on each
            yield
    finally:
        interpreter._convert_float = plain
