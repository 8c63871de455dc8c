"""Triton kernels, one file an operation: contract, plain-torch reference, kernel, why not, launch."""

from __future__ import annotations

import importlib


def triton_missing_reason() -> str | None:
    """Why no kernel module can be imported here, or None."""
    try:
        importlib.import_module("triton")
    except ImportError as error:
        return f"triton cannot be imported: {error}"
    return None
