"""A video that an arm wrote, as its record keeps it: what its file decodes to, what the dump says of its raw frames."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fuseproof.harness.campaign.records import SlotOutput
from fuseproof.harness.media.clips import Clip, load_clip

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ContradictedOutputError(Exception):
    """Why a video is not what the dump says of it; the text completes the output's name."""


def clip_output(path: Path, name: str, stated: Mapping[str, Any]) -> SlotOutput:
    """The record of the video at ``path``; ``stated`` is the dump's entry about it.

    Raises :class:`ContradictedOutputError`, and :class:`FuseproofError` for a video that cannot be read.
    """
    clip = load_clip(path)
    hashes = stated_frames(stated)
    _refuse_contradictions(clip, stated, hashes)
    return SlotOutput(
        path=name,
        file_sha256=clip.file_sha256,
        pixels_sha256=clip.pixels_sha256,
        raw_sha256=_text(stated.get("raw_sha256")),
        latents_sha256=_text(stated.get("latents_sha256")),
        width=clip.width,
        height=clip.height,
        frames=clip.frames,
        degenerate=_text(stated.get("degenerate")) or clip.degenerate,
        fps=None if clip.fps is None else float(clip.fps),
        frames_sha256=hashes,
    )


def stated_frames(stated: Mapping[str, Any]) -> tuple[str, ...]:
    """The hashes of the raw frames in a dump's entry; none where it states none."""
    hashes = stated.get("frames_sha256")
    return tuple(map(str, hashes)) if isinstance(hashes, list) else ()


def _refuse_contradictions(clip: Clip, stated: Mapping[str, Any], hashes: tuple[str, ...]) -> None:
    if stated.get("file_sha256") not in (None, clip.file_sha256):
        raise ContradictedOutputError("is not the file whose hash the dump holds")
    if not all(_SHA256.fullmatch(own) for own in hashes):
        raise ContradictedOutputError("has hashes of raw frames in the dump that are no SHA-256")
    told = stated.get("frames")
    for count, what in ((told, "frames"), (len(hashes) or None, "raw frames with a hash")):
        if count not in (None, clip.frames):
            raise ContradictedOutputError(f"holds {clip.frames} frames, and the dump states {count} {what}")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
