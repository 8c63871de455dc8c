"""Hash again what is kept: files, decoded pixels, raw arrays. What was not kept is counted as recorded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from fuseproof.errors import FuseproofError
from fuseproof.harness.campaign.arms import placeholders
from fuseproof.harness.campaign.evidence import frames_listing
from fuseproof.harness.campaign.folder import OUTPUTS_FOLDER, PERF_FILE, RESULT_FILE, Campaign
from fuseproof.harness.campaign.left_out import SUMS_FILE, hash_of, left_out_lines
from fuseproof.harness.campaign.records import SlotOutput, SlotRecord
from fuseproof.harness.media.clips import is_clip
from fuseproof.harness.media.comparison import degenerate_reason, load_image
from fuseproof.harness.media.decoding import IMAGE_SUFFIXES
from fuseproof.harness.media.files import file_sha256
from fuseproof.harness.perf.fields import read_json_object
from fuseproof.harness.verification.clip_hashes import clip_findings, kept_frame_findings, stated_frame_findings
from fuseproof.harness.verification.findings import HASHES, Check, Finding, Tally
from fuseproof.harness.verification.kept_arrays import UnreadableArrayError, kept_array_sha256
from fuseproof.harness.verification.numbers import is_measured
from fuseproof.harness.verification.raw import RAW_FOLDER, raw_name
from fuseproof.harness.verification.sources import source_findings

FRAMES_FILE = "frames.sha256"
LEVELS = ("file", "pixels", "raw", "latents")


def check_hashes(campaign: Campaign) -> Check:
    """Hash every output of every measured slot again and compare with its ``result.json`` and its dump."""
    tally = Tally()
    kept_only: dict[str, int] = {}
    left_out = left_out_lines(campaign.directory)
    for record in campaign.slots():
        if not is_measured(record):
            continue
        folder = campaign.directory / record.directory
        stated = _stated_entries(folder / PERF_FILE)
        for index, output in enumerate(record.outputs):
            tally.count("outputs")
            slot = _Output(record, index, output, folder)
            entry = stated.get(PurePosixPath(output.path).name, {})
            if slot.name in left_out:
                tally.add(_left_out_findings(slot, left_out[slot.name], tally, kept_only))
            else:
                tally.add(_picture_findings(slot, entry, tally, kept_only))
            tally.add(_raw_findings(slot, tally, kept_only))
            tally.add(_stated_findings(slot, entry, tally))
        tally.add(_unlisted_outputs(record, folder))
        tally.add(_hidden_outputs(campaign, record, stated))
        tally.add(_frames_findings(record, folder, tally))
    tally.add(source_findings(campaign, tally))
    tally.count("hashes recorded", sum(kept_only.values()))
    return Check(HASHES, tally.counts, tuple(tally.findings), _notes(kept_only), dict(kept_only))


class _Output:
    """One output of one slot, with the words for its findings."""

    def __init__(self, record: SlotRecord, index: int, output: SlotOutput, folder: Path) -> None:
        self.output, self.path = output, folder / output.path
        self.raw_path = folder / RAW_FOLDER / raw_name(output.path)
        self.name = f"{record.directory}/{output.path}"
        self._file, self._place = f"{record.directory}/{RESULT_FILE}", f"outputs[{index}]"

    @property
    def is_picture(self) -> bool:
        """Whether a record states every hash, and the size, of this output; not so an earlier version's of a video."""
        return self.path.suffix.lower() in IMAGE_SUFFIXES or (self.is_video and self.output.width is not None)

    @property
    def is_video(self) -> bool:
        """Whether the frames of this output can be decoded and hashed again."""
        return is_clip(self.path)

    def compare(self, key: str, expected: Any, source: str) -> Iterator[Finding]:
        """A finding where the record states another ``key``, or hides it; of a video, what it does not state."""
        stated = getattr(self.output, key)
        if stated != expected and (stated is not None or self.is_picture):
            yield self.finding(key, expected, source)

    def finding(self, key: str, expected: Any, source: str) -> Finding:
        """That the record's ``key`` should be ``expected``."""
        return Finding(self._file, None, f"{self._place}.{key}", getattr(self.output, key), expected, source)


def _picture_findings(
    slot: _Output, entry: Mapping[str, Any], tally: Tally, kept_only: dict[str, int]
) -> Iterator[Finding]:
    output = slot.output
    if not os.path.lexists(slot.path):
        yield Finding(slot.name, "is missing, so its hashes cannot be recomputed")
        return
    try:
        own = file_sha256(slot.path)
        tally.count("hashes recomputed")
        yield from slot.compare("file_sha256", own, slot.name)
        if slot.is_video and slot.is_picture:
            yield from clip_findings(slot, entry, tally)
            return
        if not slot.is_picture:
            _count_recorded(kept_only, "pixels", output.pixels_sha256)
            yield from slot.compare("frames", entry.get("frames", output.frames), f"{PERF_FILE} outputs[]")
            return
        picture = load_image(slot.path)
    except FuseproofError as error:
        yield Finding(slot.name, f"cannot be read: {error.message.replace(str(slot.path), 'it')}")
        return
    tally.count("hashes recomputed")
    yield from slot.compare("pixels_sha256", picture.pixels_sha256, f"the pixels of {slot.name}")
    for key, expected in (("width", picture.width), ("height", picture.height), ("frames", 1)):
        tally.count("extents")
        yield from slot.compare(key, expected, slot.name)
    stated = entry.get("degenerate")
    reason = stated if isinstance(stated, str) and stated else degenerate_reason(picture.pixels)
    yield from slot.compare("degenerate", reason, f"{PERF_FILE} outputs[]" if reason == stated else slot.name)


def _left_out_findings(slot: _Output, line: str, tally: Tally, kept_only: dict[str, int]) -> Iterator[Finding]:
    """An output that a packed folder may lack: its file's hash was signed, the others are as they were recorded."""
    tally.count("hashes stated twice")
    _count_recorded(kept_only, "files", slot.output.file_sha256)
    _count_recorded(kept_only, "pixels", slot.output.pixels_sha256)
    yield from slot.compare("file_sha256", hash_of(line), SUMS_FILE)


def _raw_findings(slot: _Output, tally: Tally, kept_only: dict[str, int]) -> Iterator[Finding]:
    _count_recorded(kept_only, "latents", slot.output.latents_sha256)
    if not os.path.lexists(slot.raw_path):
        _count_recorded(kept_only, "raw arrays", slot.output.raw_sha256)
        return
    name = f"{PurePosixPath(slot.name).parent.parent}/{RAW_FOLDER}/{slot.raw_path.name}"
    try:
        own = kept_array_sha256(slot.raw_path)
    except UnreadableArrayError as error:
        yield Finding(name, f"is {error}")
        return
    tally.count("hashes recomputed")
    tally.count("raw arrays kept")
    yield from slot.compare("raw_sha256", own, name)
    yield from kept_frame_findings(slot, name, tally)


def _count_recorded(kept_only: dict[str, int], what: str, hash_: str | None) -> None:
    if hash_ is not None:
        kept_only[what] = kept_only.get(what, 0) + 1


def _notes(kept_only: Mapping[str, int]) -> tuple[str, ...]:
    if not kept_only:
        return ()
    parts = ", ".join(f"{amount} of {what}" for what, amount in sorted(kept_only.items()))
    total = sum(kept_only.values())
    return (f"{total} hashes recorded, not recomputed, because what they are of was not kept: {parts}",)


def _stated_entries(path: Path) -> dict[str, Mapping[str, Any]]:
    """The dump's own entries about its outputs, by file name; none where there is no readable dump."""
    try:
        entries = read_json_object(path).get("outputs")
    except FuseproofError:
        return {}
    named = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return {PurePosixPath(str(entry["path"])).name: entry for entry in named if entry.get("path")}


def _stated_findings(slot: _Output, entry: Mapping[str, Any], tally: Tally) -> Iterator[Finding]:
    for level in LEVELS:
        theirs = entry.get(f"{level}_sha256")
        if level == "pixels" and slot.is_video:
            continue  # the dump's are of the frames before encoding, the record's of what the file decodes to
        if isinstance(theirs, str) and theirs:
            tally.count("hashes stated twice")
            yield from slot.compare(f"{level}_sha256", theirs, f"{PERF_FILE} outputs[]")
    yield from stated_frame_findings(slot, entry, tally)


def _unlisted_outputs(record: SlotRecord, folder: Path) -> Iterator[Finding]:
    root = folder / OUTPUTS_FOLDER
    listed = {output.path for output in record.outputs}
    for path in sorted(root.rglob("*")) if root.is_dir() else ():
        name = path.relative_to(folder).as_posix()
        if not path.is_dir() and not path.name.startswith(".") and name not in listed:
            yield Finding(f"{record.directory}/{name}", f"is an output that {RESULT_FILE} does not name")


def _hidden_outputs(
    campaign: Campaign, record: SlotRecord, stated: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """Outputs that the dump states and the record does not; or none at all of an arm that was told to write some.

    An import takes what was given, and says which outputs were not.
    """
    if campaign.origin is not None:
        return
    file, listed = f"{record.directory}/{RESULT_FILE}", {PurePosixPath(output.path).name for output in record.outputs}
    for name in stated:
        if name not in listed:
            yield Finding(file, f"does not name the output {name!r}, which its {PERF_FILE} states")
    arm = campaign.plan.arm(record.arm)
    if not listed and not stated and (arm.command is None or "output_dir" in placeholders(arm)):
        yield Finding(file, "names no output, though its arm was told to write some")


def _frames_findings(record: SlotRecord, folder: Path, tally: Tally) -> Iterator[Finding]:
    path = folder / FRAMES_FILE
    if not path.is_file():
        yield Finding(f"{record.directory}/{FRAMES_FILE}", f"is missing, though {RESULT_FILE} names its outputs")
        return
    expected = frames_listing(record.outputs).splitlines()
    stated = path.read_bytes().decode("utf-8", "replace").splitlines()
    tally.count("lines of frames.sha256", len(expected))
    for index in range(max(len(expected), len(stated))):
        own = stated[index] if index < len(stated) else None
        wanted = expected[index] if index < len(expected) else None
        if own != wanted:
            source = f"{record.directory}/{RESULT_FILE}"
            yield Finding(f"{record.directory}/{FRAMES_FILE}", None, f"line {index + 1}", own, wanted, source)
