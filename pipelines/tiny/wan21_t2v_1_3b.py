"""Builds the small Wan 2.1 T2V 1.3B: :mod:`fuseproof.pipelines.tiny.wan` under its own name."""

from __future__ import annotations

from pathlib import Path

from fuseproof.pipelines.tiny.wan import build_family


def build(folder: Path) -> None:
    """Write the small Wan 2.1 T2V 1.3B into ``folder`` (created if needed): float32 safetensors, under 20 MB."""
    build_family(folder, "wan2.1-t2v-1.3b")
