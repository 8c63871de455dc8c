"""Builds the small LongCat-Image-Edit-Turbo: :mod:`fuseproof.pipelines.tiny.longcat_image_edit` under its own name."""

from __future__ import annotations

from pathlib import Path

from fuseproof.pipelines.tiny.longcat_image_edit import build_family


def build(folder: Path) -> None:
    """Write the small LongCat-Image-Edit-Turbo into ``folder`` (created if needed): float32 safetensors, 37 MB."""
    build_family(folder, "longcat-image-edit-turbo")
