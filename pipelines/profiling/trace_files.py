"""The Chrome traces of a profile, kept below a bound: fewer steps first, Python calls left out last."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import torch

from fuseproof.pipelines.profiling import events
from fuseproof.pipelines.stages import DENOISING

LARGEST_BYTES = 64 << 20


class TraceKeeper:
    """Writes the trace of the denoising steps to ``path`` (``.json.gz``) and those of other stages beside it."""

    def __init__(self, path: Path, largest_bytes: int = LARGEST_BYTES) -> None:
        self.path = path
        self.is_truncated = False
        self._largest = largest_bytes
        self._kept: set[Path] = set()

    def keep(self, profiler: torch.profiler.profile, stage: str) -> None:
        """Write what ``profiler`` saw; of a clip's chunks the first is kept."""
        name = self.path.name
        path = self.path if stage == DENOISING else self.path.with_name(f"{name.split('.')[0]}-{stage}.json.gz")
        if path in self._kept:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{os.getpid()}-{path.name.removesuffix('.gz').removesuffix('.json')}.json")
        try:
            profiler.export_chrome_trace(str(unfinished))
            self._compress(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
        self._kept.add(path)

    def to_json(self) -> dict[str, Any]:
        """The ``trace`` of a profile."""
        size = self.path.stat().st_size if self.path.exists() else 0
        return {"file": self.path.name, "bytes": size, "truncated": self.is_truncated}

    def _compress(self, plain: Path, path: Path) -> None:
        packed = path.with_name(f".{path.name}.part")
        packed.write_bytes(gzip.compress(plain.read_bytes(), 5))
        if packed.stat().st_size > self._largest:
            self.is_truncated = True
            packed.write_bytes(_bounded(json.loads(plain.read_text(encoding="utf-8", errors="replace")), self._largest))
        packed.replace(path)


def _bounded(trace: dict[str, Any], largest: int) -> bytes:
    """``trace`` with as few cuts as it takes: its first step only, then without Python calls, then its beginning."""
    found = trace["traceEvents"]
    first_end = min(
        (one["ts"] for one in found if str(one.get("name", "")).startswith(events.STEP_ENDS)), default=float("inf")
    )
    within = [one for one in found if one.get("ph") == "M" or float(one.get("ts", 0)) <= first_end]
    plain = [one for one in within if one.get("cat") != "python_function"]
    packed = b""
    for kept in (within, plain, *(plain[: len(plain) // part] for part in (2, 4, 8, 16, 64, 256))):
        packed = gzip.compress(json.dumps({**trace, "traceEvents": kept}).encode(), 5)
        if len(packed) <= largest:
            break
    return packed
