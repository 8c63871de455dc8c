"""Hash again what is kept of a video: the frames that its file decodes to, and the raw frames before encoding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fuseproof.harness.campaign.clip_outputs import stated_frames
from fuseproof.harness.campaign.folder import PERF_FILE
from fuseproof.harness.campaign.records import SlotOutput
from fuseproof.harness.media.clips import load_clip
from fuseproof.harness.media.files import array_sha256
from fuseproof.harness.verification.findings import Finding, Tally


class Slot(Protocol):
    """One output of one slot, as :mod:`fuseproof.harness.verification.hashes` holds it."""

    output: SlotOutput
    path: Path
    raw_path: Path
    name: str

    def compare(self, key: str, expected: Any, source: str) -> Iterator[Finding]: ...

    def finding(self, key: str, expected: Any, source: str) -> Finding: ...


def clip_findings(slot: Slot, entry: Mapping[str, Any], tally: Tally) -> Iterator[Finding]:
    """Where the record of a video says other than its file; raises :class:`FuseproofError` where it cannot be read."""
    clip = load_clip(slot.path)
    tally.count("hashes recomputed")
    tally.count("frames decoded", clip.frames)
    yield from slot.compare("pixels_sha256", clip.pixels_sha256, f"the frames of {slot.name}")
    extents = {"width": clip.width, "height": clip.height, "frames": clip.frames}
    for key, expected in extents.items():
        tally.count("extents")
        yield from slot.compare(key, expected, slot.name)
    fps = None if clip.fps is None else float(clip.fps)
    if slot.output.fps != fps:
        yield slot.finding("fps", fps, slot.name)
    stated = entry.get("degenerate")
    is_stated = isinstance(stated, str) and bool(stated)
    source = f"{PERF_FILE} outputs[]" if is_stated else slot.name
    yield from slot.compare("degenerate", stated if is_stated else clip.degenerate, source)


def kept_frame_findings(slot: Slot, name: str, tally: Tally) -> Iterator[Finding]:
    """Where the record's hashes of raw frames are not those of the kept array, one frame in memory at a time."""
    if not slot.output.frames_sha256:
        return
    values = np.load(slot.raw_path, mmap_mode="r", allow_pickle=False)
    own = tuple(array_sha256(np.asarray(frame)) for frame in values) if values.ndim == 4 else ()
    tally.count("hashes recomputed", len(own))
    yield from _different(slot, own, name)


def stated_frame_findings(slot: Slot, entry: Mapping[str, Any], tally: Tally) -> Iterator[Finding]:
    """Where the record's hashes of raw frames are not those of the dump."""
    theirs = stated_frames(entry)
    if theirs or slot.output.frames_sha256:
        tally.count("hashes stated twice", len(theirs))
        yield from _different(slot, theirs, f"{PERF_FILE} outputs[]")


def _different(slot: Slot, expected: tuple[str, ...], source: str) -> Iterator[Finding]:
    own = slot.output.frames_sha256
    if len(own) != len(expected):
        yield slot.finding("frames_sha256", f"{len(expected)} hashes", source)
        return
    for number, (stated, wanted) in enumerate(zip(own, expected, strict=True), start=1):
        if stated != wanted:
            yield slot.finding("frames_sha256", f"{wanted} as frame {number}", source)
            return
