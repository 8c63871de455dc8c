"""Where a slot keeps the arrays from before the uint8 conversion, and under which names."""

from __future__ import annotations

from pathlib import PurePosixPath

RAW_FOLDER = "raw"
"""Beside ``outputs`` and ``perf.json``."""


def raw_name(image: str) -> str:
    """``image-0.png`` → ``image-0.npy``."""
    return f"{PurePosixPath(image).stem}.npy"
