"""A stand-in for a checkpoint builder: a few bytes instead of torch, and faults on request."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from fuseproof.pipelines.model_cache import Recipe

RECIPE = Recipe(name="longcat-image", module="tests.pipelines.fake_recipe", sources=(__file__,))

builds: list[Path] = []
fault: BaseException | None = None
meeting: threading.Barrier | None = None
met: list[int] = []


def build(folder: Path) -> None:
    """Write two files into ``folder``, or half of them and raise ``fault``.

    With a ``meeting``, note in ``met`` whether another build was under way at the same time.
    """
    builds.append(folder)
    if meeting is not None:
        with contextlib.suppress(threading.BrokenBarrierError):
            met.append(meeting.wait())
    (folder / "vae").mkdir(parents=True)
    (folder / "model_index.json").write_bytes(b"{}")
    if fault is not None:
        raise fault
    (folder / "vae" / "weights").write_bytes(b"12345")
