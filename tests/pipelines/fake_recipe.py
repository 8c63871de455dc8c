"""A stand-in for a checkpoint builder: a few bytes instead of torch, and faults on request."""

from __future__ import annotations

from pathlib import Path

from fuseproof.pipelines.model_cache import Recipe

RECIPE = Recipe(name="longcat-image", module="tests.pipelines.fake_recipe", sources=(__file__,))

builds: list[Path] = []
fault: BaseException | None = None


def build(folder: Path) -> None:
    """Write two files into ``folder``, or half of them and raise ``fault``."""
    builds.append(folder)
    (folder / "vae").mkdir(parents=True)
    (folder / "model_index.json").write_bytes(b"{}")
    if fault is not None:
        raise fault
    (folder / "vae" / "weights").write_bytes(b"12345")
