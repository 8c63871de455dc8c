"""Kernel tests: Triton's interpreter rounds fp32 -> bf16 by truncation and mistreats subnormals; here it does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from fuseproof.fastpaths.kernels.launching import is_interpreted

_FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp8e4nv": torch.float8_e4m3fn}
_INTEGERS = {8: torch.int8, 16: torch.int16, 32: torch.int32}
_plain_conversion = interpreter._convert_float


def convert(values: Any, source: tl.dtype, target: tl.dtype, rounding: Any) -> Any:
    """torch's own conversion, which rounds to nearest even; other pairs of types stay triton's."""
    if source.name not in _FLOATS or target.name not in _FLOATS:
        return _plain_conversion(values, source, target, rounding)
    bits = torch.from_numpy(np.ascontiguousarray(values).view(f"int{source.primitive_bitwidth}").copy())
    converted = bits.view(_FLOATS[source.name]).to(_FLOATS[target.name])
    width = target.primitive_bitwidth
    result = converted.view(_INTEGERS[width]).numpy()
    return result.view(f"uint{width}").reshape(values.shape)


@pytest.fixture(autouse=True)
def exact_rounding(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Skip where kernels are compiled for a real GPU: `make test-gpu` checks those."""
    if not is_interpreted():
        pytest.skip("kernels are compiled here, not interpreted")
    monkeypatch.setattr(interpreter, "_convert_float", convert)
    yield
