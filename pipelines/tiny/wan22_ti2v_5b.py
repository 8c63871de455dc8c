"""Builds the small Wan 2.2 TI2V 5B: :mod:`fuseproof.pipelines.tiny.wan` under its own name."""

from __future__ import annotations

from pathlib import Path

from fuseproof.pipelines.tiny.wan import build_family


def build(folder: Path) -> None:
    """Write the small Wan 2.2 TI2V 5B into ``folder`` (created if needed): float32 safetensors, under 20 MB."""
    build_family(folder, "wan2.2-ti2v-5b")
