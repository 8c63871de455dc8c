"""Kernel tests: Triton's interpreter rounds fp32 -> bf16 by truncation and mistreats subnormals; here it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fuseproof.fastpaths import interpreter_rounding
from fuseproof.fastpaths.kernels.launching import is_interpreted


@pytest.fixture(autouse=True)
def exact_rounding() -> Iterator[None]:
    """Skip where kernels are compiled for a real GPU: `make test-gpu` checks those."""
    if not is_interpreted():
        pytest.skip("kernels are compiled here, not interpreted")
    with interpreter_rounding.exact_rounding():
        yield
