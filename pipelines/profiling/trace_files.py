"""The Chrome traces of a profile, kept below a bound: fewer steps first, Python calls left out last."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fuseproof.pipelines.profiling import events
from fuseproof.pipelines.profiling.chatter import without_remarks
from fuseproof.pipelines.stages import DENOISING

LARGEST_BYTES = 64 << 20
NOT_KEPT = "the trace of {stage} could not be written: {reason}; everything else of the profile is there"
NOT_EXPORTED = "the profiler left no whole one, as on a full disk"


class TraceKeeper:
    """Writes the trace of the denoising steps to ``path`` (``.json.gz``) and those of other stages beside it.

    A trace that cannot be written leaves nothing behind, and a sentence in ``warnings``: the profile does not need it.
    """

    def __init__(self, path: Path, largest_bytes: int = LARGEST_BYTES) -> None:
        self.path = path
        self.is_truncated = False
        self.warnings: list[str] = []
        self._largest = largest_bytes
        self._kept: set[Path] = set()

    def keep(self, profiler: torch.profiler.profile, stage: str) -> None:
        """Write what ``profiler`` saw; of a clip's chunks the first is kept."""
        name = self.path.name
        path = self.path if stage == DENOISING else self.path.with_name(f"{name.split('.')[0]}-{stage}.json.gz")
        if path in self._kept:
            return
        self._kept.add(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _folder_for_export(self.path.parent) as folder:
                self._compress(_exported(profiler, folder), path)
        except OSError as error:
            self.warnings.append(NOT_KEPT.format(stage=stage, reason=error.strerror or error))

    def to_json(self) -> dict[str, Any] | None:
        """The ``trace`` of a profile; None where it could not be written."""
        if not self.path.exists():
            return None
        return {"file": self.path.name, "bytes": self.path.stat().st_size, "truncated": self.is_truncated}

    def _compress(self, plain: Path, path: Path) -> None:
        packed, is_truncated = gzip.compress(plain.read_bytes(), 5), False
        if len(packed) > self._largest:
            packed = _bounded(json.loads(plain.read_text(encoding="utf-8", errors="replace")), self._largest)
            is_truncated = True
        unfinished = path.with_name(f".{os.getpid()}-{path.name}.part")
        try:
            unfinished.write_bytes(packed)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        self.is_truncated = self.is_truncated or is_truncated


@contextmanager
def _folder_for_export(destination: Path) -> Iterator[Path]:
    """A folder of its own for files of the profiler, gone afterwards whatever it left there.

    It drops characters from file names that it takes for unprintable, and then cannot find its own file: such folders
    are left for that of the system's temporary files.
    """
    text = os.fspath(destination)
    beside = destination if text.isascii() and text.isprintable() else None
    with tempfile.TemporaryDirectory(prefix=".trace-", dir=beside) as folder:
        yield Path(folder)


def _exported(profiler: torch.profiler.profile, folder: Path) -> Path:
    """What ``profiler`` saw as JSON; :class:`OSError` where there is no such file, of which torch raises nothing."""
    plain = folder / "trace.json"
    with without_remarks():
        profiler.export_chrome_trace(str(plain))
    if not plain.exists() or not plain.read_bytes().rstrip().endswith(b"}"):
        raise OSError(NOT_EXPORTED)
    return plain


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
