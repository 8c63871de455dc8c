"""Builds the small ERNIE-Image-Turbo: :mod:`fuseproof.pipelines.tiny.ernie_image` under its own name."""

from __future__ import annotations

from pathlib import Path

from fuseproof.pipelines.tiny.ernie_image import build_family


def build(folder: Path) -> None:
    """Write the small ERNIE-Image-Turbo into ``folder`` (created if needed): float32 safetensors, about 20 MB."""
    build_family(folder, "ernie-image-turbo")
